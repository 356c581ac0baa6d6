#include "core/profiles.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/embedded.h"

namespace vqgen {
namespace {

std::vector<std::string> names_in(std::string_view folder) {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : embedded_profiles()) {
    if (!file.path.starts_with(folder)) continue;
    const std::string_view name = file.path.substr(folder.size());
    names.emplace_back(name.substr(0, name.size() - std::string_view(".json").size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

const EmbeddedFile* find_embedded(const std::string& path) {
  for (const EmbeddedFile& file : embedded_profiles()) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> gpu_names() { return names_in("gpus/"); }
std::vector<std::string> format_names() { return names_in("formats/"); }

GpuSpec find_gpu(const std::string& name) {
  GpuSpec spec;
  if (name.find('/') != std::string::npos || name.ends_with(".json")) {
    const Json json = parse_json_file(name);
    read_fields(JsonCursor(json, name), spec);
    return spec;
  }
  const EmbeddedFile* file = find_embedded("gpus/" + name + ".json");
  if (file == nullptr) {
    throw Error(ErrorKind::bad_input,
                fmt::format("gpu '{}' is unknown; give a JSON file or one of {}", name,
                            fmt::join(gpu_names(), ", ")));
  }
  const Json json = parse_json(file->text, std::string(file->path));
  read_fields(JsonCursor(json, std::string(file->path)), spec);
  return spec;
}

VqFormat find_format(const std::string& name, const std::string& where) {
  const EmbeddedFile* file = find_embedded("formats/" + name + ".json");
  if (file == nullptr) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: format '{}' is unknown; give an object or one of {}", where, name,
                            fmt::join(format_names(), ", ")));
  }
  VqFormat format;
  const Json json = parse_json(file->text, std::string(file->path));
  read_fields(JsonCursor(json, std::string(file->path)), format);
  return format;
}

VqFormat read_format(const JsonCursor& cursor) {
  if (cursor.value().is_string()) {
    return find_format(cursor.string(), cursor.source() + ": " + cursor.path());
  }
  VqFormat format;
  read_fields(cursor, format);
  return format;
}

}  // namespace vqgen
