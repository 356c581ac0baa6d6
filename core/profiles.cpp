#include "core/profiles.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/gpu_arch.h"

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

GpuSpec read_gpu(const Json& json, const std::string& source) {
  const JsonCursor cursor(json, source);
  GpuSpec spec;
  read_fields(cursor, spec);
  const auto control = [](unsigned char c) { return c < 32 || c == 127; };
  if (std::any_of(spec.name.begin(), spec.name.end(), control)) {
    cursor.at("name").fail("must hold no control characters");
  }
  const std::string digits = spec.arch.starts_with("sm_") ? spec.arch.substr(3) : "";
  const std::size_t letter = std::min(digits.find_first_not_of("0123456789"), digits.size());
  if (letter == 0 || (letter < digits.size() && digits.substr(letter) != "a")) {
    cursor.at("arch").fail("must be a compile target such as sm_89 or sm_90a");
  }
  return spec;
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
std::vector<std::string> sweep_names() { return names_in("sweeps/"); }

GpuSpec find_gpu(const std::string& name) {
  if (name.find('/') != std::string::npos || name.ends_with(".json")) {
    const Json json = parse_json_file(name);
    GpuSpec spec = read_gpu(json, name);
    require_facts_of_arch(JsonCursor(json, name), spec);
    return spec;
  }
  const EmbeddedFile* file = find_embedded("gpus/" + name + ".json");
  if (file == nullptr) {
    throw Error(ErrorKind::bad_input,
                fmt::format("gpu '{}' is unknown; give a JSON file or one of {}", name,
                            fmt::join(gpu_names(), ", ")));
  }
  return read_gpu(parse_json(file->text, std::string(file->path)), std::string(file->path));
}

std::optional<GpuSpec> gpu_of_class(const std::string& device_class) {
  for (const std::string& name : gpu_names()) {
    GpuSpec spec = find_gpu(name);
    if (spec.name == device_class) return spec;
  }
  return std::nullopt;
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

// A preset's key transforms do not apply to values; VecInfer (eq. 8) quantizes them as they are.
VqFormat read_value_format(const JsonCursor& cursor) {
  const VqFormat format = read_format(cursor);
  if (cursor.value().is_object() && (format.smooth || format.hadamard)) {
    cursor.fail("smooth and hadamard transform keys only (VecInfer eq. 3-8); remove them here");
  }
  return for_values(format);
}

const EmbeddedFile& find_sweep(const std::string& name) {
  const EmbeddedFile* file = find_embedded("sweeps/" + name + ".json");
  if (file == nullptr) {
    throw Error(ErrorKind::bad_input,
                fmt::format("sweep '{}' is unknown; give a JSON file or one of {}", name,
                            fmt::join(sweep_names(), ", ")));
  }
  return *file;
}

}  // namespace vqgen
