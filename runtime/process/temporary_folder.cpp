#include "runtime/process/temporary_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <system_error>

#include "core/error.h"

namespace vqgen {
namespace {

constexpr const char* kRemedy = "set TMPDIR to a folder of your own";

}  // namespace

bool open_to_others(const struct stat& status) {
  const bool by_group = (status.st_mode & 0020) != 0 && status.st_gid != ::getegid();
  return (status.st_mode & 0002) != 0 || by_group;
}

bool is_ours(const struct stat& status) {
  return status.st_uid == 0 || status.st_uid == ::geteuid();
}

std::string of_another(const std::filesystem::path& folder, const struct stat& status) {
  return fmt::format("{} belongs to user {}, who can change what is put there; {}", folder.string(),
                     status.st_uid, kRemedy);
}

std::string unsafe_parent(const std::filesystem::path& folder) {
  std::error_code code;
  std::filesystem::path at = std::filesystem::canonical(folder, code);
  struct stat status {};
  if (code || ::stat(at.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    return fmt::format("is no folder; {}", kRemedy);
  }
  if (!is_ours(status)) return of_another(at, status);
  // Not even this user's group may write to the folder itself: the group may have many members.
  bool open = (status.st_mode & 0022) != 0;
  for (;;) {
    if (open && (status.st_mode & S_ISVTX) == 0) {
      return fmt::format(
          "others can write to {}, which is not sticky, and put their files in the "
          "place of yours; close it with chmod go-w {}, or {}",
          at.string(), at.string(), kRemedy);
    }
    if (!at.has_relative_path()) return "";
    at = at.parent_path();
    if (::stat(at.c_str(), &status) != 0) return fmt::format("is no folder; {}", kRemedy);
    if (!is_ours(status)) return of_another(at, status);
    open = open_to_others(status);
  }
}

std::filesystem::path temporary_folder() {
  const char* const given = std::getenv("TMPDIR");
  const bool named = given != nullptr && *given != '\0';
  const std::filesystem::path folder = std::filesystem::absolute(named ? given : "/tmp");
  if (const std::string why = unsafe_parent(folder); !why.empty()) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}{}: {}", named ? "TMPDIR: " : "", folder.string(), why));
  }
  return folder;
}

}  // namespace vqgen
