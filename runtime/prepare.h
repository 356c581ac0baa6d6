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

// A plan, how its boundaries came about (nothing of that without access counts), and
// where it comes from.
struct Planned {
  Plan plan;
  std::vector<OperandPlacement> placements = {};
  PlanSource from = {};
};

struct PlanOptions {
  Chooser chooser = kDefaultChooser;
  PlaceOptions place = {};
  const TunedTables* tables = nullptr;  // asked before the chooser; null: none are
};

struct Prepared : Planned {
  KernelSource source;
  Artifact artifact;
  bool cache_hit = false;
  std::string cache_layer = {};  // of a hit, and of a miss why, as in CompileResult
  std::string why_missed = {};
};

// What the plan's own kernel takes, the one that looks entries up (core/plan/main_kernel.h).
const KernelResources& main_resources(const Prepared& prepared, const Problem& problem);

// The profiles of the config's operands; none where it names no file.
std::vector<AccessCounts> access_counts_of(const Config& config);

// MeasurePolicy::codes that the config asks tuned tables for: "uniform", or "profile:" and the
// first 12 digits of its access_counts file's digest.
std::string codes_of(const Config& config);

// The plan: of the nearest row of tuned tables that serves (heuristics/tuned/ladder.h), else
// propose() around the config's own fields; boundaries by place() where there are profiles, in
// strategy paper the paper's fusion too, and the config's own fields laid over all. The plan of an
// exact row for the config's access_counts stands as it was measured, but for strategy paper.
// Error(infeasible) with check()'s reason where the GPU cannot run it.
Planned plan_with(const Config& config, const GpuSpec& gpu, std::span<const AccessCounts> profiles,
                  const PlanOptions& options = {});
// Its plan, by the config's own access_counts.
Plan plan_for(const Config& config, const GpuSpec& gpu, Chooser chooser = kDefaultChooser);

// The kernel text of the config's problem for a GPU and a machine layer.
KernelSource source_for(const Config& config, const Plan& plan, const GpuSpec& gpu,
                        Machine machine);

// Plan, text, and the artifact from the cache or the backend's compiler. `cache` may be null.
//
// With access_counts it is placed and compiled with no entries in registers first, and once more
// with the boundaries that the registers of that kernel leave room for (VQ-LLM, V-B), where these
// differ. The first kernel stays where the second spills more or loses resident blocks.
Prepared prepare(const Config& config, const GpuSpec& gpu, const Backend& backend,
                 ArtifactCache* cache, const PlanOptions& options = {});

}  // namespace vqgen
