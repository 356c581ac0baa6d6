// The host's half of a dataflow: what plans can run, which one is taken, which are worth a look,
// and what one does. Each dataflow has a file in this folder that says all of it; the device's half
// is templates/vq/kernels/.
#pragma once

#include "heuristics/cost/work.h"
#include "heuristics/kernels/judge.h"
#include "heuristics/space/candidates.h"

namespace vqgen {

template <class P>
struct Slice {
  using Op = OpOf<P>;

  // Whether the GPU can run the plan, whose fields are in their ranges (check.h).
  static void judge(Judge& judge, const P& plan, const Op& op, const GpuSpec& gpu);
  // The plan by rules of thumb, on the dataflow's own terms. check() may refuse it, with the reason
  // why the dataflow cannot do the problem.
  static P choose(const Op& op, const GpuSpec& gpu);
  // Adds the plans that are worth a look, in a fixed order.
  static void add_candidates(Candidates& to, const Op& op, SpacePlacement allowed);
  // What its blocks do with the codebooks.
  static PlanUse use(const P& plan, const Op& op);
  // What one block does, added to what all dataflows of the op count (cost/work.h).
  static void count(BlockWork& to, const P& plan, const Op& op, const PlanUse& use,
                    ConflictTable& conflicts);
  // What `vqgen explain` says of this dataflow beside its op's lines; most have nothing to add.
  static std::vector<std::string> explain(const P&, const Op&) { return {}; }
};

#define VQGEN_SLICE(P)                                                   \
  template <>                                                            \
  void Slice<P>::judge(Judge&, const P&, const Op&, const GpuSpec&);     \
  template <>                                                            \
  P Slice<P>::choose(const Op&, const GpuSpec&);                         \
  template <>                                                            \
  void Slice<P>::add_candidates(Candidates&, const Op&, SpacePlacement); \
  template <>                                                            \
  PlanUse Slice<P>::use(const P&, const Op&);                            \
  template <>                                                            \
  void Slice<P>::count(BlockWork&, const P&, const Op&, const PlanUse&, ConflictTable&);
VQGEN_SLICE(AttentionLanes)
VQGEN_SLICE(AttentionFragments)
VQGEN_SLICE(AttentionTables)
VQGEN_SLICE(AttentionChannels)
VQGEN_SLICE(LinearLanes)
VQGEN_SLICE(LinearFragments)
VQGEN_SLICE(LinearTables)
VQGEN_SLICE(LinearWarpgroups)
VQGEN_SLICE(LinearSlices)
VQGEN_SLICE(AppendLanes)
#undef VQGEN_SLICE

#define VQGEN_EXPLAINS(P) \
  template <>             \
  std::vector<std::string> Slice<P>::explain(const P&, const Op&);
VQGEN_EXPLAINS(AttentionTables)
VQGEN_EXPLAINS(AttentionChannels)
VQGEN_EXPLAINS(LinearSlices)
VQGEN_EXPLAINS(AppendLanes)
#undef VQGEN_EXPLAINS

// check() of a dataflow's own plan and op.
template <class P>
Verdict check(const P& plan, const OpOf<P>& op, const GpuSpec& gpu) {
  Judge judge;
  judge_problem(judge, op);
  judge_ranges(judge, plan);
  if (judge.ok()) Slice<P>::judge(judge, plan, op, gpu);
  return judge.verdict();
}

}  // namespace vqgen
