// What the opaque handles of vqgen.h hold.
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
