// Plans of mma kv_append: many new tokens, so that a block has enough rows for each of its warps.
#include <algorithm>
#include <bit>
#include <limits>

#include "core/ceil_div.h"
#include "heuristics/kernels/append.h"

namespace vqgen {
namespace {

// Most rows of a block of several sequences: one warp loads and transforms each.
constexpr int kRowsOfSequences = 8;
constexpr int kItemsAnSm = 8;  // warps, where items can be made smaller instead

// Items of sub-vectors that the warps of a block share, of the tensor that has fewer.
std::int64_t items_of_block(const KvAppend& op, const AppendMma& plan) {
  const auto config = configured(plan, op);
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  vq::for_each_format(config, [&](const vq::FormatConfig& format) {
    least = std::min(
        least, std::int64_t{vq::share_units(config, format)} * vq::unit_items(config, format));
  });
  return least;
}

// Wide entries are compared one by one, beside narrow ones of another part alone.
void judge_entries(Judge& judge, const VqFormat& format, bool beside_narrow, const char* operand) {
  if (!beside_narrow) judge_width(judge, format, operand);
  judge_stages(judge, format, operand);
  judge.require(format.decoder == Decoder::table,
                "{}: codes are not numbers of entries; use dataflow simt", operand);
  judge.require(format.entries() >= vq::kAppendTile,
                "{}: a codebook of {} entries is less than a tile of {}; use dataflow simt",
                operand, format.entries(), vq::kAppendTile);
}

void judge_operand(Judge& judge, const VqFormat& format, const char* operand) {
  bool any_narrow = false;
  for_each_part(format, 0, [&](const VqFormat& part, int) { any_narrow |= !part.is_wide(); });
  for_each_part(format, 0, [&](const VqFormat& part, int) {
    judge_entries(judge, part, any_narrow, operand);
  });
}

// Work of one tensor's blocks, added to `to` by their share of all blocks.
template <class Config>
void count_products(BlockWork& to, const Config& config, const vq::FormatConfig& format,
                    double share_of_blocks) {
  const double items =
      static_cast<double>(vq::share_units(config, format)) * vq::unit_items(config, format);
  const double stages = format.num_codebooks;
  const double tiles = vq::entries(format) / double{vq::kAppendTile};
  const double groups = tiles / vq::group_tiles(format);
  const double products = items * stages * tiles * config.row_tiles;
  to.products += share_of_blocks * products;
  // Four minima per MMA, and 3 more per slot of a group; then half of a lane's row tiles per set.
  const double compare =
      config.row_tiles * vq::group_tiles(format) * (3.0 * format.vector_size + 4);
  const double slots = groups * 2 * config.row_tiles * 3;
  to.arithmetic += share_of_blocks * (4 * products + items * stages * (slots + compare + 200));
  to.lines += share_of_blocks * items * stages * tiles;
  to.l2_bytes += share_of_blocks * static_cast<double>(vq::share_units(config, format)) *
                 static_cast<double>(vq::unit_codebook_elements(format)) * 2;
  to.chain = std::max(to.chain, std::ceil(items / (config.threads / 32.0)) * stages * groups);
  to.prologue = std::max(to.prologue, 2 + stages);
}

}  // namespace

void judge_plan(Judge& judge, const AppendMma& plan, const KvAppend& op, const GpuSpec& gpu) {
  judge.require(op.dtype == DType::f16 || gpu.bf16_products,
                "{} has no mma in bf16; use dataflow simt, or dtype f16", gpu.name);
  judge_operand(judge, op.keys, "keys");
  judge_operand(judge, op.values, "values");
  judge_rows(judge, plan, op);
  judge_sequences(judge, plan, op);
  judge.require(plan.row_tiles != 3, "row_tiles 3 is neither 2 nor 4");
  if (!judge.ok()) return;
  judge_block(judge, plan.threads, call_shape(plan, op).shared_bytes(), gpu);
}

// With few tokens in each of several sequences: as many sequences per block as leave half of the
// SMs a block.
void take_sequences(AppendMma& plan, const KvAppend& op, const GpuSpec& gpu) {
  const int most = std::min(kRowsOfSequences / visited_tokens(op), op.shape.batch);
  if (most < 2) return;
  plan.tokens_per_block = visited_tokens(op);
  plan.sequences_per_block = most;
  while (plan.sequences_per_block > 1 && 2 * append_blocks(plan, op) < gpu.sms) {
    plan.sequences_per_block /= 2;
  }
  const std::int64_t items = append_blocks(plan, op) * items_of_block(op, plan);
  if (items < std::int64_t{kItemsAnSm} * gpu.sms) plan.row_tiles = 2;
}

// Chooses as many tokens per block as leave the GPU enough blocks, and a warp per item if items are
// few.
AppendMma choose_plan(AppendMma plan, const KvAppend& op, const GpuSpec& gpu) {
  const std::int64_t wanted = std::int64_t{kAppendBlocks} * gpu.sms;
  const auto tokens = static_cast<unsigned>(visited_tokens(op));
  const auto fits = [&](const AppendMma& candidate) {
    return call_shape(candidate, op).shared_bytes() <= gpu.shared_bytes_per_block;
  };
  plan.tokens_per_block =
      static_cast<int>(std::min(std::bit_floor(tokens), unsigned(plan.tokens_per_block)));
  while (plan.tokens_per_block > 16 && append_blocks(plan, op) < wanted) plan.tokens_per_block /= 2;
  take_sequences(plan, op, gpu);
  if (plan.sequences_per_block == 1) take_splits(plan, op, wanted);
  while (!fits(plan) && plan.splits < 128 && !takes_slots(op)) plan.splits *= 2;
  while (!fits(plan) && plan.tokens_per_block > 1) plan.tokens_per_block /= 2;
  while (plan.threads > 64 && items_of_block(op, plan) < plan.threads / 32) plan.threads /= 2;
  return plan;
}

// Codebooks are read from global memory in their stored form.
void add_candidates(Candidates& to, AppendMma plan, const KvAppend& op, SpacePlacement allowed) {
  using P = AppendMma;
  if (allowed == SpacePlacement::shared) return;
  to.add(choose_plan(plan, op, to.gpu));
  for_each_of(plan,
              {{&P::threads, {64, 128, 256, 512}},
               {&P::splits, {1, 2, 4, 8}},
               {&P::tokens_per_block, {1, 4, 16, 32, 64, 128}},
               {&P::sequences_per_block, {1, 4, 8, 16}},
               {&P::row_tiles, {2, 4}}},
              [&] { to.add(plan); });
}

PlanUse use_of(const AppendMma& plan, const KvAppend& op) { return append_plan_use(plan, op); }

// No coefficients are fitted to it yet, as for append_simt.
void count_work(BlockWork& to, const AppendMma& plan, const KvAppend& op, const PlanUse&,
                ConflictTable&) {
  const auto config = configured(plan, op);
  const double all = vq::key_shares(config) + vq::value_shares(config);
  vq::for_each_format(config, [&](const vq::FormatConfig& format) {
    count_products(to, config, format, vq::shares(config, format) / all);
  });
  to.registers = 112;
}

std::vector<std::string> explain_plan(const AppendMma& plan, const KvAppend& op) {
  return {fmt::format("tokens_per_block {}: of {} new tokens per sequence, at most",
                      plan.tokens_per_block, op.shape.new_tokens),
          fmt::format("sequences_per_block {}: of {} sequences, which share a head's codebooks",
                      plan.sequences_per_block, op.shape.batch),
          fmt::format("{} warps share {} GEMMs of {} sub-vectors by all entries, each stage",
                      plan.threads / 32, items_of_block(op, plan), vq::item_rows(plan))};
}

}  // namespace vqgen
