// Plans of the int8_mma GEMM. Candidates vary the outputs per warp, the warps along the columns,
// the length of a load and the maker of x's bytes; warps across the outputs give each SM the same
// work in one or two blocks.
#include "core/gpu/gpu_arch.h"
#include "heuristics/kernels/linear.h"

namespace vqgen {
namespace {

constexpr int kMostWarps = 16;
// For a block alone on its SM, with two or four warps along the columns; others are slower with
// more.
constexpr int kManyWarps = 20;
constexpr bool may_have_many(int along) { return along == 2 || along == 4; }

// Scales of groups of inputs take an MMA per row, which beats scaled elements at so few rows only.
constexpr int kMostScaledRows = 2;

struct RowForm {
  int product_rows;
  int rows_per_block;
};

// Rows per block: all, or those whose sums fit the registers.
std::vector<RowForm> row_forms(const Linear& op) {
  const int rows = planned_rows(op);
  if (op.weights.group_inputs > 0) {
    if (rows > kMostScaledRows) return {};
    return {{1, rows}};
  }
  if (rows <= 4) return {{4, 4}};
  const int all = static_cast<int>(ceil_div(rows, 8)) * 8;
  std::vector<RowForm> result;
  for (const int most : {16, 32, 64}) {
    result.push_back({8, std::min(most, all)});
    if (most >= all) break;
  }
  return result;
}

// Sets the warps across the outputs so that `waves` blocks per SM share them evenly, with `along`
// warps along the columns and up to `warps` in all blocks of an SM; and splits if outputs are too
// few.
void fit_block(LinearInt8Mma& plan, const Linear& op, const GpuSpec& gpu, int along, int waves,
               int warps = kMostWarps) {
  const std::int64_t row_blocks = blocks_of_rows(op, plan);
  const std::int64_t wanted = std::max<std::int64_t>(1, std::int64_t{waves} * gpu.sms / row_blocks);
  const std::int64_t outputs = ceil_div(op.shape.out_features, wanted);
  const std::int64_t most = std::max(1, (warps / waves - plan.producer_warps) / along);
  const std::int64_t across =
      std::clamp<std::int64_t>(ceil_div(outputs, std::int64_t{plan.outputs_per_warp}), 1, most);
  plan.warps_along_columns = along;
  plan.threads = static_cast<int>(32 * (along * across + plan.producer_warps));
  plan.splits = static_cast<int>(std::max<std::int64_t>(1, wanted / blocks_of_split(op, plan)));
}

// Sets chunks of at most `runs` runs per warp along the columns, and as many splits as they leave
// columns for; false where there are none.
bool fit_chunk(LinearInt8Mma& plan, const Linear& op, std::int64_t runs) {
  const auto config = configured(plan, op);
  const std::int64_t run = vq::run_columns(config);
  const std::int64_t splits = plan.splits;
  const std::int64_t share = ceil_div(ceil_div(op.shape.in_features, splits), run) * run;
  const std::int64_t columns = std::min(share, run * runs * plan.warps_along_columns);
  const std::int64_t chunk = fitting_chunk(columns, run, config.unit_columns, op.shape.in_features);
  if (chunk == 0) return false;
  plan.chunk_columns = static_cast<int>(chunk);
  plan.splits = static_cast<int>(even_splits(ceil_div(op.shape.in_features, chunk), splits));
  return true;
}

// Who converts x to bytes, as prepack_x and producer_warps: all warps, a pre-pass, or producer
// warps.
constexpr std::array kMakers{std::pair{0, 0}, std::pair{1, 0}, std::pair{0, 2}};

// ptxas spills registers of these to make room for a second block.
bool makers_spill(const LinearInt8Mma& plan) {
  return plan.producer_warps > 0 && plan.product_rows == 8 && plan.outputs_per_warp == 16;
}

// The lengths of chunks that are tried, in runs per warp: where all warps wait for each, the longer
// the better.
std::vector<int> chunk_runs_of(const LinearInt8Mma& plan, const Linear& op) {
  return vq::in_ring(configured(plan, op)) ? std::vector{1, 2, 4} : std::vector{2, 8, 1 << 20};
}

}  // namespace

void judge_plan(Judge& judge, const LinearInt8Mma& plan, const Linear& op, const GpuSpec& gpu) {
  const bool groups = op.weights.group_inputs > 0;
  judge.require(!groups || planned_rows(op) <= kMostScaledRows,
                "weights: dataflow int8_mma takes scales of groups of inputs with {} rows of x at "
                "most, of {}; use dataflow simt, mma, wgmma or wgmma_large_m",
                kMostScaledRows, planned_rows(op));
  judge_bytes(judge, plan, op, gpu);
  judge.require(plan.product_rows == 1 || plan.product_rows == 4 || plan.product_rows == 8,
                "product_rows {} is none of 1, 4 and 8", plan.product_rows);
  judge.require((plan.product_rows == 1) == groups,
                "product_rows {}, where 1 goes with scales of groups of inputs and 4 or 8 without; "
                "set it to {}",
                plan.product_rows, groups ? 1 : 8);
  if (!judge.ok()) return;
  const auto config = configured(plan, op);
  judge_outputs_per_warp(judge, plan, op);
  judge.require(plan.rows_per_block % plan.product_rows == 0,
                "rows_per_block {} is not a multiple of product_rows {}", plan.rows_per_block,
                plan.product_rows);
  judge.require(plan.producer_warps == 0 || plan.prepack_x == 0,
                "producer_warps {} and prepack_x 1 both turn x to bytes; set one of them to 0",
                plan.producer_warps);
  judge.require(plan.producer_warps < plan.threads / 32,
                "producer_warps {} leave none of the {} warps of a block to multiply",
                plan.producer_warps, plan.threads / 32);
  if (!judge.ok()) return;
  judge_warps_along_columns(judge, plan, vq::multiplying_warps(config));
  judge.require(
      plan.producer_warps == 0 || has_bulk_copies(gpu.arch),
      "{} ({}) lacks the barriers by which warps wait for those that make bytes of x; set "
      "producer_warps to 0",
      gpu.name, gpu.arch);
  judge.require(plan.producer_warps == 0 || vq::units_per_row(config) == 1,
                "{} codebooks serve the columns of an output, where producer_warps take one; set "
                "producer_warps to 0",
                vq::units_per_row(config));
  judge.require(plan.prepack_x == 0 || has_bulk_copies(gpu.arch),
                "{} ({}) has no bulk copies, by which a pre-pass brings x; set prepack_x to 0",
                gpu.name, gpu.arch);
  if (!judge.ok()) return;
  judge_runs(judge, plan, op);
  if (!judge.ok()) return;
  judge.require(
      vq::chunk_in_one_unit(config),
      "chunk_columns {} touch more than the {} columns of one codebook, as dataflow int8_mma takes",
      plan.chunk_columns, config.unit_columns);
  const int most = std::min(255, gpu.registers_per_sm / plan.threads);
  judge.require(vq::byte_registers(config) <= most,
                "sums, codes and x take {} registers per thread, of {}; lower threads, "
                "outputs_per_warp, rows_per_block or code_words",
                vq::byte_registers(config), most);
  judge_linear(judge, plan, op, gpu);
}

// Two tiles of outputs per warp, or one if SMs would have too little; as many warps as possible.
LinearInt8Mma choose_plan(LinearInt8Mma plan, const Linear& op, const GpuSpec& gpu) {
  const int lanes = phase_lanes(vq::held_bytes(configured(plan, op).weights));
  for (const RowForm& form : row_forms(op)) {
    plan.product_rows = form.product_rows;
    plan.rows_per_block = form.rows_per_block;
    for (const Placement& codebook :
         {all_replicated(op.weights.entries(), lanes), all_shared(op.weights.entries())}) {
      plan.codebook = codebook;
      for (const int outputs : {32, 16}) {
        plan.outputs_per_warp = outputs;
        for (const int words : {4, 2, 1}) {
          plan.code_words = words;
          for (int along = kMostWarps; along > 0; along /= 2) {
            LinearInt8Mma fitted = plan;
            fit_block(fitted, op, gpu, along, 1);
            if (fitted.threads > 32 * kMostWarps / 2 || along == 1) {
              if (fit_chunk(fitted, op, 2) && check(fitted, op, gpu).ok) return fitted;
            }
          }
        }
      }
    }
  }
  return plan;
}

void add_candidates(Candidates& to, LinearInt8Mma plan, const Linear& op, SpacePlacement allowed) {
  if (!op.weights.sums_are_bytes() && !op.weights.has_scaled_bytes()) return;
  const std::vector<Placement> placements =
      near_placements(op, allowed, vq::held_bytes(configured(plan, op).weights));
  using P = LinearInt8Mma;
  for (const RowForm& form : row_forms(op)) {
    plan.product_rows = form.product_rows;
    plan.rows_per_block = form.rows_per_block;
    for_each_of(plan, {{&P::outputs_per_warp, {16, 32, 64}}, {&P::code_words, {4, 2, 1}}}, [&] {
      for (const auto& [waves, warps] :
           {std::pair{1, kMostWarps}, std::pair{1, kManyWarps}, std::pair{2, kMostWarps}}) {
        for (int along = 1; along <= kMostWarps / waves; along *= 2) {
          if (warps > kMostWarps && !may_have_many(along)) continue;
          for (const auto& [prepack_x, producer_warps] : kMakers) {
            plan.prepack_x = prepack_x;
            plan.producer_warps = producer_warps;
            if (makers_spill(plan)) continue;
            for (const int runs : chunk_runs_of(plan, op)) {
              LinearInt8Mma fitted = plan;
              fit_block(fitted, op, to.gpu, along, waves, warps);
              if (!fit_chunk(fitted, op, runs)) continue;
              // A quarter of the warps idle, at most.
              if (vq::chunk_groups(configured(fitted, op)) * 4 < along * 3) continue;
              for (const Placement& each : placements) {
                fitted.codebook = each;
                to.add(fitted);
              }
            }
          }
        }
      }
    });
  }
}

void count_work(BlockWork& to, const LinearInt8Mma& plan, const Linear& op, const PlanUse& use,
                ConflictTable& conflicts) {
  const auto c = configured(plan, op);
  const VqFormat& format = op.weights;
  const double warps = vq::multiplying_warps(c);
  const double chunks = block_chunks(c);
  // Runs of the warp that has most, and of all warps: some have a group less.
  const double turns =
      chunks * std::ceil(1.0 * vq::chunk_groups(c) / c.warps_along_columns) * vq::group_runs(c);
  const double runs = chunks * vq::chunk_runs(c) * warps / c.warps_along_columns;
  const double tiles = c.outputs_per_warp / vq::fragment_outputs(c);
  const double row_tiles = c.rows_per_block / c.product_rows;
  const bool pairs = c.product_rows < 8;
  const double steps = runs * vq::run_steps(c);  // of all warps
  const double lookups = steps * tiles * 2 * vq::octet_codes(c.weights);
  add_lookups(to, use.operands.front(), lookups, conflicts);
  count_bytes(to);
  // An address, additions of words, their top bits.
  const double words = format.vector_size / 4.0;
  const bool masks = vq::masks_signs(c);
  const double signs = masks ? 1 + words : byte_instructions(format);
  to.arithmetic += lookups * (1 + words + signs) + lookups / format.num_codebooks * words;
  to.products += steps * tiles * row_tiles * (pairs && !masks ? 1 : 2);
  to.turns += steps;
  to.passes += steps * row_tiles * (pairs ? 2 : 4);
  if (masks) {
    to.passes += lookups * words;  // masks, of all lanes without conflicts
    to.products += steps * row_tiles;
  }
  if (vq::by_lane(c)) {
    // The numbers of scales; sums of both bytes, theirs of x, and numbers that are scaled.
    constexpr double kSum = 4, kFactor = 10;
    const double groups = std::max(1.0, vq::run_columns(c) / 4.0 / format.group_inputs);
    to.arithmetic += runs * groups * tiles * 2 * (kFactor + kSum * row_tiles);
  }
  if (plan.prepack_x == 1) {
    constexpr double kRows = 8;
    to.passes += runs * tiles * 2 * vq::run_words(c) / c.code_words * kRows;
    const double staged = chunks * static_cast<double>(vq::byte_chunk_bytes(c));
    to.passes += staged / 128;
    to.l2_bytes += staged;
    to.prologue += 1;
    to.merge_launches += 1;  // the pre-pass
  } else {
    add_loads(to, c, chunks, runs, 2);
    // x to bytes, before all multiply: of all chunks, or the first where others are made meanwhile,
    // for which nobody waits as add_loads() has it.
    const double waits = plan.producer_warps > 0 ? 1 : chunks;
    to.prologue += waits * std::ceil(vq::chunk_units(c) / (c.threads / 32.0)) - (chunks - waits);
  }
  if (plan.producer_warps > 0) {
    // The others wait where the warps that make chunks are slower; and, as fitted, the more for
    // each chunk the more of them share it.
    constexpr double kOctetClocks = 265;
    const double octets = (chunks - 1) * vq::chunk_units(c) * vq::lane_octets(c);
    to.passes = std::max(to.passes, octets / plan.producer_warps * kOctetClocks);
    to.prologue += 0.5 + 1.5 * c.warps_along_columns;
  }
  // The sums of groups to numbers.
  to.arithmetic += runs / vq::group_runs(c) * vq::lane_sums(c) * 4;
  add_partials(to, c, plan.prepack_x == 1);
  if (fills_behind_merging(c)) to.hidden_fill = to.fill;  // fitted, like the terms below
  to.chain += turns * tiles;
  if (!pairs) to.prologue += 2;  // fitted for 8 rows per MMA
  // Tree reduction across warps: each level has two barriers, stores and loads.
  for (int half = c.warps_along_columns / 2; half > 0; half /= 2) {
    to.prologue += 0.5 + vq::lane_sums(c) / 16.0;
  }
  to.registers = vq::byte_registers(c);
}

}  // namespace vqgen
