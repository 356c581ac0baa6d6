// Where kernels are cached, from the environment as the caller read it, and whether code may be
// loaded from a place: only if nobody but its owner can write there.
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
  std::vector<std::filesystem::path> read_only = {};  // folders and packs, in the order of look-up
  std::optional<std::filesystem::path> folder = {};   // written, and asked last; none: in memory
  std::string warning = {};                           // a message for the user about the choice
  std::uint64_t max_bytes = kDefaultCacheBytes;       // of `folder`
  std::chrono::milliseconds lock_wait{30'000};  // for another process that compiles the same key
  bool explain_misses = false;                  // by the nearest entry, which reads many
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

// VQGEN_CACHE_DIR, else XDG_CACHE_HOME/vqgen, else HOME/.cache/vqgen; nullopt if none is set. A
// relative XDG_CACHE_HOME or HOME counts as unset (XDG's rule).
std::optional<std::filesystem::path> default_cache_dir(const CacheEnvironment& environment);

// `temporary`/vqgen-UID, made if it is missing. Returns nullopt unless it is a real folder of this
// user that nobody else can enter: another user's kernel must not run. `temporary` must not be an
// unsafe_parent().
std::optional<std::filesystem::path> private_folder(const std::filesystem::path& temporary);

// The parts between colons that are not empty.
std::vector<std::filesystem::path> split_path(const std::string& text);

// Throws Error(bad_input), which names `what`, unless the text is a number of bytes in digits
// alone.
std::uint64_t parse_bytes(const std::string& what, const std::string& text);

// Tries default_cache_dir(), then private_folder() of `temporary` (or of /tmp if that is empty or
// relative), then memory alone. Splits VQGEN_CACHE_PATH at colons. Throws Error(bad_input) if
// VQGEN_CACHE_MAX_BYTES is not a number of bytes.
CacheOptions cache_options(const CacheEnvironment& environment);

// own: the user's folder, which must belong to the user or root. named: a folder or pack of
// VQGEN_CACHE_PATH, whose owner the user trusts by naming it; nobody else may be able to replace
// it.
enum class Trust { own, named };
// Why kernels of `path` must not run, with the remedy; empty if they may, and if nothing is there.
std::string distrust(const std::filesystem::path& path, Trust trust);

// Makes the folder and its missing parents, without write permission for others whatever the umask
// is.
std::error_code make_closed_folders(const std::filesystem::path& folder);

}  // namespace vqgen
