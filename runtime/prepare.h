// Problem to compiled kernel.
#pragma once

#include "core/gpu/gpu_spec.h"
#include "core/plan/kernel_source.h"
#include "core/problem/config.h"
#include "heuristics/choose.h"
#include "heuristics/placement/place.h"
#include "heuristics/tuned/ladder.h"
#include "runtime/backend/backend.h"
#include "runtime/cache/artifact_cache.h"

namespace vqgen {

// A plan, how its boundaries were found (empty without access counts), and where it comes from.
struct Planned {
  Plan plan;
  std::vector<OperandPlacement> placements = {};
  PlanSource from = {};
};

struct PlanOptions {
  Chooser chooser = kDefaultChooser;
  PlaceOptions place = {};
  const TunedTables* tables = nullptr;  // asked before the chooser; null: no tables
};

struct Prepared : Planned {
  KernelSource source;
  Artifact artifact;
  bool cache_hit = false;
  std::string cache_layer = {};  // on a hit the layer, on a miss the reason, as in CompileResult
  std::string why_missed = {};
};

// Resources of the plan's main kernel, which looks up entries (core/plan/main_kernel.h).
const KernelResources& main_resources(const Prepared& prepared, const Problem& problem);

// The profiles of the config's operands; empty if it names no file.
std::vector<AccessCounts> access_counts_of(const Config& config);

// The MeasurePolicy::codes for which the config consults tuned tables: "uniform", or "profile:" and
// the first 12 digits of its access_counts file's digest.
std::string codes_of(const Config& config);

// The plan of the nearest serving row of the tuned tables (heuristics/tuned/ladder.h), else
// propose()'s, with the config's fields laid over it. Profiles move boundaries by place(), but not
// those of an exact row for them. Throws Error(infeasible) if the GPU cannot run it.
Planned plan_with(const Config& config, const GpuSpec& gpu, std::span<const AccessCounts> profiles,
                  const PlanOptions& options = {});
// The plan by the config's own access_counts.
Plan plan_for(const Config& config, const GpuSpec& gpu, Chooser chooser = kDefaultChooser);

// The kernel text of the config's problem for a GPU and a machine layer.
KernelSource source_for(const Config& config, const Plan& plan, const GpuSpec& gpu,
                        Machine machine);

// The plan, its text, and its artifact from the cache (may be null) or the compiler. With
// access_counts it is compiled without entries in registers, then with as many as its registers
// allow (VQ-LLM, V-B). The first stays if the second spills more or loses resident blocks.
Prepared prepare(const Config& config, const GpuSpec& gpu, const Backend& backend,
                 ArtifactCache* cache, const PlanOptions& options = {});

}  // namespace vqgen
