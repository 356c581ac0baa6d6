#include "core/profiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "core/gpu/gpu_arch.h"
#include "core/gpu/least_arch.h"
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
  if (const std::string why = unsupported_arch(spec.arch); !why.empty())
    cursor.at("arch").fail(why);
  return spec;
}

const EmbeddedFile* find_embedded(const std::string& folder, const std::string& name) {
  for (const EmbeddedFile& file : embedded_profiles()) {
    if (same_but_case(file.path, folder + name + ".json")) return &file;
  }
  return nullptr;
}

// `asked` is what a message calls it, `like` what a known name is suggested for, `known` the names
// that it may be, `others` what else; `list` is what vqgen list calls them.
[[noreturn]] void fail_unknown(const std::string& asked, const std::string& name,
                               const std::string& like, const std::vector<std::string>& known,
                               const char* others, const char* list) {
  throw Error(ErrorKind::bad_input,
              fmt::format("{} '{}' is unknown{}give {} or one of {} (vqgen list {})", asked, name,
                          suggest_then(like, known), others, few_of(known), list));
}

// True if `word` is one of the words of the name, which letters and digits make.
bool has_word(const std::string& name, const std::string& word) {
  std::string each;
  for (const char c : name + " ") {
    const auto letter = static_cast<unsigned char>(c);
    if (std::isalnum(letter) != 0) {
      each += static_cast<char>(std::tolower(letter));
    } else if (std::exchange(each, "") == word) {
      return true;
    }
  }
  return false;
}

// GPUs that people have and no kernel of vqgen runs on, by a word of their names.
void require_supported(const std::string& name) {
  const EmbeddedFile& file = *find_embedded("", "unsupported_gpus");
  const Json known = parse_json(file.text, std::string(file.path));
  for (const auto& [word, arch] : known.at("gpus").items()) {
    if (!has_word(name, word)) continue;
    throw Error(ErrorKind::bad_input,
                fmt::format("gpu '{}': {}", name, unsupported_arch(arch.get<std::string>())));
  }
}

std::string place_of(const JsonCursor& cursor) { return cursor.source() + ": " + cursor.path(); }

template <class Find>
VqFormat read_object(const JsonCursor& cursor, std::vector<std::string> beside, const Find& find);

// The parts of keys, each an object with its channels.
template <class Find>
VqFormat read_parts(const JsonCursor& cursor, std::vector<std::string> beside, const Find& find) {
  std::erase(beside, "preset");
  for (const char* field : {"parts", "center", "klt"}) beside.emplace_back(field);
  cursor.expect_object(beside);
  const JsonCursor list = cursor.at("parts");
  if (!list.value().is_array() || list.value().empty()) list.fail("must be an array of formats");
  std::vector<VqFormat> parts;
  for (std::size_t i = 0; i < list.value().size(); ++i) {
    parts.push_back(read_object(list.at(i), {}, find));
  }
  VqFormat format = in_parts(std::move(parts));
  if (cursor.has("center")) format.center = cursor.at("center").boolean();
  if (cursor.has("klt")) format.klt = cursor.at("klt").boolean();
  return format;
}

// Reads an object of fields over those of the preset that it names. `beside` are further members
// that the format does not have; `find` returns a preset's format by name.
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
  FormatProfile profile;
  profile.format =
      read_object(cursor, {"source", "use", "recommended"}, [](const JsonCursor& preset) {
        if (names_a_file(preset.string())) {
          preset.fail("names a file, and a file extends shipped presets alone; name one of those");
        }
        return find_format(preset.string(), place_of(preset));
      });
  if (cursor.has("source")) profile.source = cursor.at("source").string();
  if (cursor.has("use")) read_value(cursor.at("use"), Rule{}, profile.use.emplace());
  profile.recommended = cursor.has("recommended") && cursor.at("recommended").boolean();
  return profile;
}

// A preset or file that JSON names.
VqFormat read_named(const JsonCursor& cursor, std::optional<FormatUse> wanted) {
  std::string name = cursor.string();
  if (names_a_file(name)) {
    name = (std::filesystem::path(cursor.source()).parent_path() / name).string();
  }
  return find_format(name, place_of(cursor), wanted);
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
  const auto read = [](const EmbeddedFile& file) {
    const std::string path(file.path);
    return read_gpu(parse_json(file.text, path), path);
  };
  if (const EmbeddedFile* file = find_embedded("gpus/", name)) return read(*file);
  for (const std::string& each : gpu_names()) {
    GpuSpec spec = read(*find_embedded("gpus/", each));
    if (same_but_case(spec.name, name) || same_but_case(spec.name, "NVIDIA " + name)) return spec;
  }
  require_supported(name);
  const std::vector<std::string> known = gpu_names();
  const auto among = std::find_if(known.begin(), known.end(),
                                  [&](const std::string& each) { return has_word(name, each); });
  fail_unknown("gpu", name, among != known.end() ? *among : name, known, "a JSON file", "gpus");
}

GpuSpec default_gpu() {
  const EmbeddedFile& file = *find_embedded("", "defaults");
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

std::vector<std::string> formats_for(std::optional<FormatUse> wanted) {
  std::vector<std::string> names;
  std::map<std::string, std::pair<bool, bool>> rank;
  for (const std::string& name : format_names()) {
    const FormatProfile profile = find_format_profile(name, "");
    if (wanted && !profile.serves(*wanted)) continue;
    names.push_back(name);
    rank[name] = {!profile.recommended, profile.use == FormatUse::weights};
  }
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return rank.at(a) < rank.at(b);
  });
  return names;
}

FormatProfile find_format_profile(const std::string& name, const std::string& where,
                                  std::optional<FormatUse> wanted) {
  if (names_a_file(name)) {
    try {
      return read_format_file(parse_json_file(name), name);
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("{}: {}", where, error.what()));
    }
  }
  const EmbeddedFile* const file = find_embedded("formats/", name);
  if (file == nullptr) {
    fail_unknown(where + ": format", name, name, formats_for(wanted), "an object, a JSON file",
                 "formats");
  }
  const std::string path(file->path);
  return read_format_file(parse_json(file->text, path), path);
}

VqFormat find_format(const std::string& name, const std::string& where,
                     std::optional<FormatUse> wanted) {
  return find_format_profile(name, where, wanted).format;
}

VqFormat parse_format(const std::string& text, const std::string& where,
                      std::optional<FormatUse> wanted) {
  if (!text.starts_with('{')) return find_format(text, where, wanted);
  const Json json = parse_json(text, where);
  return read_format(JsonCursor(json, where), wanted);
}

VqFormat read_format(const JsonCursor& cursor, std::optional<FormatUse> wanted) {
  if (cursor.value().is_string()) return read_named(cursor, wanted);
  return read_object(cursor, {},
                     [&](const JsonCursor& preset) { return read_named(preset, wanted); });
}

VqFormat read_value_format(const JsonCursor& cursor) {
  const VqFormat format = read_format(cursor, FormatUse::values);
  for (const char* transform : {"smooth", "hadamard"}) {
    if (cursor.has(transform) && cursor.at(transform).boolean()) {
      cursor.fail("smooth and hadamard transform keys only (VecInfer eq. 3-8); remove them here");
    }
  }
  return for_values(format);
}

const EmbeddedFile& find_sweep(const std::string& name) {
  const EmbeddedFile* const file = find_embedded("sweeps/", name);
  if (file == nullptr) fail_unknown("sweep", name, name, sweep_names(), "a JSON file", "sweeps");
  return *file;
}

}  // namespace vqgen
