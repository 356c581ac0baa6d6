#include "runtime/backend/cuda/nvrtc_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "runtime/backend/cuda/elf_build_id.h"

namespace vqgen {
namespace {

constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
constexpr std::string_view kLibrary = "libnvrtc.so";
constexpr std::string_view kBuiltins = "libnvrtc-builtins.so.";

struct Version {
  std::optional<int> major;
  std::optional<int> minor;
};

// The number at the front of `text`, with the point before it, which are taken off.
std::optional<int> take_number(std::string_view& text) {
  if (text.starts_with('.')) text.remove_prefix(1);
  int number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc{} || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

// "13.0.88" has both, "13" the first.
Version version_in(std::string_view text) {
  Version version;
  version.major = take_number(text);
  if (version.major) version.minor = take_number(text);
  return version;
}

// As version_in(), but "11.2" has no minor: it is what 11.2 to 11.8 are all called.
Version version_of_library(std::string_view text) {
  Version version = version_in(text);
  const bool has_patch = std::count(text.begin(), text.end(), '.') > 2;
  if (version.major == 11 && !has_patch) version.minor.reset();
  return version;
}

// The version that goes with the library, by the names in its folder; nothing where two do.
Version version_of_builtins(const std::filesystem::path& folder, std::optional<int> major) {
  Version found;
  std::error_code code;
  std::filesystem::directory_iterator entries(folder, code);
  for (; !code && entries != std::filesystem::directory_iterator(); entries.increment(code)) {
    const std::string name = entries->path().filename().string();
    if (!name.starts_with(kBuiltins)) continue;
    const Version version = version_in(std::string_view(name).substr(kBuiltins.size()));
    if (!version.minor || (major && version.major != major)) continue;
    const bool another =
        found.minor && (found.major != version.major || found.minor != version.minor);
    if (another) return {};
    found = version;
  }
  return found;
}

std::optional<NvrtcFile> describe(const std::filesystem::path& path) {
  if (!is_elf(path)) return std::nullopt;
  std::error_code code;
  const auto real = std::filesystem::canonical(path, code);
  const std::string name = real.filename().string();
  if (code || !name.starts_with(kLibrary)) return std::nullopt;
  Version version = version_of_library(std::string_view(name).substr(kLibrary.size()));
  if (!version.minor) version = version_of_builtins(real.parent_path(), version.major);
  if (!version.minor) return std::nullopt;
  return NvrtcFile{path, *version.major, *version.minor, nvrtc_build(path)};
}

bool has_library(const std::filesystem::path& folder) {
  std::error_code ignored;
  return std::any_of(std::begin(kNames), std::end(kNames), [&](const char* name) {
    return !folder.empty() && std::filesystem::exists(folder / name, ignored);
  });
}

}  // namespace

std::vector<std::filesystem::path> nvrtc_candidates(const std::filesystem::path& path,
                                                    const std::filesystem::path& beside) {
  std::vector<std::filesystem::path> all;
  const auto add_folder = [&](const std::filesystem::path& folder) {
    for (const char* name : kNames) all.push_back(folder / name);
  };
  std::error_code ignored;
  if (!path.empty() && std::filesystem::is_directory(path, ignored)) {
    add_folder(path);
  } else if (!path.empty()) {
    all.push_back(path);
  } else {
    // The first may be one of another machine, or gone; the other has one where it was installed.
    for (const std::filesystem::path& folder : {std::filesystem::path(VQGEN_NVRTC_HINT), beside}) {
      if (has_library(folder)) add_folder(folder);
    }
    add_folder("");
    add_folder("/usr/local/cuda/lib64");
  }
  return all;
}

// The wheels of some 12.x have no build id; the file's size stands in.
std::string nvrtc_build(const std::filesystem::path& path) {
  if (const auto id = gnu_build_id(path)) return "build-id " + *id;
  std::error_code code;
  const auto bytes = std::filesystem::file_size(path, code);
  return code ? "build unknown" : fmt::format("size {}", bytes);
}

std::optional<NvrtcFile> find_nvrtc(const std::filesystem::path& path,
                                    const std::filesystem::path& beside) {
  for (const std::filesystem::path& candidate : nvrtc_candidates(path, beside)) {
    if (!candidate.has_parent_path()) return std::nullopt;
    std::error_code ignored;
    if (std::filesystem::exists(candidate, ignored)) return describe(candidate);
  }
  return std::nullopt;
}

}  // namespace vqgen
