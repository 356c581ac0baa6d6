// What keeps a cache folder bounded: the least recently used entries go, and what was left behind.
// Only files that a cache makes are touched. Removal is unlink: who reads a file goes on reading.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "runtime/cache/layer.h"

namespace vqgen {

struct CollectLimits {
  std::optional<std::uint64_t> max_bytes = {};       // of all entries together
  std::optional<std::chrono::seconds> max_age = {};  // since an entry was made or last used
};

struct Collected {
  std::int64_t entries = 0;    // removed
  std::int64_t leftovers = 0;  // removed: temporary files, damaged ones, locks
  std::uint64_t bytes = 0;     // of all that were removed
  std::int64_t kept_entries = 0;
  std::uint64_t kept_bytes = 0;
  std::vector<CacheFault> faults = {};  // what could not be read or removed
};

// Removes entries over the limits, oldest use first, and with them damaged files, and temporary
// files and locks, unless held, that are older than an hour. Never throws for the state of the
// disk; what cannot be removed is kept, and named.
Collected collect(const std::filesystem::path& folder, const CollectLimits& limits);

// Removes every file of the cache, but temporary files of the last hour and locks that are held:
// somebody is at work there.
Collected clear_cache(const std::filesystem::path& folder);

}  // namespace vqgen
