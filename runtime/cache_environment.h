// The variables that decide where kernels are cached, for whoever reads the environment: the tool
// and the library, so that both find the same kernels.
#pragma once

#include <optional>
#include <string>

#include "runtime/cache/places.h"

namespace vqgen {

// `variable` looks one up by its name; nullopt where it is not set.
inline CacheEnvironment read_cache_environment(
    std::optional<std::string> (*variable)(const char* name)) {
  return {.vqgen_cache_dir = variable("VQGEN_CACHE_DIR"),
          .xdg_cache_home = variable("XDG_CACHE_HOME"),
          .home = variable("HOME"),
          .vqgen_cache_path = variable("VQGEN_CACHE_PATH"),
          .vqgen_cache_max_bytes = variable("VQGEN_CACHE_MAX_BYTES"),
          .temporary = variable("TMPDIR").value_or("/tmp")};
}

}  // namespace vqgen
