// The environment, for those two who read it: the tool and the library, which find the same
// kernels.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

#include "core/error.h"
#include "runtime/cache/places.h"
#include "runtime/tuned_places.h"

namespace vqgen {

// nullopt where it is not set.
inline std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
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

// VQGEN_DEPENDENT_LAUNCHES, 0 or 1; true where it is not set. Error(bad_input).
inline bool read_dependent_launches() {
  const std::string value = environment_variable("VQGEN_DEPENDENT_LAUNCHES").value_or("1");
  if (value == "0" || value == "1") return value == "1";
  throw Error(ErrorKind::bad_input,
              "VQGEN_DEPENDENT_LAUNCHES is '" + value + "'; set it to 0 or 1, or not at all");
}

}  // namespace vqgen
