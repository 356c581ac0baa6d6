#include "core/profiles.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "core/gpu/gpu_arch.h"
#include "core/suggest.h"

namespace vqgen {
namespace {

constexpr const char* kGpus = "gpus/";

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
  if (spec.name.empty()) cursor.at("name").fail("must not be empty");
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

// The shipped profile of a name; null where none has it.
const EmbeddedFile* embedded(const std::string& folder, const std::string& name) {
  for (const EmbeddedFile& file : embedded_profiles()) {
    if (same_but_case(file.path, folder + name + ".json")) return &file;
  }
  return nullptr;
}

// Of a name of several words the known one that is among them, else what did_you_mean() says.
std::string hint_of(const std::string& name, std::span<const std::string> known) {
  std::istringstream words(name);
  for (std::string word; words >> word;) {
    for (const std::string& each : known) {
      if (same_but_case(word, each)) return did_you_mean(word, {&each, 1});
    }
  }
  return did_you_mean(name, known);
}

// `asked` and `others` are for the message that none has the name.
const EmbeddedFile& find_embedded(const std::string& folder, const std::string& name,
                                  const std::string& asked, const char* others) {
  if (const EmbeddedFile* file = embedded(folder, name)) return *file;
  const std::vector<std::string> known = names_in(folder);
  throw Error(ErrorKind::bad_input,
              fmt::format("{} '{}' is unknown; give {} or one of {}{}", asked, name, others,
                          fmt::join(known, ", "), hint_of(name, known)));
}

GpuSpec read_shipped_gpu(const EmbeddedFile& file) {
  const std::string path(file.path);
  return read_gpu(parse_json(file.text, path), path);
}

std::string place_of(const JsonCursor& cursor) { return cursor.source() + ": " + cursor.path(); }

template <class Find>
VqFormat read_object(const JsonCursor& cursor, std::vector<std::string> beside, const Find& find);

// The parts of keys, each an object with its channels.
template <class Find>
VqFormat read_parts(const JsonCursor& cursor, std::vector<std::string> beside, const Find& find) {
  std::erase(beside, "preset");
  beside.emplace_back("parts");
  cursor.expect_object(beside);
  const JsonCursor list = cursor.at("parts");
  if (!list.value().is_array() || list.value().empty()) list.fail("must be an array of formats");
  std::vector<VqFormat> parts;
  for (std::size_t i = 0; i < list.value().size(); ++i) {
    parts.push_back(read_object(list.at(i), {}, find));
  }
  return in_parts(std::move(parts));
}

// An object of fields over those of the preset that it names. `beside` are members that are none of
// a format's; `find` makes a format of the preset's name.
template <class Find>
VqFormat read_object(const JsonCursor& cursor, std::vector<std::string> beside, const Find& find) {
  beside.emplace_back("preset");
  std::vector<std::string> known = beside;
  for_each_field<VqFormat>([&](const auto& field) { known.emplace_back(field.name); });
  cursor.expect_object(known);
  if (cursor.has("parts")) return read_parts(cursor, beside, find);
  const bool extends = cursor.has("preset");
  VqFormat format = extends ? find(cursor.at("preset")) : VqFormat{};
  Json fields = cursor.value();
  for (const std::string& name : beside) fields.erase(name);
  if (format.in_parts()) {
    if (!fields.empty()) {
      cursor.fail("extends a preset in parts, whose fields are each part's; write the parts out");
    }
    return format;
  }
  read_fields(JsonCursor(fields, cursor.source(), cursor.path()), format, /*partial=*/extends);
  return format;
}

// A file extends shipped presets alone: no file leads to another, or to itself.
FormatProfile read_format_file(const Json& json, const std::string& source) {
  const JsonCursor cursor(json, source);
  const VqFormat format = read_object(cursor, {"source"}, [](const JsonCursor& preset) {
    if (names_a_file(preset.string())) {
      preset.fail("names a file, and a file extends shipped presets alone; name one of those");
    }
    return find_format(preset.string(), place_of(preset));
  });
  return {format, cursor.has("source") ? cursor.at("source").string() : ""};
}

// A preset or file that JSON names.
VqFormat read_named(const JsonCursor& cursor) {
  std::string name = cursor.string();
  if (names_a_file(name)) {
    name = (std::filesystem::path(cursor.source()).parent_path() / name).string();
  }
  return find_format(name, place_of(cursor));
}

}  // namespace

std::vector<std::string> gpu_names() { return names_in(kGpus); }
std::vector<std::string> format_names() { return names_in("formats/"); }
std::vector<std::string> sweep_names() { return names_in("sweeps/"); }

bool names_a_file(const std::string& name) {
  return name.find('/') != std::string::npos || name.ends_with(".json");
}

GpuSpec find_gpu(const std::string& name) {
  if (names_a_file(name)) {
    const Json json = parse_json_file(name);
    GpuSpec spec = read_gpu(json, name);
    if (!json.contains("bf16_products")) spec.bf16_products = has_bf16_products(spec.arch);
    require_facts_of_arch(JsonCursor(json, name), spec);
    return spec;
  }
  if (const EmbeddedFile* file = embedded(kGpus, name)) return read_shipped_gpu(*file);
  for (const std::string& each : gpu_names()) {
    GpuSpec spec = read_shipped_gpu(*embedded(kGpus, each));
    if (same_but_case(spec.name, name) || same_but_case(spec.name, "NVIDIA " + name)) return spec;
  }
  return read_shipped_gpu(find_embedded(kGpus, name, "gpu", "a JSON file"));
}

GpuSpec default_gpu() {
  const EmbeddedFile& file = find_embedded("", "defaults", "profile", "a JSON file");
  const Json json = parse_json(file.text, std::string(file.path));
  return find_gpu(JsonCursor(json, std::string(file.path)).at("gpu").string());
}

std::optional<GpuSpec> gpu_of_class(const std::string& device_class) {
  for (const std::string& name : gpu_names()) {
    GpuSpec spec = find_gpu(name);
    if (spec.name == device_class) return spec;
  }
  return std::nullopt;
}

FormatProfile find_format_profile(const std::string& name, const std::string& where) {
  if (names_a_file(name)) return read_format_file(parse_json_file(name), name);
  const EmbeddedFile& file =
      find_embedded("formats/", name, where + ": format", "an object, a JSON file");
  const std::string path(file.path);
  return read_format_file(parse_json(file.text, path), path);
}

VqFormat find_format(const std::string& name, const std::string& where) {
  return find_format_profile(name, where).format;
}

VqFormat parse_format(const std::string& text, const std::string& where) {
  if (!text.starts_with('{')) return find_format(text, where);
  const Json json = parse_json(text, where);
  return read_format(JsonCursor(json, where));
}

VqFormat read_format(const JsonCursor& cursor) {
  if (cursor.value().is_string()) return read_named(cursor);
  return read_object(cursor, {}, read_named);
}

VqFormat read_value_format(const JsonCursor& cursor) {
  const VqFormat format = read_format(cursor);
  for (const char* transform : {"smooth", "hadamard"}) {
    if (cursor.has(transform) && cursor.at(transform).boolean()) {
      cursor.fail("smooth and hadamard transform keys only (VecInfer eq. 3-8); remove them here");
    }
  }
  return for_values(format);
}

const EmbeddedFile& find_sweep(const std::string& name) {
  return find_embedded("sweeps/", name, "sweep", "a JSON file");
}

}  // namespace vqgen
