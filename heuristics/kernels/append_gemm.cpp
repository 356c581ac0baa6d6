// Plans of kv_append by GEMM, for wide sub-vectors. A block reads each codebook once for all its
// rows, so it has as many rows as its registers hold, or fewer if SMs would be idle.
#include <algorithm>
#include <bit>

#include "heuristics/kernels/append.h"

namespace vqgen {
namespace {

// Most rows per block: registers hold their MMA operands.
constexpr int kMostRows = 256;

void judge_decoder(Judge& judge, const VqFormat& format, const char* operand) {
  judge.require(format.decoder == Decoder::table,
                "{}: codes are not numbers of entries; use dataflow simt", operand);
}

void judge_wide_entries(Judge& judge, const VqFormat& format, const char* operand,
                        const KvAppend& op) {
  const bool narrow = !op.keys.in_parts() && !op.keys.is_wide() && !op.values.is_wide();
  judge.require(format.is_wide(),
                "{}: sub-vectors of {} elements are shorter than the 16 of an mma; use dataflow {}",
                operand, format.vector_size, narrow ? "mma or simt" : "simt");
  judge.require(format.entries() >= vq::kProductEntries,
                "{}: a codebook of {} entries is smaller than the {} that a warp multiplies; use "
                "dataflow simt",
                operand, format.entries(), vq::kProductEntries);
}

// Sub-vectors of a unit that a block has, of the tensor or part that has most.
int most_rows(const KvAppend& op, const AppendGemm& plan) {
  const vq::ProductsConfig config = configured(plan, op);
  int rows = 0;
  vq::for_each_format(config, [&](const vq::FormatConfig& format) {
    rows = std::max(rows, plan.tokens_per_block * vq::unit_sub_vectors(config, format));
  });
  return rows;
}

// Registers per thread: operands of its sub-vectors, sums, entries, norms and kept estimates.
int registers_of(const KvAppend& op, const AppendGemm& plan) {
  const vq::ProductsConfig config = configured(plan, op);
  const int others = plan.warpgroups == 1 ? 92 : 100;
  int widest = 0;
  vq::for_each_format(config, [&](const vq::FormatConfig& format) {
    widest = std::max(widest, format.vector_size);
  });
  return others + widest * vq::product_vectors(config) / 64;
}

// Work of one tensor's blocks, added to `to` by their share of all blocks.
void count_wide_products(BlockWork& to, const vq::ProductsConfig& config,
                         const vq::FormatConfig& format, double share_of_blocks) {
  const double turns = static_cast<double>(vq::share_units(config, format)) *
                       vq::unit_runs(config, format) * format.num_codebooks;
  const double entries = vq::entries(format);
  const double steps = format.vector_size / 16.0;
  const double groups = entries / vq::kProductEntries;
  const double rows = turns * vq::run_vectors(config);
  // Instructions for 32 rows and 32 entries: each lane's set maxima, mostly of three numbers at
  // once, insertions of sets, 4 loads of norms, and 2 loads of entries per step.
  const double tiles = rows / 32 * groups;
  const double sets = 32.0 / vq::set_entries(format);
  to.products += share_of_blocks * tiles * 8 * steps;
  // Further: norms of all entries; then each row's sets, and the residual.
  const double norms = turns * groups * format.vector_size * 1.5;
  const double compare = vq::set_entries(format) * (3.5 * format.vector_size + 30) / 32;
  to.arithmetic += share_of_blocks * (tiles * (0.6 * (32 - sets) + 5 * sets + 12) + norms +
                                      rows * (compare + 0.2 * format.vector_size));
  const double tile_lines = entries * format.vector_size * 2 / 128;
  const double set_lines = vq::set_entries(format) * format.vector_size * 2 / 128.0;
  to.lines += share_of_blocks * (tiles * 8 * steps + turns * 2 * tile_lines + rows * 2 * set_lines);
  to.l2_bytes += share_of_blocks * (turns * tile_lines + rows * (set_lines + 1)) * 128;
  to.chain = std::max(to.chain, turns * (entries / vq::tile_entries(config, format) + 8));
  to.prologue = std::max(to.prologue, 2.0 + format.num_codebooks);
}

}  // namespace

void judge_plan(Judge& judge, const AppendGemm& plan, const KvAppend& op, const GpuSpec& gpu) {
  judge.require(op.dtype == DType::f16 || gpu.bf16_products,
                "{} has no mma in bf16; use dataflow simt, or dtype f16", gpu.name);
  judge.require(plan.warpgroups == 0 || gpu.warpgroup_products,
                "{} has no wgmma; set warpgroups to 0", gpu.name);
  for_each_part(op.keys, op.shape.head_dim,
                [&](const VqFormat& part, int) { judge_decoder(judge, part, "keys"); });
  for_each_part(op.values, op.shape.value_dim(),
                [&](const VqFormat& part, int) { judge_decoder(judge, part, "values"); });
  for_each_part(op.keys, op.shape.head_dim,
                [&](const VqFormat& part, int) { judge_wide_entries(judge, part, "keys", op); });
  for_each_part(op.values, op.shape.value_dim(),
                [&](const VqFormat& part, int) { judge_wide_entries(judge, part, "values", op); });
  judge_codebooks(judge, op, gpu);
  judge.require(plan.warpgroups == 0 || plan.threads % 128 == 0,
                "threads {} are no whole warp groups of 128", plan.threads);
  judge_rows(judge, plan, op);
  if (!judge.ok()) return;
  const int most = std::min(255, gpu.registers_per_sm / plan.threads);
  judge.require(registers_of(op, plan) <= most,
                "sub-vectors, sums and sets take {} registers per thread, of {}; lower threads",
                registers_of(op, plan), most);
  judge_block(judge, plan.threads, call_shape(plan, op).shared_bytes(), gpu);
}

// Half of the SMs get a block if there are tokens for blocks of 128 and more: further blocks would
// repeat the copies and norms of tiles.
AppendGemm choose_plan(AppendGemm plan, const KvAppend& op, const GpuSpec& gpu) {
  constexpr int kLeastTokens = 128;
  constexpr int kLeastThreads = 128;
  constexpr int kSmallTile = 1024;  // 64 entries
  const auto tokens = static_cast<unsigned>(visited_tokens(op));
  const auto fits = [&] {
    return call_shape(plan, op).shared_bytes() <= gpu.shared_bytes_per_block;
  };
  plan.tokens_per_block =
      static_cast<int>(std::min(std::bit_floor(tokens), unsigned(plan.tokens_per_block)));
  while (plan.tokens_per_block > kLeastTokens && 2 * append_blocks(plan, op) < gpu.sms) {
    plan.tokens_per_block /= 2;
  }
  plan.warpgroups = gpu.warpgroup_products ? 1 : 0;
  const auto take_threads = [&] {
    const int rows = vq::product_vectors(configured(plan, op));
    plan.threads = kLeastThreads;
    while (plan.threads / 32 * rows < std::min(kMostRows, most_rows(op, plan))) plan.threads *= 2;
  };
  take_threads();
  if (!fits()) plan.tile_bytes = kSmallTile;
  while (!fits() && plan.tokens_per_block > 1) {
    plan.tokens_per_block /= 2;
    take_threads();
  }
  return plan;
}

// Codebooks are read from global memory in their stored form.
void add_candidates(Candidates& to, AppendGemm plan, const KvAppend& op, SpacePlacement allowed) {
  using P = AppendGemm;
  if (allowed == SpacePlacement::shared) return;
  to.add(choose_plan(plan, op, to.gpu));
  for_each_of(plan,
              {{&P::threads, {64, 128, 256, 512}},
               {&P::splits, {1, 2, 4}},
               {&P::tokens_per_block, {16, 32, 64, 128, 256, 512}},
               {&P::tile_bytes, {4096, 24576, 49152}},
               {&P::warpgroups, {0, 1}}},
              [&] { to.add(plan); });
}

PlanUse use_of(const AppendGemm& plan, const KvAppend& op) { return append_plan_use(plan, op); }

// No coefficients are fitted to it yet, as for append_simt.
void count_work(BlockWork& to, const AppendGemm& plan, const KvAppend& op, const PlanUse&,
                ConflictTable&) {
  const vq::ProductsConfig config = configured(plan, op);
  const double all = vq::key_shares(config) + vq::shares(config, config.values);
  vq::for_each_format(config, [&](const vq::FormatConfig& format) {
    count_wide_products(to, config, format, vq::shares(config, format) / all);
  });
  to.registers = registers_of(op, plan);
}

std::vector<std::string> explain_plan(const AppendGemm& plan, const KvAppend& op) {
  return {fmt::format("tokens_per_block {}: of {} new tokens per sequence, at most; a block reads "
                      "each codebook once for {} sub-vectors of its {} warps",
                      plan.tokens_per_block, op.shape.new_tokens, plan.threads, plan.threads / 32),
          fmt::format("tile_bytes {}: of the entries that come to shared memory together, at most",
                      plan.tile_bytes),
          plan.warpgroups == 1
              ? "warpgroups 1: wgmma, with entries in shared memory as operand, where bulk copies "
                "bring them; no barrier of the block is between tiles"
              : "warpgroups 0: mma.m16n8k16; a barrier of the block is between tiles"};
}

}  // namespace vqgen
