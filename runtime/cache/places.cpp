#include "runtime/cache/places.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>

#include "core/error.h"

namespace vqgen {
namespace {

bool given(const std::optional<std::string>& value) { return value && !value->empty(); }

bool absolute(const std::optional<std::string>& value) {
  return value && std::filesystem::path(*value).is_absolute();
}

// Whether nobody but root and this user can put another folder in the place of one in it.
bool is_safe_parent(const std::filesystem::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return false;
  if (status.st_uid != 0 && status.st_uid != ::geteuid()) return false;
  return (status.st_mode & 0022) == 0 || (status.st_mode & S_ISVTX) != 0;
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
  if (!is_safe_parent(temporary)) return std::nullopt;
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

}  // namespace vqgen
