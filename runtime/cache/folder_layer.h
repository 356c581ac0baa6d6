// A bounded folder of artifacts, one file each: xx/DIGEST.vqk. Files are published by rename, so
// that a reader sees a whole file or none, and keeps an open file whatever happens to its name.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "runtime/cache/layer.h"

namespace vqgen {

class FolderLayer final : public ArtifactLayer {
 public:
  // Touches nothing; the first store makes the folder.
  explicit FolderLayer(std::filesystem::path folder) : folder_(std::move(folder)) {}

  const std::filesystem::path& path() const override { return folder_; }
  std::optional<EntryBytes> read(std::string_view digest,
                                 std::uint64_t max_bytes = kWhole) const override;
  Listing list() const override;

  std::filesystem::path path_of(std::string_view digest) const;
  std::filesystem::path lock_of(std::string_view digest) const;

  // Throws FileError, or another Error(bad_input), if it cannot be written. Folders that others
  // remove meanwhile are made again, once.
  void store(std::string_view digest, std::span<const std::byte> bytes) const;
  // Renames a damaged file to NAME.damaged if it still is the file that was read: another process
  // may have published a new one since.
  void set_aside(std::string_view digest, const FileStamp& read) const;
  // Stamps the entry as used now, unless its stamp is younger than an hour or cannot be changed.
  void touch(std::string_view digest) const;

 private:
  bool is_trusted(const struct stat& entry) const;

  std::filesystem::path folder_;
};

// Bounds a folder: removes the least recently used entries and leftovers. Touches only files that a
// cache makes. Removal is unlink, so a process that reads a file goes on reading.
struct CollectLimits {
  std::optional<std::uint64_t> max_bytes = {};       // of all entries together
  std::optional<std::chrono::seconds> max_age = {};  // since an entry was made or last used
};

struct Collected {
  std::int64_t entries = 0;    // removed
  std::int64_t leftovers = 0;  // removed: temporary files, damaged ones, locks
  std::uint64_t bytes = 0;     // of all removed files
  std::int64_t kept_entries = 0;
  std::uint64_t kept_bytes = 0;
  std::vector<CacheFault> faults = {};  // what could not be read or removed
};

// Removes entries over the limits, oldest use first, damaged files, and temporary files and free
// locks older than an hour. Never throws for the state of the disk; what it cannot remove stays and
// is named.
Collected collect(const std::filesystem::path& folder, const CollectLimits& limits);

// Removes every file of the cache except temporary files of the last hour and held locks: a process
// may be using those.
Collected clear_cache(const std::filesystem::path& folder);

}  // namespace vqgen
