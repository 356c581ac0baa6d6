#include "runtime/cache/places.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "core/error.h"

namespace vqgen {
namespace {

bool given(const std::optional<std::string>& value) { return value && !value->empty(); }

bool absolute(const std::optional<std::string>& value) {
  return value && std::filesystem::path(*value).is_absolute();
}

std::string others_write(const std::filesystem::path& path) {
  return fmt::format("others can write to {}; close it with chmod -R go-w", path.string());
}

}  // namespace

std::optional<std::filesystem::path> default_cache_dir(const CacheEnvironment& environment) {
  if (given(environment.vqgen_cache_dir)) {
    return std::filesystem::path(*environment.vqgen_cache_dir);
  }
  if (absolute(environment.xdg_cache_home)) {
    return std::filesystem::path(*environment.xdg_cache_home) / "vqgen";
  }
  if (absolute(environment.home)) {
    return std::filesystem::path(*environment.home) / ".cache" / "vqgen";
  }
  return std::nullopt;
}

std::optional<std::filesystem::path> private_folder(const std::filesystem::path& temporary) {
  if (!unsafe_parent(temporary).empty()) return std::nullopt;
  const std::filesystem::path folder = temporary / fmt::format("vqgen-{}", ::geteuid());
  [[maybe_unused]] const int ignored = ::mkdir(folder.c_str(), 0700);  // it may be there
  struct stat status {};
  const bool ours = ::lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
                    status.st_uid == ::geteuid() && (status.st_mode & 0777) == 0700;
  if (!ours) return std::nullopt;
  return folder;
}

std::vector<std::filesystem::path> split_path(const std::string& text) {
  std::vector<std::filesystem::path> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    if (end > begin) parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::uint64_t parse_bytes(const std::string& what, const std::string& text) {
  std::uint64_t bytes = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, bytes);
  if (parsed.ec != std::errc{} || parsed.ptr != end) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: '{}' is no number of bytes; write digits alone", what, text));
  }
  return bytes;
}

CacheOptions cache_options(const CacheEnvironment& environment) {
  CacheOptions options;
  if (given(environment.vqgen_cache_path)) {
    options.read_only = split_path(*environment.vqgen_cache_path);
  }
  options.folder = default_cache_dir(environment);
  if (!options.folder && environment.temporary) {
    options.folder =
        private_folder(absolute(environment.temporary) ? *environment.temporary : "/tmp");
  }
  if (!options.folder) {
    options.warning =
        "kernels are kept in memory alone; set VQGEN_CACHE_DIR, XDG_CACHE_HOME or HOME";
  }
  if (given(environment.vqgen_cache_max_bytes)) {
    options.max_bytes = parse_bytes("VQGEN_CACHE_MAX_BYTES", *environment.vqgen_cache_max_bytes);
  }
  return options;
}

std::string distrust(const std::filesystem::path& path, Trust trust) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return "";
  if (open_to_others(status)) return others_write(path);
  if (trust == Trust::own) {
    if (is_ours(status)) return "";
    return fmt::format("{} belongs to user {}; name a folder of your own", path.string(),
                       status.st_uid);
  }
  std::error_code code;
  const std::filesystem::path above = std::filesystem::canonical(path, code).parent_path();
  struct stat holder {};
  if (code || ::stat(above.c_str(), &holder) != 0) return "";
  if (!open_to_others(holder)) return "";
  if ((holder.st_mode & S_ISVTX) == 0) return others_write(above);
  if (is_ours(status)) return "";
  return fmt::format("{} belongs to user {} and is where all can write; put it elsewhere",
                     path.string(), status.st_uid);
}

std::error_code make_closed_folders(const std::filesystem::path& folder) {
  std::error_code code;
  if (folder.empty() || std::filesystem::is_directory(folder, code)) return {};
  if (const std::error_code above = make_closed_folders(folder.parent_path())) return above;
  if (::mkdir(folder.c_str(), 0755) == 0) return {};
  const int error = errno;
  if (error == EEXIST && std::filesystem::is_directory(folder, code)) return {};
  return {error, std::generic_category()};
}

}  // namespace vqgen
