// Plans of the mma GEMM. Candidates vary the form of the MMA, the warps of a block and along the
// columns, the length of a load, and the splits that fill the GPU.
#include "heuristics/kernels/linear.h"

namespace vqgen {
namespace {

constexpr int kWarpsPerSm = 16;  // resident at once: enough loads in flight

// Warps that should share the columns of an output tile to keep the whole GPU busy.
std::int64_t column_shares(const Linear& op, const LinearMma& plan, const GpuSpec& gpu) {
  const std::int64_t tiles =
      ceil_div(op.shape.out_features, plan.outputs_per_warp) * blocks_of_rows(op, plan);
  return ceil_div(std::int64_t{kWarpsPerSm} * gpu.sms, tiles);
}

// Sets chunk and split so that `shares` warps along the columns have work; false where the chunk
// fits no codebook unit or the block no shared memory.
bool fit_chunk(LinearMma& plan, const Linear& op, const GpuSpec& gpu, std::int64_t shares) {
  const int run = vq::run_columns(configured(plan, op));
  constexpr std::int64_t kStagedBytes = 32768;
  const std::int64_t most = std::clamp<std::int64_t>(kStagedBytes / (2 * plan.rows_per_block) / run,
                                                     1, ceil_div(op.shape.in_features, run));
  for (std::int64_t runs = most; runs >= 1; --runs) {
    plan.chunk_columns = static_cast<int>(runs * run);
    const std::int64_t chunks = ceil_div(op.shape.in_features, plan.chunk_columns);
    const auto along = static_cast<unsigned>(std::min({shares, runs, std::int64_t{8}}));
    plan.warps_along_columns = static_cast<int>(std::bit_floor(along));
    plan.splits = static_cast<int>(even_splits(chunks, ceil_div(shares, plan.warps_along_columns)));
    if (place_codebook(plan, op, gpu)) return true;
  }
  return false;
}

struct Form {
  int fragment_rows;
  int rows_per_block;
  int outputs_per_warp;
};

// With scales of groups, which take registers, x is read less often by warps of more outputs.
std::vector<Form> forms(int rows, bool groups) {
  if (rows <= 4 && groups) return {{4, 4, 8}, {4, 4, 16}, {4, 4, 32}, {8, 8, 16}, {8, 8, 32}};
  if (rows <= 4) return {{4, 4, 8}, {4, 4, 16}, {8, 8, 16}};
  if (rows <= 8) return {{8, 8, 16}, {4, 8, 8}, {8, 8, 32}};
  std::vector<Form> all;
  for (const int most : {32, 64, 128}) {
    const int block = std::min(most, static_cast<int>(ceil_div(rows, 8)) * 8);
    for (const int outputs : {16, 32}) all.push_back({8, block, outputs});
    if (block >= rows) break;
  }
  return all;
}

// The splits for each number of warps an SM, with a chunk that is the whole share where shared
// memory holds its x, or a quarter of that.
void add_cuts(Candidates& to, LinearMma plan, const Linear& op,
              std::span<const Placement> placements) {
  const auto config = configured(plan, op);
  const std::int64_t run = vq::run_columns(config);
  const std::int64_t blocks = blocks_of_split(op, plan);
  constexpr std::int64_t kStagedBytes = 65536;
  const std::int64_t most = kStagedBytes / (2 * plan.rows_per_block);
  std::vector<std::pair<int, int>> cuts;  // chunk and splits of those added
  for (const int target : kWarpTargets) {
    const std::int64_t wanted = std::int64_t{target} * to.gpu.sms / (plan.threads / 32);
    const std::int64_t share =
        ceil_div(op.shape.in_features, std::max<std::int64_t>(1, wanted / blocks));
    for (const int part : {1, 4}) {
      const std::int64_t columns = std::min(ceil_div(share, run) * run, most) / part;
      const std::int64_t chunk =
          fitting_chunk(columns, run, config.unit_columns, op.shape.in_features);
      if (chunk < run * plan.warps_along_columns) continue;  // some warps would have no work
      plan.chunk_columns = static_cast<int>(chunk);
      plan.splits = static_cast<int>(even_splits(ceil_div(op.shape.in_features, chunk),
                                                 ceil_div(op.shape.in_features, share)));
      const std::pair cut(plan.chunk_columns, plan.splits);
      if (std::find(cuts.begin(), cuts.end(), cut) != cuts.end()) continue;
      cuts.push_back(cut);
      to.add_each(plan, placements);
    }
  }
}

}  // namespace

// Whole tiles of outputs and rows.
void judge_plan(Judge& judge, const LinearMma& plan, const Linear& op, const GpuSpec& gpu) {
  const auto config = configured(plan, op);
  judge.require(op.dtype == DType::f16 || gpu.bf16_products,
                "{} has no mma in bf16; use dataflow simt, or dtype f16", gpu.name);
  judge.require(plan.fragment_rows == 4 || plan.fragment_rows == 8,
                "fragment_rows {} is neither 4 nor 8", plan.fragment_rows);
  judge_outputs_per_warp(judge, plan, op);
  judge.require(plan.rows_per_block % plan.fragment_rows == 0,
                "rows_per_block {} is not a multiple of fragment_rows {}", plan.rows_per_block,
                plan.fragment_rows);
  judge_warps_along_columns(judge, plan, plan.threads / 32);
  if (!judge.ok()) return;
  judge_runs(judge, plan, op);
  const int accumulators = plan.outputs_per_warp / vq::fragment_outputs(config) *
                           (plan.rows_per_block / plan.fragment_rows) * 4;
  judge.require(accumulators <= 128, "{} accumulators a thread do not fit the registers",
                accumulators);
  judge_linear(judge, plan, op, gpu);
}

// Enough warps to fill the GPU, along the outputs first and then along the columns.
LinearMma choose_plan(LinearMma plan, const Linear& op, const GpuSpec& gpu) {
  const int rows = planned_rows(op);
  plan.fragment_rows = rows <= 4 ? 4 : 8;
  plan.rows_per_block = static_cast<int>(
      std::min<std::int64_t>(64, ceil_div(rows, plan.fragment_rows) * plan.fragment_rows));
  const std::int64_t shares = column_shares(op, plan, gpu);
  for (const int threads : {256, 128, 64, 32}) {
    plan.threads = threads;
    for (const int words : {4, 2, 1}) {
      plan.code_words = words;
      if (fit_chunk(plan, op, gpu, shares)) return plan;
    }
  }
  return {};
}

void add_candidates(Candidates& to, LinearMma plan, const Linear& op, SpacePlacement allowed) {
  const std::vector<Placement> placements = whole_placements(op.weights, allowed);
  using P = LinearMma;
  const bool groups = op.weights.group_inputs > 0;
  for (const Form& form : forms(planned_rows(op), groups)) {
    plan.fragment_rows = form.fragment_rows;
    plan.rows_per_block = form.rows_per_block;
    plan.outputs_per_warp = form.outputs_per_warp;
    for_each_of(plan,
                {{&P::threads, {128, 256, 512}},
                 {&P::warps_along_columns, {1, 2, 4, 8}},
                 {&P::code_words, {4, 2, 1}}},
                [&] {
                  if (plan.warps_along_columns > plan.threads / 32) return;
                  add_cuts(to, plan, op, placements);
                });
  }
}

void count_work(BlockWork& to, const LinearMma& plan, const Linear& op, const PlanUse& use,
                ConflictTable& conflicts) {
  const auto c = configured(plan, op);
  const double warps = c.threads / 32.0;
  const double chunks = block_chunks(c);
  const VqFormat& format = op.weights;
  const double runs = static_cast<double>(vq::chunk_columns(c)) / vq::run_columns(c);
  const double turns = chunks * std::ceil(runs / c.warps_along_columns);
  const bool halves = c.fragment_rows == 4;
  const double tiles = c.outputs_per_warp / vq::fragment_outputs(c);
  const double row_tiles = c.rows_per_block / c.fragment_rows;
  const double sides = halves ? 1 : 2;  // outputs whose entries a lane looks up per MMA
  const double octets = turns * warps * vq::run_steps(c);  // of all warps
  const double entries = octets * tiles * sides * vq::octet_codes(c.weights);
  const bool scaled_entries = adds_scaled_stages(format, vq::scaled_sums(c));
  const double passes = scaled_entries ? 1 : format.num_codebooks;
  add_lookups(to, use.operands.front(), entries, conflicts);
  // Otherwise scaled stages are summed in fp32 and rounded again.
  const double scaled = scaling_instructions(format, !vq::sums_by_lane(c)) +
                        (scaled_entries ? 2.0 * format.vector_size : 0);
  constexpr double kOfWhole = 1.15;  // fitted for 8 rows per MMA
  to.arithmetic += entries * (rebuild_instructions(format) + scaled) * (halves ? 1 : kOfWhole);
  to.products += octets * tiles * passes * row_tiles * sides;
  to.arithmetic += octets * row_tiles;  // x as operands
  to.turns += octets;
  to.passes += octets * row_tiles * (halves ? 2 : 4);
  add_loads(to, c, chunks, turns * warps, sides);
  to.passes += scale_passes(c, turns * warps, sides);
  to.fill += chunks * vq::chunk_columns(c) * c.rows_per_block / (halves ? 4 : 8) / c.threads;
  to.chain += turns * tiles;
  add_waits(to, c, chunks);
  // A barrier and sums through shared memory, per level of the tree reduction.
  for (int half = c.warps_along_columns / 2; half > 0; half /= 2) to.prologue += 1;
  // Registers: sums (two chains if there are few), codes of this run and the next, x, and what
  // ptxas takes besides on sm_90; fitted.
  const double sums = vq::scaled_sums(c) ? format.num_codebooks : 1;
  const double chains = sums * (sums * tiles * row_tiles < 4 && vq::run_octets(c) % 2 == 0 ? 2 : 1);
  constexpr double kBeside = 48;
  to.registers =
      static_cast<int>(kBeside + chains * tiles * row_tiles * 4 +
                       2 * tiles * sides * vq::run_words(c) + row_tiles * (halves ? 2 : 4));
  if (format.group_inputs > 0) {
    // Words of scales of this run and the next, and the scales.
    const double columns = vq::run_octets(c) * 8.0;
    const double numbers = format.group_minima ? 2 : 1;
    to.registers += static_cast<int>(tiles * sides * numbers *
                                     (4 + std::max(1.0, columns / format.group_inputs)));
  }
  const int resident = vq::call_shape(c).launches[0].resident;
  if (resident > 0) {  // what ptxas then spills was not seen to take time
    to.resident = resident;
    constexpr int kOfTwoBlocks = 64;
    to.registers = std::min(to.registers, kOfTwoBlocks);
  }
}

}  // namespace vqgen
