// The folder of the sources that tests read: the build's, or VQGEN_SOURCE_DIR for binaries built on
// another machine.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace vqgen::test {

inline std::filesystem::path source_folder() {
  const char* const given = std::getenv("VQGEN_SOURCE_DIR");
  return given != nullptr ? given : VQGEN_SOURCE_DIR;
}

}  // namespace vqgen::test
