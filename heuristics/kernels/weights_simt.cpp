// Plans of the dequantization of weights, which is bound by the bytes it writes: the grid is one or
// a few waves, and codebooks are in shared memory if a block loads little compared with what it
// writes.
#include <algorithm>
#include <cmath>

#include "core/ceil_div.h"
#include "heuristics/kernels/linear_instructions.h"
#include "heuristics/kernels/slice.h"
#include "heuristics/occupancy.h"

namespace vqgen {
namespace {

constexpr int kRegisters = 64;         // per thread, about
constexpr int kLongestChunk = 8192;    // columns
constexpr int kTogether = 4;           // octets of a lane that load together, mostly
constexpr int kShortestChunk = 64;     // with codebooks in shared memory
constexpr int kMostRows = 1024;        // per block
constexpr double kShortRows = 512;     // columns of a row that cost as much as writing them
constexpr double kBeginning = 1024;    // octets' worth of a block's start
constexpr double kWorthFilling = 1;    // bytes fetched to shared memory for one that is written
constexpr double kWorthCopies = 0.25;  // bytes stored to shared memory for one that is written

// Bytes of the codebooks that a block loads.
double codebook_bytes(const vq::WeightRowsConfig& config) {
  return 2.0 * vq::units_per_chunk(config) *
         static_cast<double>(vq::unit_codebook_elements(config.weights));
}
double written_bytes(const WeightsSimt& plan) {
  return 2.0 * plan.weight_rows * plan.chunk_columns;
}

std::int64_t resident_blocks(const WeightsSimt& plan, const WeightDequantize& op,
                             const GpuSpec& gpu) {
  const std::int64_t bytes = call_shape(plan, op).main_shared_bytes();
  return std::int64_t{std::max(occupancy(gpu, plan.threads, kRegisters, bytes).blocks, 1)} *
         gpu.sms;
}

// Time of the grid's waves, in octets of a block.
double waves_of(const WeightsSimt& plan, const WeightDequantize& op, const GpuSpec& gpu) {
  const std::int64_t blocks = ceil_div(op.shape.rows, std::int64_t{plan.weight_rows}) *
                              ceil_div(op.shape.in_features, std::int64_t{plan.chunk_columns});
  const std::int64_t resident = resident_blocks(plan, op, gpu);
  // Blocks of the last wave have more of their SM each.
  const double waves = std::max(1.0, static_cast<double>(ceil_div(blocks, std::int64_t{gpu.sms})) *
                                         gpu.sms / static_cast<double>(resident));
  const bool near = plan.codebook != all_global();
  const double fill = near ? codebook_bytes(configured(plan, op)) / 16 : 0;
  const double turn = kTogether * plan.threads;
  const double octets = std::ceil(written_bytes(plan) / 16 / turn) * turn;
  return waves * (octets * (1 + kShortRows / plan.chunk_columns) + kBeginning + fill);
}

// The plan with the rows per block and the columns with which the grid's waves end soonest.
WeightsSimt shared_out(WeightsSimt plan, const WeightDequantize& op, const GpuSpec& gpu,
                       int least_chunk) {
  const std::int64_t unit = configured(plan, op).unit_columns;
  WeightsSimt best = plan;
  double least = 0;
  for (std::int64_t wanted = kLongestChunk; wanted >= least_chunk; wanted /= 2) {
    const std::int64_t parts = ceil_div(op.shape.in_features, wanted);
    const std::int64_t even =
        ceil_div(ceil_div(op.shape.in_features, parts), std::int64_t{vq::kDecodedColumns}) *
        vq::kDecodedColumns;
    const std::int64_t chunk = fitting_chunk(even, vq::kDecodedColumns, unit, op.shape.in_features);
    if (chunk == 0) break;
    plan.chunk_columns = static_cast<int>(chunk);
    for (plan.weight_rows = 1; plan.weight_rows <= kMostRows; plan.weight_rows *= 2) {
      const double time = waves_of(plan, op, gpu);
      if ((least == 0 || time < least) && check(plan, op, gpu).ok) {
        best = plan;
        least = time;
      }
      if (plan.weight_rows >= op.shape.rows) break;
    }
  }
  return best;
}

}  // namespace

void judge_plan(Judge& judge, const WeightsSimt& plan, const WeightDequantize& op,
                const GpuSpec& gpu) {
  judge_codebooks(judge, op.weights,
                  weight_units(op.weights, op.shape.out_features, op.shape.in_features), "weights",
                  gpu);
  const auto config = configured(plan, op);
  const int chunk = plan.chunk_columns;
  judge.require(chunk % vq::kDecodedColumns == 0, "chunk_columns {} is not a multiple of {}", chunk,
                vq::kDecodedColumns);
  judge.require(
      config.unit_columns >= op.shape.in_features || chunk % config.unit_columns == 0 ||
          config.unit_columns % chunk == 0,
      "chunk_columns {} neither divides nor is a multiple of the {} columns of a codebook", chunk,
      config.unit_columns);
  constexpr double kMostElements = 1 << 30;
  judge.require(1.0 * plan.weight_rows * chunk <= kMostElements,
                "{} rows of {} columns are too much for a block; lower weight_rows",
                plan.weight_rows, chunk);
  if (!judge.ok()) return;
  judge_placement(judge, config.weights, vq::units_per_chunk(config), "weights");
  const bool near = plan.codebook != all_global() || op.weights.stage_scales;
  judge.require(!near || config.unit_rows >= op.shape.out_features ||
                    config.unit_rows % plan.weight_rows == 0,
                "the {} rows of a tile are not a multiple of weight_rows {}, whose codebook and "
                "scales kept near serve one tile",
                config.unit_rows, plan.weight_rows);
  const vq::CallShape shape = call_shape(plan, op);
  constexpr std::int64_t kMostGrid = 65535;  // along y
  judge.require(
      shape.launches[0].y <= kMostGrid,
      "{} chunks of {} columns are more than the {} blocks of a grid's second axis; raise "
      "chunk_columns",
      shape.launches[0].y, chunk, kMostGrid);
  judge_block(judge, plan.threads, shape.shared_bytes(), gpu);
}

WeightsSimt choose_plan(WeightsSimt plan, const WeightDequantize& op, const GpuSpec& gpu) {
  WeightsSimt far = plan;
  far.codebook = all_global();
  far = shared_out(far, op, gpu, kLongestChunk);
  plan.codebook = all_shared(op.weights.entries());
  plan = shared_out(plan, op, gpu, kShortestChunk);
  if (!check(plan, op, gpu).ok ||
      codebook_bytes(configured(plan, op)) > kWorthFilling * written_bytes(plan)) {
    return far;
  }
  // Copies, of which lanes read without conflicts, where they cost no room for blocks.
  const int copies = 128 / op.weights.held_bytes();
  WeightsSimt with_copies = plan;
  with_copies.codebook = all_replicated(op.weights.entries(), copies);
  if (copies * codebook_bytes(configured(plan, op)) <= kWorthCopies * written_bytes(plan) &&
      check(with_copies, op, gpu).ok &&
      resident_blocks(with_copies, op, gpu) == resident_blocks(plan, op, gpu)) {
    return with_copies;
  }
  return plan;
}

void add_candidates(Candidates& to, WeightsSimt plan, const WeightDequantize& op,
                    SpacePlacement allowed) {
  using P = WeightsSimt;
  if (allowed == SpacePlacement::any) to.add(choose_plan(plan, op, to.gpu));
  const std::vector<Placement> placements = whole_placements(op.weights, allowed);
  for_each_of(plan,
              {{&P::threads, {256, 512, 1024}},
               {&P::weight_rows, {1, 4, 8, 16, 32, 64, 256}},
               {&P::chunk_columns, {64, 512, 1024, 2048, 4096}}},
              [&] {
                if (plan.chunk_columns < 2 * op.shape.in_features) to.add_each(plan, placements);
              });
}

PlanUse use_of(const WeightsSimt& plan, const WeightDequantize& op) {
  const auto config = configured(plan, op);
  const vq::CallShape shape = call_shape(plan, op);
  PlanUse use{
      .threads = plan.threads, .blocks = shape.blocks(), .shared_bytes = shape.main_shared_bytes()};
  OperandUse weights{.operand = Operand::weights, .format = config.weights};
  weights.units = vq::units_per_chunk(config);
  weights.lane_units = static_cast<int>(std::min<std::int64_t>(
      weights.units, ceil_div(std::int64_t{32} * vq::kDecodedColumns, config.unit_columns)));
  weights.tensor_units = weight_units(op.weights, op.shape.out_features, op.shape.in_features);
  weights.lookups = op.elements() / op.weights.vector_size * op.weights.num_codebooks;
  weights.fills = static_cast<double>(use.blocks);
  weights.code_bytes = stored_code_bytes(op.shape.rows, op.shape.in_features, op.weights);
  use.operands = {weights};
  return use;
}

// No coefficients are fitted to it yet: the counts order candidates for the tuner's first looks, at
// the GPU's ceilings.
void count_work(BlockWork& to, const WeightsSimt& plan, const WeightDequantize& op,
                const PlanUse& use, ConflictTable& conflicts) {
  const VqFormat& format = op.weights;
  const double turns = std::ceil(written_bytes(plan) / 2 / vq::kDecodedColumns / plan.threads);
  const double octets = turns * plan.threads / 32;  // of warps
  const double lookups = octets * vq::kDecodedColumns / format.vector_size * format.num_codebooks;
  add_lookups(to, use.operands.front(), lookups, conflicts);
  // A code is read, shifted and added; sums are scaled, rounded and stored.
  to.arithmetic += lookups * (4 + rebuild_instructions(format) + 2 * format.vector_size);
  to.arithmetic += octets * (16 + group_instructions(format));
  to.chain += 1 + turns;
  to.prologue += 2;
  to.registers = kRegisters;
}

std::vector<std::string> explain_plan(const WeightsSimt& plan, const WeightDequantize& op) {
  const auto config = configured(plan, op);
  return {fmt::format("weight_rows {}: of {} columns, {} codebook sets", plan.weight_rows,
                      plan.chunk_columns, vq::units_per_chunk(config))};
}

}  // namespace vqgen
