// The host's half of a dataflow: what plans can run, which one is taken, which are worth a look,
// and what one does. Each dataflow has a file in this folder that says all of it, as overloads of
// the functions below; the device's half is templates/vq/kernels/.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "heuristics/cost/work.h"
#include "heuristics/space.h"

namespace vqgen {

// Receives the plans that each dataflow's add_candidates() offers in a fixed order, and holds
// values that several axes share.
struct Candidates {
  Candidates(const Problem& for_problem, const GpuSpec& on_gpu)
      : problem(for_problem), gpu(on_gpu) {}
  virtual ~Candidates() = default;

  // May come twice, and check() may refuse it.
  virtual void add(const Plan& plan) = 0;
  // add() with each of these placements of the single operand's codebooks.
  virtual void add_each(Plan plan, std::span<const Placement> placements) {
    for (const Placement& each : placements) {
      *placement_of(plan, Operand::weights) = each;
      add(plan);
    }
  }

  const Problem& problem;
  const GpuSpec& gpu;
};

// A field of a plan and the values that are worth a try.
template <class P>
struct Axis {
  int P::*field;
  std::vector<int> values;
};

// Calls act() with each combination of the axes' values in `plan`, the last axis the fastest.
template <class P>
void for_each_of(P& plan, const std::vector<Axis<P>>& axes, const std::function<void()>& act,
                 std::size_t first = 0) {
  if (first == axes.size()) return act();
  for (const int value : axes[first].values) {
    plan.*axes[first].field = value;
    for_each_of(plan, axes, act, first + 1);
  }
}

// A number and its halves down to 1; nothing of 0.
inline std::vector<int> halvings(int number) {
  std::vector<int> values;
  for (; number > 0; number /= 2) values.push_back(number);
  return values;
}

// Whole codebooks everywhere: global, shared once, and with a copy for each lane of a phase or for
// half of them (conflicts.h).
std::vector<Placement> whole_placements(const VqFormat& format, SpacePlacement allowed);
// whole_placements() for a dataflow that holds an entry in so many bytes.
std::vector<Placement> whole_placements(const VqFormat& format, SpacePlacement allowed,
                                        int held_bytes);

// whole_placements() without those with copies.
std::vector<Placement> single_placements(const VqFormat& format, SpacePlacement allowed);

// Target warps per SM by which a grid is split, if all were resident: from one in four scheduler
// slots up to more than can be resident.
inline constexpr std::array kWarpTargets{4, 8, 16, 32, 64};

// The longest chunk of whole runs, at most `columns`, that holds whole codebook units or lies in
// one; 0 where there is none.
std::int64_t fitting_chunk(std::int64_t columns, std::int64_t run, std::int64_t unit,
                           std::int64_t in_features);

// The plans of all dataflows of the problem's op. Requires that check() accepts the problem.
void add_plans(Candidates& to, SpacePlacement allowed);

// The functions of a plan P and its op:
//
//   judge_plan      decides if the GPU can run the plan, whose fields are in range (check.h)
//   choose_plan     completes the default plan by rules of thumb, on the dataflow's own terms;
//                   check() may refuse the result, with the reason
//   add_candidates  adds the plans worth considering, in a fixed order, from the default plan
//   use_of          codebook use of its blocks, mostly by op (attention.h, linear.h)
//   count_work      work of one block, added to what all dataflows of the op count (cost/work.h)
#define VQGEN_SLICE(P)                                                 \
  void judge_plan(Judge&, const P&, const OpOf<P>&, const GpuSpec&);   \
  P choose_plan(P, const OpOf<P>&, const GpuSpec&);                    \
  void add_candidates(Candidates&, P, const OpOf<P>&, SpacePlacement); \
  void count_work(BlockWork&, const P&, const OpOf<P>&, const PlanUse&, ConflictTable&);
VQGEN_SLICE(AttentionSimt)
VQGEN_SLICE(AttentionMma)
VQGEN_SLICE(AttentionLut)
VQGEN_SLICE(AttentionChannels)
VQGEN_SLICE(AttentionInt8Mma)
VQGEN_SLICE(AttentionHistogram)
VQGEN_SLICE(LinearSimt)
VQGEN_SLICE(LinearMma)
VQGEN_SLICE(LinearLut)
VQGEN_SLICE(LinearWgmma)
VQGEN_SLICE(LinearSlicedCodebook)
VQGEN_SLICE(LinearInt8Mma)
VQGEN_SLICE(LinearInt8Wgmma)
VQGEN_SLICE(LinearWgmmaLargeM)
VQGEN_SLICE(AppendSimt)
VQGEN_SLICE(AppendMma)
VQGEN_SLICE(AppendGemm)
VQGEN_SLICE(DequantizeSimt)
VQGEN_SLICE(MergeSimt)
VQGEN_SLICE(ScalarForms)
VQGEN_SLICE(WeightsSimt)
#undef VQGEN_SLICE
PlanUse use_of(const AppendSimt&, const KvAppend&);
PlanUse use_of(const AppendMma&, const KvAppend&);
PlanUse use_of(const AppendGemm&, const KvAppend&);
PlanUse use_of(const DequantizeSimt&, const KvDequantize&);
PlanUse use_of(const MergeSimt&, const AttentionMerge&);
PlanUse use_of(const ScalarForms&, const ScalarMatrix&);
PlanUse use_of(const WeightsSimt&, const WeightDequantize&);

// Lines of `vqgen explain` about a dataflow, after its op's; most have none.
template <class P>
std::vector<std::string> explain_plan(const P&, const OpOf<P>&) {
  return {};
}
std::vector<std::string> explain_plan(const AttentionLut&, const AttentionDecode&);
std::vector<std::string> explain_plan(const AttentionChannels&, const AttentionDecode&);
std::vector<std::string> explain_plan(const AttentionInt8Mma&, const AttentionDecode&);
std::vector<std::string> explain_plan(const AttentionHistogram&, const AttentionDecode&);
std::vector<std::string> explain_plan(const LinearSlicedCodebook&, const Linear&);
std::vector<std::string> explain_plan(const AppendSimt&, const KvAppend&);
std::vector<std::string> explain_plan(const AppendMma&, const KvAppend&);
std::vector<std::string> explain_plan(const AppendGemm&, const KvAppend&);
std::vector<std::string> explain_plan(const DequantizeSimt&, const KvDequantize&);
std::vector<std::string> explain_plan(const MergeSimt&, const AttentionMerge&);
std::vector<std::string> explain_plan(const ScalarForms&, const ScalarMatrix&);
std::vector<std::string> explain_plan(const WeightsSimt&, const WeightDequantize&);

// Rules of plans that hold for any op. The range that each field declares is checked here, as plans
// come from code too, not only from JSON.
template <HasFields T>
void judge_ranges(Judge& judge, const T& plan) {
  for_each_field<T>([&]<class Member>(const Field<T, Member>& field) {
    if constexpr (std::is_same_v<Member, int>) {
      const double value = plan.*field.member;
      judge.require(value >= field.rule.min && value <= field.rule.max,
                    "{} {} is not within {:.0f}..{:.0f}", field.name, value, field.rule.min,
                    field.rule.max);
    } else if constexpr (HasFields<Member>) {
      judge_ranges(judge, plan.*field.member);
    }
  });
}

// `units` is the number of units whose codebooks a block holds at once.
void judge_placement(Judge& judge, const vq::FormatConfig& format, std::int64_t units,
                     const char* operand);

// Checks that an operand's codebooks, of all units, fit the GPU's memory.
void judge_codebooks(Judge& judge, const VqFormat& format, std::int64_t units,
                     std::string_view operand, const GpuSpec& gpu);
// Checks a cache's codebooks.
template <class Op>
void judge_codebooks(Judge& judge, const Op& op, const GpuSpec& gpu) {
  const auto& shape = op.shape;
  for_each_operand(op, [&](Operand operand, const VqFormat& format) {
    for_each_part(format, row_dim(shape, operand), [&](const VqFormat& part, int channels) {
      judge_codebooks(judge, part, kv_units(part, shape.kv_heads, channels), enum_name(operand),
                      gpu);
    });
  });
}
// Rules of dataflows with entries of up to 8 elements; with up to 4 stages; with both, in one
// format and without int8 entries of 2 elements.
void judge_width(Judge& judge, const VqFormat& format, const char* operand);
void judge_stages(Judge& judge, const VqFormat& format, const char* operand);
void judge_narrow(Judge& judge, const VqFormat& format, const char* operand);
void judge_block(Judge& judge, int threads, std::int64_t shared_bytes, const GpuSpec& gpu);

// Rules of blocks of products that have gate rows and not their up rows.
void judge_pairs(Judge& judge, Combine combine, int block_outputs, int gate_rows);
// Rules of a plan that merges `splits` splits; its last blocks need `counters` counters.
void judge_combine(Judge& judge, Combine combine, int splits, std::int64_t counters);

// check() of a dataflow's own plan and op.
template <class P>
Verdict check(const P& plan, const OpOf<P>& op, const GpuSpec& gpu) {
  Judge judge;
  judge_problem(judge, op);
  judge_ranges(judge, plan);
  if (judge.ok()) judge_plan(judge, plan, op, gpu);
  return judge.verdict();
}

}  // namespace vqgen
