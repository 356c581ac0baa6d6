// Problem to compiled kernel.
#pragma once

#include "core/config.h"
#include "core/gpu_spec.h"
#include "core/kernel_source.h"
#include "runtime/backend/backend.h"
#include "runtime/cache/artifact_cache.h"

namespace vqgen {

struct Prepared {
  Plan plan;
  KernelSource source;
  Artifact artifact;
  bool cache_hit = false;
};

// The plan: propose() with the config's own fields laid over it. Error(infeasible) with check()'s
// reason where the GPU cannot run it.
Plan plan_for(const Config& config, const GpuSpec& gpu);

// The kernel text of the config's problem for a GPU and a machine layer.
KernelSource source_for(const Config& config, const Plan& plan, const GpuSpec& gpu,
                        Machine machine);

// Plan, text, and the artifact from the cache or the backend's compiler. `cache` may be null.
Prepared prepare(const Config& config, const GpuSpec& gpu, const Backend& backend,
                 ArtifactCache* cache);

}  // namespace vqgen
