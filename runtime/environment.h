// Reads the environment for the tool and the library, so that both find the same kernels and the
// same tuned tables.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "heuristics/tuned/tables.h"
#include "runtime/cache/places.h"

namespace vqgen {

// The variables that decide; empty ones count as unset.
struct TunedEnvironment {
  std::optional<std::string> vqgen_tuned_path = {};  // VQGEN_TUNED_PATH
  std::optional<std::string> xdg_data_home = {};     // XDG_DATA_HOME
  std::optional<std::string> home = {};              // HOME
};

// XDG_DATA_HOME/vqgen/tuned, else HOME/.local/share/vqgen/tuned; nullopt if neither is set.
// Relative values count as unset (XDG's rule).
std::optional<std::filesystem::path> default_tuned_dir(const TunedEnvironment& environment);

// The user's tables in the order of look-up: VQGEN_TUNED_PATH's files and the *.jsonl files of its
// folders by name, else the files of the default folder, which need not exist. A named path that is
// missing is returned too, so that reading it fails.
std::vector<std::filesystem::path> table_files(const TunedEnvironment& environment);

// The user's tables, then the shipped ones. Throws Error(bad_input) for a damaged table with
// Damage::fail.
std::shared_ptr<const TunedTables> find_tables(const TunedEnvironment& environment, Damage damage);

// Returns nullopt if the variable is not set, or empty.
inline std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

inline CacheEnvironment read_cache_environment() {
  return {.vqgen_cache_dir = environment_variable("VQGEN_CACHE_DIR"),
          .xdg_cache_home = environment_variable("XDG_CACHE_HOME"),
          .home = environment_variable("HOME"),
          .vqgen_cache_path = environment_variable("VQGEN_CACHE_PATH"),
          .vqgen_cache_max_bytes = environment_variable("VQGEN_CACHE_MAX_BYTES"),
          .temporary = environment_variable("TMPDIR").value_or("/tmp")};
}

inline TunedEnvironment read_tuned_environment() {
  return {.vqgen_tuned_path = environment_variable("VQGEN_TUNED_PATH"),
          .xdg_data_home = environment_variable("XDG_DATA_HOME"),
          .home = environment_variable("HOME")};
}

// VQGEN_DEPENDENT_LAUNCHES, 0 or 1; true if it is not set. Throws Error(bad_input).
inline bool read_dependent_launches() {
  const std::string value = environment_variable("VQGEN_DEPENDENT_LAUNCHES").value_or("1");
  if (value == "0" || value == "1") return value == "1";
  throw Error(ErrorKind::bad_input,
              "VQGEN_DEPENDENT_LAUNCHES is '" + value + "'; set it to 0 or 1, or not at all");
}

}  // namespace vqgen
