// A folder of artifacts, one file each: xx/DIGEST.vqk. Files are published by rename, so that a
// reader sees a whole file or none, and a reader that has one open keeps it whatever happens to the
// name.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <span>
#include <string>

#include "runtime/cache/layer.h"

namespace vqgen {

// A file that a cache makes, by its name.
enum class CacheFileKind { entry, damaged, temporary, lock };
struct CacheFile {
  std::filesystem::path path;
  CacheFileKind kind = CacheFileKind::entry;
  std::uint64_t bytes = 0;
  std::int64_t changed_s = 0;
};
// Those in the folders xx/ and locks/, by path, and what keeps others from being seen: folders that
// cannot be read, and what stands in the place of a folder or file and is none. A folder that is
// not there is an empty one.
struct CacheFiles {
  std::vector<CacheFile> files = {};
  std::vector<CacheFault> faults = {};
};
CacheFiles cache_files(const std::filesystem::path& folder);

class FolderLayer final : public ArtifactLayer {
 public:
  // Touches nothing; the folder is made by the first store.
  explicit FolderLayer(std::filesystem::path folder);

  const std::filesystem::path& path() const override { return folder_; }
  std::optional<EntryBytes> read(std::string_view digest,
                                 std::uint64_t max_bytes = kWhole) const override;
  Listing list() const override;

  std::filesystem::path path_of(std::string_view digest) const;
  std::filesystem::path lock_of(std::string_view digest) const;

  // FileError, or another Error(bad_input), where it cannot be written. Folders that others remove
  // meanwhile are made again, once.
  void store(std::string_view digest, std::span<const std::byte> bytes) const;
  // Renames a damaged file to NAME.damaged, where that can be done and it is the one that was read:
  // another may have been published since.
  void set_aside(std::string_view digest, const FileStamp& read) const;
  // Stamps the entry as used now, unless its stamp is younger than an hour or cannot be changed.
  void touch(std::string_view digest) const;

 private:
  bool is_trusted(const struct stat& entry) const;

  static constexpr std::uint64_t kWhole = std::numeric_limits<std::uint64_t>::max();
  std::filesystem::path folder_;
};

}  // namespace vqgen
