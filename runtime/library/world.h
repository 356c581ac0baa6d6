// What a runtime is made of, from the options that a program gave and the environment: the
// library's edge to the world, as cli/ is the tool's, and the one place of it that reads the
// environment.
#pragma once

#include <vqgen/vqgen.h>

#include <memory>

#include "runtime/library/registry.h"

namespace vqgen::library {

// Error(bad_input) where options are none; Error(device) where there is no such device.
std::unique_ptr<Registry> make_registry(const vqgen_options& options);

}  // namespace vqgen::library
