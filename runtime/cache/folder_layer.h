// A folder of artifacts, one file each: xx/DIGEST.vqk. Files are published by rename, so that a
// reader sees a whole file or none, and a reader that has one open keeps it whatever happens to the
// name.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "runtime/cache/layer.h"

namespace vqgen {

// The regular files in the folders xx/ and locks/ of a cache, by path, whoever made them.
struct CacheFile {
  std::filesystem::path path;
  std::uint64_t bytes = 0;
  std::int64_t changed_s = 0;
};
std::vector<CacheFile> cache_files(const std::filesystem::path& folder);

class FolderLayer final : public ArtifactLayer {
 public:
  // Touches nothing; the folder is made by the first store.
  explicit FolderLayer(std::filesystem::path folder);

  const std::filesystem::path& path() const override { return folder_; }
  std::optional<EntryBytes> read(std::string_view digest,
                                 std::uint64_t max_bytes = kWhole) const override;
  std::vector<StoredEntry> entries() const override;

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
  static constexpr std::uint64_t kWhole = std::numeric_limits<std::uint64_t>::max();
  std::filesystem::path folder_;
};

}  // namespace vqgen
