#include "runtime/prepare.h"

#include <fmt/format.h>

#include "core/access/access_counts.h"
#include "core/access/takes_access_counts.h"
#include "core/files/files.h"
#include "core/plan/main_kernel.h"
#include "core/problem/check.h"
#include "core/problem/head_dims.h"
#include "generator/generate.h"
#include "heuristics/explain.h"
#include "heuristics/papers/papers.h"
#include "heuristics/remedy.h"
#include "runtime/code_distribution.h"

namespace vqgen {
namespace {

Prepared compiled(const Config& config, const Planned& planned, const GpuSpec& gpu,
                  const Backend& backend, ArtifactCache* cache) {
  KernelSource source = source_for(config, planned.plan, gpu, backend.machine());
  CompileResult result = compile_cached(backend, source, cache);
  return {planned,    std::move(source),       std::move(result.artifact),
          result.hit, std::move(result.layer), std::move(result.why_missed)};
}

// The fields of the config say what propose() does not know.
void require_built(const Config& config) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::infeasible, fmt::format("{}: {}", config.source, why));
  };
  if (const auto fault = head_dim_fault(config.problem)) {
    refuse(std::string("/shape/") + fault->field + ": " + fault->message);
  }
  if (const Verdict verdict = check(config.problem); !verdict.ok) refuse(verdict.reason);
}

// The plan before access_counts move its boundaries: a tuned row's if one serves, else a chosen
// one.
Planned first_plan(const Config& config, const GpuSpec& gpu, std::span<const AccessCounts> profiles,
                   const PlanOptions& options) {
  require_built(config);
  std::string why;
  if (options.tables != nullptr && !options.tables->empty()) {
    const LadderAnswer answer = look_up(*options.tables, config, gpu, {.codes = codes_of(config)});
    if (answer.taken) {
      return {.plan = answer.taken->row.plan, .from = source_of(*answer.taken)};
    }
    why = answer.passed.empty() ? "no tuned row is of this problem; "
                                : fmt::format("{} tuned rows do not serve; ", answer.passed.size());
  }
  Planned planned;
  planned.plan = propose(config, gpu, {options.chooser, profiles});
  if (!config.plan.empty()) {
    planned.from = {Rung::override, why + "the config fixes fields, the rest is chosen"};
  } else if (options.chooser == Chooser::rules || is_of_rules(planned.plan)) {
    planned.from = {Rung::rules, why + "by heuristics"};
  } else {
    planned.from = {Rung::model,
                    why + (is_by_length(planned.plan)
                               ? "blocks share all sequences by length: the cost model's choice of "
                                 "such plans"
                               : "expected to be the fastest by the cost model")};
  }
  return planned;
}

// True if the plan was measured with the codes of the config's access_counts, boundaries included.
// The paper's strategy is asked for by name and never taken from a row.
bool measured_as_is(const Planned& planned, const Config& config, const PlaceOptions& options) {
  return planned.from.rung == Rung::exact && config.access_counts &&
         options.strategy != Strategy::paper;
}

void place_by(std::span<const AccessCounts> profiles, const Config& config, const GpuSpec& gpu,
              const PlaceOptions& options, Planned& planned) {
  if (options.strategy == Strategy::paper) {
    planned.plan = with_overrides(with_paper_fusion(planned.plan, config.problem, gpu), config);
  }
  Placed placed = place(planned.plan, config.problem, gpu, profiles, options);
  planned.plan = with_overrides(std::move(placed.plan), config);
  planned.placements = std::move(placed.operands);
  for (OperandPlacement& each : planned.placements) {
    const Placement& fixed = *placement_of(planned.plan, each.operand);
    if (fixed == each.placement) continue;
    each.placement = fixed;
    each.reasons.emplace_back("the config's own plan fixes boundaries, which go over these");
  }
}

void require_runnable(const Plan& plan, const Config& config, const GpuSpec& gpu) {
  const Verdict verdict = check(plan, config.problem, gpu);
  if (verdict.ok) return;
  const std::string why = config.plan.contains("dataflow")
                              ? with_remedy(verdict.reason, runnable_dataflows(config.problem, gpu))
                              : verdict.reason;
  throw Error(ErrorKind::infeasible, fmt::format("{}: /plan: {}", config.source, why));
}

// Adds boundaries, and requires that check() accepts the plan.
Planned placed(Planned planned, const Config& config, const GpuSpec& gpu,
               std::span<const AccessCounts> profiles, const PlaceOptions& options) {
  if (measured_as_is(planned, config, options)) {
    for (const AccessCounts& each : profiles) {
      const Placement* const measured = placement_of(planned.plan, each.operand);
      if (measured == nullptr) continue;
      planned.placements.push_back(
          {each.operand, *measured, {"as in the plan that was measured with these codes"}});
    }
  } else if (!profiles.empty()) {
    require_runnable(planned.plan, config, gpu);  // else there is nothing to place in
    place_by(profiles, config, gpu, options, planned);
  }
  require_runnable(planned.plan, config, gpu);
  return planned;
}

int resident_blocks(const Prepared& prepared, const Problem& problem, const GpuSpec& gpu) {
  const Residency residency =
      expected_residency(prepared.plan, problem, gpu, main_resources(prepared, problem).registers);
  return static_cast<int>(
      std::min<std::int64_t>(residency.occupancy.blocks, residency.blocks_an_sm(gpu)));
}

// Why the kernel is worse with its entries placed by the first one's registers; empty if it is not.
std::string worse(const Prepared& first, const Prepared& second, const Problem& problem,
                  const GpuSpec& gpu) {
  const int spills = main_resources(second, problem).spill_bytes;
  if (spills > main_resources(first, problem).spill_bytes) {
    return fmt::format("placed again by its registers: tried, but the kernel then spills {} bytes",
                       spills);
  }
  const int blocks = resident_blocks(second, problem, gpu);
  const int before = resident_blocks(first, problem, gpu);
  if (blocks >= before) return "";
  return fmt::format(
      "placed again by its registers: tried, but the kernel then takes {} and {} of {} blocks stay",
      main_resources(second, problem).registers, blocks, before);
}

}  // namespace

const KernelResources& main_resources(const Prepared& prepared, const Problem& problem) {
  return prepared.artifact.kernels.at(main_kernel(prepared.plan, problem));
}

std::vector<AccessCounts> access_counts_of(const Config& config) {
  if (!config.access_counts) return {};
  if (const std::string why = why_no_access_counts(config.problem); !why.empty()) {
    throw Error(ErrorKind::bad_input, fmt::format("{}: {}", config.source, why));
  }
  try {
    return match_access_counts(read_access_counts(std::filesystem::path(*config.access_counts)),
                               config.problem, *config.access_counts);
  } catch (const FileError& error) {  // the caller may not know that the config names that file
    throw FileError(error.code(), fmt::format("{}: {}", config.access_counts_place, error.what()));
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", config.access_counts_place, error.what()));
  }
}

std::string codes_of(const Config& config) {
  return config.access_counts ? captured_name(read_text(*config.access_counts, kMostProfileBytes))
                              : "uniform";
}

Planned plan_with(const Config& config, const GpuSpec& gpu, std::span<const AccessCounts> profiles,
                  const PlanOptions& options) {
  return placed(first_plan(config, gpu, profiles, options), config, gpu, profiles, options.place);
}

Plan plan_for(const Config& config, const GpuSpec& gpu, Chooser chooser) {
  return plan_with(config, gpu, access_counts_of(config), {.chooser = chooser}).plan;
}

KernelSource source_for(const Config& config, const Plan& plan, const GpuSpec& gpu,
                        Machine machine) {
  return generate(config.problem, plan, gpu, machine, explain(plan, config.problem, gpu));
}

Prepared prepare(const Config& config, const GpuSpec& gpu, const Backend& backend,
                 ArtifactCache* cache, const PlanOptions& options) {
  const std::vector<AccessCounts> profiles = access_counts_of(config);
  const Planned start = first_plan(config, gpu, profiles, options);
  PlaceOptions bounds = options.place;
  bounds.registers = std::nullopt;
  Prepared first =
      compiled(config, placed(start, config, gpu, profiles, bounds), gpu, backend, cache);
  const int registers = main_resources(first, config.problem).registers;
  if (profiles.empty() || registers == 0) return first;  // the host's kernels have none
  bounds.registers = registers;
  Planned again = placed(start, config, gpu, profiles, bounds);
  if (again.plan == first.plan) {
    first.placements = std::move(again.placements);
    return first;
  }
  Prepared second = compiled(config, again, gpu, backend, cache);
  const std::string why = worse(first, second, config.problem, gpu);
  if (why.empty()) return second;
  for (OperandPlacement& each : first.placements) each.reasons.push_back(why);
  return first;
}

}  // namespace vqgen
