#include "runtime/cache/trust.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

namespace vqgen {
namespace {

std::string others_write(const std::filesystem::path& path) {
  return fmt::format("others can write to {}; close it with chmod -R go-w", path.string());
}

}  // namespace

bool open_to_others(const struct stat& status) {
  const bool by_group = (status.st_mode & 0020) != 0 && status.st_gid != ::getegid();
  return (status.st_mode & 0002) != 0 || by_group;
}

bool is_ours(const struct stat& status) {
  return status.st_uid == 0 || status.st_uid == ::geteuid();
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
  return fmt::format("{} belongs to user {} and stands where all can write; put it elsewhere",
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
