// Plans of the sliced_codebook GEMM: the fewest slices such that one fits a block, and outputs for
// one wave. A block has whole loads of codes of one chunk, stage and slice.
#include <array>
#include <limits>

#include "heuristics/kernels/linear.h"

namespace vqgen {
namespace {

// True if a block's shared memory has no room for kTimes the codebooks of a unit: only then are
// slices worthwhile.
bool wants_slices(const Linear& op, const GpuSpec& gpu) {
  constexpr std::int64_t kTimes = 4;
  const std::int64_t codebooks =
      std::int64_t{op.weights.num_codebooks} * op.weights.entries() * op.weights.held_bytes();
  return op.weights.decoder == Decoder::table && codebooks * kTimes > gpu.shared_bytes_per_block;
}

// The widest loads of codes that rows of codes are whole ones of; halves of it serve too. 0 where
// the codes of a sub-vector are no part of a word: no slices then.
int widest_load(const Linear& op) {
  const VqFormat& format = op.weights;
  const std::int64_t row = vq::row_words(op.shape.in_features, format.vector_size,
                                         format.num_codebooks, format.index_bits);
  // Each load must bring whole sub-vectors, also if it is shorter than a word.
  if (32 % (format.num_codebooks * format.index_bits) != 0) return 0;
  return row % 4 == 0 ? 4 : row % 2 == 0 ? 2 : 1;
}

// All columns that one codebook serves, in whole steps. Requires code_words from widest_load().
int whole_columns(const Linear& op, const LinearSlicedCodebook& plan) {
  const auto config = configured(plan, op);
  const std::int64_t step = vq::slice_step_columns(config);
  const std::int64_t columns = std::min<std::int64_t>(op.shape.in_features, config.unit_columns);
  return static_cast<int>(std::min(ceil_div(columns, step), (1 << 24) / step) * step);
}

// Outputs per warp, in whole groups, with which blocks fill the GPU once.
int one_wave_outputs(const Linear& op, const LinearSlicedCodebook& plan, const GpuSpec& gpu) {
  const std::int64_t of_one = blocks_of_rows(op, plan) * vq::splits(configured(plan, op));
  const std::int64_t warps = std::max<std::int64_t>(1, gpu.sms / of_one) * (plan.threads / 32);
  const std::int64_t groups = ceil_div(op.shape.out_features, warps * vq::kSliceGroup);
  return static_cast<int>(std::min<std::int64_t>(4096, groups * vq::kSliceGroup));
}

}  // namespace

void judge_plan(Judge& judge, const LinearSlicedCodebook& plan, const Linear& op,
                const GpuSpec& gpu) {
  const VqFormat& format = op.weights;
  judge.require(
      format.decoder == Decoder::table,
      "decoder {} has {} entries, whose slices dataflow sliced_codebook has no use for; use "
      "dataflow mma",
      enum_name(format.decoder), format.entries());
  judge_groups(judge, format, dataflow_name(plan));
  const int code_bits = format.num_codebooks * format.index_bits;
  judge.require(code_bits <= 32 && std::has_single_bit(static_cast<unsigned>(code_bits)),
                "the codes of a sub-vector take {} bits, no half, quarter or whole of a word, as "
                "dataflow sliced_codebook takes; use another dataflow",
                code_bits);
  if (!judge.ok()) return;
  judge_code_words(judge, plan, op);
  if (!judge.ok()) return;
  const auto config = configured(plan, op);
  const int columns = vq::slice_step_columns(config);
  judge.require(plan.columns_per_block % columns == 0,
                "columns_per_block {} is not a multiple of the {} columns of a step",
                plan.columns_per_block, columns);
  judge.require(vq::chunk_in_one_unit(config),
                "columns_per_block {} touch more than the {} columns of one codebook, as dataflow "
                "sliced_codebook takes",
                plan.columns_per_block, config.unit_columns);
  const int held = vq::held_bytes(config.weights);
  judge.require(held % plan.entry_slices == 0 && held / plan.entry_slices >= 2,
                "entry_slices {} do not cut an entry of {} bytes into slices of 2 bytes or more",
                plan.entry_slices, held);
  if (!judge.ok()) return;
  judge_tile_rows(judge, config, "which its slices serve");
  judge.require(
      !config.weights.int8_entries ||
          vq::slice_sum(config) <= std::numeric_limits<std::int32_t>::max(),
      "sums of integers over columns_per_block {} pass 32 bits; use fewer or more entry_slices",
      plan.columns_per_block);
  // Sums, two sets of codes, and x of a step; addresses and what is looked up beside.
  constexpr int kBeside = 32;
  const int most = std::min(255, gpu.registers_per_sm / plan.threads) - kBeside;
  const int rows = vq::block_rows(config);
  const int words = vq::slice_group(config) * (rows + 2 * plan.code_words) +
                    rows * vq::slice_run(config) * vq::slice_x_words(config);
  judge.require(words <= most,
                "sums, codes and x take {} registers per thread, of {}; lower rows_per_block, "
                "code_words or outputs_per_warp",
                words, most);
  judge_linear(judge, plan, op, gpu);
}

LinearSlicedCodebook choose_plan(LinearSlicedCodebook plan, const Linear& op, const GpuSpec& gpu) {
  plan.rows_per_block = planned_rows(op) <= 4 ? 4 : 8;
  constexpr std::array kThreads{640, 512, 256};  // 5 warps a scheduler were best
  for (const int threads : kThreads) {
    plan.threads = threads;
    for (int words = widest_load(op); words > 0; words /= 2) {
      plan.code_words = words;
      for (int slices = 1; slices == 1 || slices * 2 <= op.weights.held_bytes(); slices *= 2) {
        plan.entry_slices = slices;
        plan.columns_per_block = whole_columns(op, plan);
        plan.outputs_per_warp = one_wave_outputs(op, plan, gpu);
        if (check(plan, op, gpu).ok) return plan;
      }
    }
  }
  return plan;
}

// Varies slices, chunks, warps and rows; outputs then fill one or two waves of blocks. No placement
// applies.
void add_candidates(Candidates& to, LinearSlicedCodebook plan, const Linear& op,
                    SpacePlacement allowed) {
  if (allowed != SpacePlacement::any || !wants_slices(op, to.gpu)) return;
  using P = LinearSlicedCodebook;
  for_each_of(
      plan, {{&P::rows_per_block, few_rows(op)}, {&P::code_words, halvings(widest_load(op))}}, [&] {
        const int step = vq::slice_step_columns(configured(plan, op));
        const int steps = whole_columns(op, plan) / step;
        std::vector<int> slices = halvings(op.weights.held_bytes() / 2);
        std::reverse(slices.begin(), slices.end());
        for_each_of(plan,
                    {{&P::columns_per_block, {steps * step, (steps + 1) / 2 * step}},
                     {&P::entry_slices, slices},
                     {&P::threads, {256, 384, 512, 640, 768, 1024}}},
                    [&] {
                      const int outputs = one_wave_outputs(op, plan, to.gpu);
                      for (const int waves : {1, 2}) {
                        plan.outputs_per_warp =
                            static_cast<int>(ceil_div(outputs, vq::kSliceGroup * waves)) *
                            vq::kSliceGroup;
                        to.add(plan);
                      }
                    });
      });
}

PlanUse use_of(const LinearSlicedCodebook& plan, const Linear& op) {
  PlanUse use = use_of<LinearSlicedCodebook>(plan, op);
  OperandUse& weights = use.operands.front();  // one stage and slice per block, in shared memory
  weights.slices = plan.entry_slices;
  weights.lookups *= weights.slices;
  weights.code_reads *= op.weights.num_codebooks * weights.slices;
  weights.tensor_units *= op.weights.num_codebooks;
  weights.format.num_codebooks = 1;
  weights.format.placement.shared = op.weights.entries();
  return use;
}

void count_work(BlockWork& to, const LinearSlicedCodebook& plan, const Linear& op,
                const PlanUse& use, ConflictTable& conflicts) {
  const auto c = configured(plan, op);
  const double warps = c.threads / 32.0;
  const double rows = vq::block_rows(c);
  const double groups = warps * c.outputs_per_warp / vq::slice_group(c);  // of all warps
  const double steps = groups * vq::slice_steps(c);
  const double lookups = steps * vq::slice_group(c) * vq::slice_run(c);
  to.lookups += lookups;
  add_levels(to, use.operands.front(), lookups, conflicts);
  // x, codes, and the sum of a group over the lanes.
  const double x_words = vq::slice_run(c) * vq::slice_x_words(c);
  to.passes += steps * (rows * x_words + vq::slice_group(c) * c.code_words) + groups * rows * 4;
  constexpr double kAddress = 2;
  // An integer dot product (DP2A) takes the time of kDot FMAs; fitted.
  constexpr double kDot = 3;
  const double multiply =
      c.weights.int8_entries ? kDot * vq::slice_x_words(c) : 2.0 * vq::slice_elements(c);
  to.arithmetic += lookups * (kAddress + rows * multiply) + groups * rows * 12;
  // Replaces add_fill()'s chained loads: 8 are in flight, so that entries arrive at L2 bandwidth.
  to.fill = vq::entries(c.weights) * c.weights.vector_size * 2.0 / (kLatencyCycles * kL2Bytes);
  to.prologue += c.weights.int8_entries ? 3 : 2;
  to.chain += steps / warps;
  to.registers = 128;
}

std::vector<std::string> explain_plan(const LinearSlicedCodebook& plan, const Linear& op) {
  const auto config = configured(plan, op);
  return {fmt::format(
      "slices: {} of the {} elements of an entry a block, {} bytes of {} entries; {} blocks read "
      "the codes of an output, and their sums are added as splits",
      vq::slice_elements(config), op.weights.vector_size, vq::slice_bytes(config),
      op.weights.entries(), vq::splits(config) / vq::chunks(config))};
}

}  // namespace vqgen
