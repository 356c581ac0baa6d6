// A place to look for artifacts: a folder of files, or a pack of many in one file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vqgen {

// One stored artifact, as lists show it.
struct StoredEntry {
  std::string digest;  // of its key, 64 hex digits
  std::uint64_t bytes = 0;
  std::int64_t used_s = 0;  // last made or used, seconds since 1970; the pack's own in a pack
};

// Identifies the file that was read, and its state: device, inode, bytes, and the time of its last
// change in seconds and nanoseconds.
using FileStamp = std::array<std::int64_t, 5>;

struct EntryBytes {
  std::vector<std::byte> bytes = {};
  // The system refuses the entry, or others can change it: no bytes, and no known damage.
  bool unreadable = false;
  FileStamp stamp = {};  // of a folder's file
};

// A place of a layer that cannot be read or removed, or that holds an entry of the wrong type.
struct CacheFault {
  std::filesystem::path path;
  std::string why;  // with the remedy
};

struct Listing {
  std::vector<StoredEntry> entries = {};  // by digest, ascending
  std::vector<CacheFault> faults = {};
};

// Thread-safe. None of its functions throws for the state of the disk.
class ArtifactLayer {
 public:
  virtual ~ArtifactLayer() = default;
  virtual const std::filesystem::path& path() const = 0;

  // The bytes of an entry, at most the first `max_bytes`, unverified. Returns nullopt if there is
  // no entry, and no bytes if the file is shorter than stated.
  static constexpr std::uint64_t kWhole = std::numeric_limits<std::uint64_t>::max();
  virtual std::optional<EntryBytes> read(std::string_view digest,
                                         std::uint64_t max_bytes = kWhole) const = 0;

  virtual Listing list() const = 0;
  std::vector<StoredEntry> entries() const { return list().entries; }
};

// 64 lower-case hex digits.
bool is_digest(std::string_view text);

}  // namespace vqgen
