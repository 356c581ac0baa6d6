// Where kernels are cached, from the environment as the caller read it; and whether code may be
// loaded from a place: only where nobody but its owner can put or change it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "runtime/process/temporary_folder.h"

namespace vqgen {

inline constexpr std::uint64_t kDefaultCacheBytes = std::uint64_t{2} << 30;

struct CacheOptions {
  std::vector<std::filesystem::path> read_only =
      {};  // folders and packs, in the order they are asked
  std::optional<std::filesystem::path> folder =
      {};                                        // written, and asked after them; none: in memory
  std::string warning = {};                      // what the user is to know of the choice
  std::uint64_t max_bytes = kDefaultCacheBytes;  // of `folder`
  std::chrono::milliseconds lock_wait{30'000};   // for another process that compiles the same
  bool explain_misses = false;                   // find the nearest entry, which reads many
};

// The variables that decide; empty ones count as unset.
struct CacheEnvironment {
  std::optional<std::string> vqgen_cache_dir = {};        // VQGEN_CACHE_DIR
  std::optional<std::string> xdg_cache_home = {};         // XDG_CACHE_HOME
  std::optional<std::string> home = {};                   // HOME
  std::optional<std::string> vqgen_cache_path = {};       // VQGEN_CACHE_PATH
  std::optional<std::string> vqgen_cache_max_bytes = {};  // VQGEN_CACHE_MAX_BYTES
  std::optional<std::string> temporary = {};              // the folder of temporary files
};

// VQGEN_CACHE_DIR, else XDG_CACHE_HOME/vqgen, else HOME/.cache/vqgen; nullopt without any of them.
// Relative values count as unset but for VQGEN_CACHE_DIR (XDG's rule).
std::optional<std::filesystem::path> default_cache_dir(const CacheEnvironment& environment);

// `temporary`/vqgen-UID, made if it is missing; nullopt unless it is a real folder of this user
// that nobody else can enter: others may write beside it, and a kernel of theirs must not be run.
// `temporary` must be no unsafe_parent().
std::optional<std::filesystem::path> private_folder(const std::filesystem::path& temporary);

// The parts between colons that are not empty.
std::vector<std::filesystem::path> split_path(const std::string& text);

// Error(bad_input), which names `what`, unless the text is a number of bytes in digits alone.
std::uint64_t parse_bytes(const std::string& what, const std::string& text);

// The whole ladder: default_cache_dir(), else private_folder() of `temporary`, or of /tmp where
// that is empty or relative, else memory alone. VQGEN_CACHE_PATH is split at colons.
// Error(bad_input) where VQGEN_CACHE_MAX_BYTES is no number of bytes.
CacheOptions cache_options(const CacheEnvironment& environment);

// own: the user's folder, which must be the user's or root's. named: a folder or pack of
// VQGEN_CACHE_PATH, whose owner is trusted by naming it, so that nobody else may be able to put
// another in its place.
enum class Trust { own, named };
// Why kernels of `path` must not be run, with the remedy; empty where they may be, and where there
// is nothing.
std::string distrust(const std::filesystem::path& path, Trust trust);

// Makes the folder and those above it that are missing, which others cannot write to whatever the
// umask is.
std::error_code make_closed_folders(const std::filesystem::path& folder);

}  // namespace vqgen
