// What the opaque handles of vqgen.h hold, and what a runtime is made of.
#pragma once

#include <vqgen/vqgen.h>

#include "runtime/library/registry.h"

struct vqgen_runtime {
  std::unique_ptr<vqgen::library::Registry> registry;
};

struct vqgen_op {
  std::shared_ptr<const vqgen::library::Record> record;
  vqgen::library::Provenance provenance;
};

namespace vqgen::library {

// From the options that a program gave and the environment. Error(bad_input) where options are
// none; Error(device) where there is no such device.
std::unique_ptr<Registry> make_registry(const vqgen_options& options);

}  // namespace vqgen::library
