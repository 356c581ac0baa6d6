#include "runtime/prepare.h"

#include "generator/generate.h"
#include "heuristics/choose.h"
#include "heuristics/explain.h"

namespace vqgen {

Plan plan_for(const Config& config, const GpuSpec& gpu) {
  const Plan plan = with_overrides(propose(config.problem, gpu), config);
  const Verdict verdict = check(plan, config.problem, gpu);
  if (!verdict.ok) throw Error(ErrorKind::infeasible, config.source + ": /plan: " + verdict.reason);
  return plan;
}

KernelSource source_for(const Config& config, const Plan& plan, const GpuSpec& gpu,
                        Machine machine) {
  return generate(config.problem, plan, gpu, machine, explain(plan, config.problem, gpu));
}

Prepared prepare(const Config& config, const GpuSpec& gpu, const Backend& backend,
                 ArtifactCache* cache) {
  const Plan plan = plan_for(config, gpu);
  KernelSource source = source_for(config, plan, gpu, backend.machine());
  CompileResult compiled = compile_cached(backend, source, cache);
  return {plan, std::move(source), std::move(compiled.artifact), compiled.hit};
}

}  // namespace vqgen
