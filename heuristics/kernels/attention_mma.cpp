// Plans of mma attention, on tensor cores with 16-bit operands.
#include <array>
#include <limits>

#include "heuristics/kernels/attention.h"
#include "heuristics/kernels/fragments_registers.h"
#include "heuristics/kernels/fragments_ring.h"
#include "heuristics/occupancy.h"
#include "heuristics/placement/place.h"

namespace vqgen {

int resident_by_length(const AttentionDecode& op, AttentionMma plan, const GpuSpec& gpu) {
  plan.splits = 2;
  const int most = vq::resident(configured(plan, op));
  const int registers = most > 0 || plan.threads > 256 ? 128 : 255;
  const int blocks = occupancy(gpu, plan.threads, registers, use_of(plan, op).shared_bytes).blocks;
  return std::max(1, most > 0 ? std::min(most, blocks) : blocks);
}

int splits_by_length(const AttentionDecode& op, const AttentionMma& plan, const GpuSpec& gpu) {
  constexpr std::int64_t kMost = 1024;
  const std::int64_t blocks = std::int64_t{resident_by_length(op, plan, gpu)} * gpu.sms;
  return static_cast<int>(std::clamp<std::int64_t>(blocks / head_blocks(op, plan), 2, kMost));
}

namespace {

// The words that one load moves at most, for rows of keys and values alike.
int widest_load(const AttentionDecode& op) {
  for (const int width : {4, 2}) {
    if (key_words(op) % width == 0 && value_words(op) % width == 0) return width;
  }
  return 1;
}

// Blocks that share a sequence: as many as one wave holds, so that no block waits for another to
// end, with at least a step per warp. More than one wave is slower.
std::int64_t wave(const AttentionDecode& op, const AttentionMma& plan, const GpuSpec& gpu) {
  constexpr std::int64_t kMost = 256;
  return std::clamp<std::int64_t>(gpu.sms / head_blocks(op, plan), 1, kMost);
}
int one_wave(const AttentionDecode& op, const AttentionMma& plan, const GpuSpec& gpu) {
  const std::int64_t steps =
      ceil_div(op.split_tokens(), std::int64_t{vq::turn_tokens(configured(plan, op))});
  return static_cast<int>(std::min(wave(op, plan, gpu), steps));
}

// Tokens of a sequence that a block of one wave takes.
std::int64_t share_of_block(const AttentionDecode& op, const AttentionMma& plan,
                            const GpuSpec& gpu) {
  return ceil_div(op.split_tokens(), wave(op, plan, gpu));
}

// True if each group of channels has its own codebook, and blocks look up no more entries than they
// would load.
bool reads_entries_once(const AttentionDecode& op, const AttentionMma& plan) {
  if (op.keys.scope != Scope::channel_group || op.values.scope != Scope::channel_group) {
    return false;
  }
  const PlanUse use = use_of(plan, op);
  return std::all_of(use.operands.begin(), use.operands.end(), [](const OperandUse& each) {
    const std::int64_t entries = each.units * each.format.num_codebooks * vq::entries(each.format);
    return each.lookups <= each.fills * static_cast<double>(entries);
  });
}

// If one wave leaves a block few tokens, more warps per block would leave fewer blocks, and filling
// shared memory may cost more than it saves. Codebooks per channel group are then read from global
// memory, unless more heads per block need the registers of those lookups.
std::optional<AttentionMma> for_short_shares(const AttentionDecode& op, AttentionMma plan,
                                             const GpuSpec& gpu) {
  constexpr std::int64_t kShort = 64;  // tokens
  plan.threads = 256;
  plan.step_tokens = 16;
  plan.splits = one_wave(op, plan, gpu);
  const bool leave_entries = share_of_block(op, plan, gpu) <= kShort ||
                             (plan.heads_per_block == 1 && reads_entries_once(op, plan));
  if (!leave_entries || !check(plan, op, gpu).ok) return std::nullopt;
  return plan;
}

// True if 8 warps per block beat 16: with only a step or two per warp fewer parts are merged, and
// with several waves two blocks per SM fill each other's gaps. If codebooks leave no room for two
// blocks, 16 warps are better.
bool wants_few_warps(const AttentionDecode& op, const AttentionMma& plan, const GpuSpec& gpu) {
  constexpr std::int64_t kFew = 512;  // tokens
  if (share_of_block(op, plan, gpu) <= kFew) return true;
  if (head_blocks(op, plan) <= gpu.sms) return false;
  AttentionMma half = plan;
  half.threads = 256;
  return place_codebooks(half, op, gpu) &&
         occupancy(gpu, half.threads, kAssumedRegisters, use_of(half, op).shared_bytes).blocks >= 2;
}

// Heads per block that registers allow: with at most 256 threads, and with more; and of query
// tokens that need no masks, in steps of at most 16 tokens, of keys with int8 entries.
constexpr int kMostHeads = 16;
constexpr int kMostHeadsOf512 = 8;
constexpr int kMostHeadsOfPrefix = 32;
constexpr int kTokensOfPrefix = 16;
int most_heads(const AttentionDecode& op) {
  const bool small = longest_row(op.shape) <= 128 && op.keys.entry_type == EntryType::int8 &&
                     op.keys.num_codebooks == 1 && op.values.num_codebooks == 1;
  return op.shape.shared_prefix && small ? kMostHeadsOfPrefix : kMostHeads;
}

// True if this many heads and channels, with grouped keys, have registers in blocks of at most 256
// threads only; larger blocks spill.
bool wants_registers(const AttentionDecode& op, const AttentionMma& plan) {
  return op.keys.group_tokens > 0 && plan.heads_per_block * longest_row(op.shape) > 512;
}

// Tokens per step of a warp. 32 are fastest but need nearly all registers of a block of 512: more
// heads, channels or longer code rows spill, and serialized lookups need no more than 16. Blocks of
// more than 8 heads have so few warps that they need 32 to hide latency.
int tokens_of_step(const AttentionDecode& op, const AttentionMma& plan) {
  constexpr std::int64_t kShortRow = 8;  // words
  constexpr int kFewEntries = 256;
  const bool short_rows = std::max(key_words(op), value_words(op)) <= kShortRow;
  const bool few = std::max(op.keys.entries(), op.values.entries()) <= kFewEntries;
  const bool heads = plan.heads_per_block <= 4 || plan.heads_per_block > kMostHeadsOf512;
  const bool room = plan.heads_per_block <= kMostHeads;
  return heads && room && longest_row(op.shape) <= 128 && short_rows && few ? 32 : 16;
}

// Heads per block: of as many query tokens as registers allow, evenly, so that a code is looked up
// once for all of them; else of one.
int heads_of_block(const AttentionDecode& op) {
  const int most = longest_row(op.shape) > 128 ? 4 : kMostHeadsOf512;
  const int several = most_heads(op) / kMostHeadsOf512 * most;
  return heads_of_tokens(op, most, op.shape.query_tokens > 1 ? several : most);
}

// True if sequences may be long and of different lengths.
bool may_be_mixed(const AttentionDecode& op) {
  constexpr std::int64_t kLong = 131072;  // tokens
  return op.shape.batch > 1 && op.split_tokens() >= kLong && !op.shape.batch_invariant;
}

// A balanced schedule with two blocks of 8 warps per SM, which fill each other's gaps between
// sequences.
std::optional<AttentionMma> for_mixed_lengths(const AttentionDecode& op, AttentionMma plan,
                                              const GpuSpec& gpu) {
  plan.schedule = Schedule::balanced;
  if (vq::counters(configured(plan, op), op.shape.batch) <= vq::kMostCounters) {
    plan.combine = Combine::last_block;
  }
  plan.step_tokens = tokens_of_step(op, plan);
  const bool small = plan.heads_per_block * longest_row(op.shape) <= kMostHeadsOf512 * 128;
  for (const int threads : {256, 512, 128}) {
    if (threads > 256 && !small) continue;
    plan.threads = threads;
    plan.splits = 2;
    if (!place_codebooks(plan, op, gpu)) continue;
    if (threads == 256 && small && resident_by_length(op, plan, gpu) < 2) continue;
    plan.splits = splits_by_length(op, plan, gpu);
    return plan;
  }
  return std::nullopt;
}

// Adds the plan with each placement, and as many splits as the GPU holds blocks.
void add_by_length(Candidates& to, const AttentionDecode& op, AttentionMma plan,
                   const std::vector<PlacementPair>& placements) {
  for (const auto& [keys, values] : placements) {
    plan.key_codebook = keys;
    plan.value_codebook = values;
    plan.splits = splits_by_length(op, plan, to.gpu);
    to.add(plan);
  }
}

// The plan as the rules complete it, balanced if `plan` is; nullopt if check() accepts none.
std::optional<AttentionMma> feasible(AttentionMma plan, const AttentionDecode& op,
                                     const GpuSpec& gpu) {
  plan.heads_per_block = heads_of_block(op);
  plan.code_words = widest_load(op);
  if (plan.schedule == Schedule::balanced) return for_mixed_lengths(op, plan, gpu);
  if (may_be_mixed(op)) {
    if (const auto of_mixed_lengths = for_mixed_lengths(op, plan, gpu)) return of_mixed_lengths;
  }
  if (const auto of_short_shares = for_short_shares(op, plan, gpu)) return of_short_shares;
  plan.step_tokens = tokens_of_step(op, plan);
  for (const int threads : {512, 256, 128}) {
    if (threads > 256 && plan.heads_per_block * longest_row(op.shape) > kMostHeadsOf512 * 128)
      continue;
    if (threads > 256 && (wants_registers(op, plan) || wants_few_warps(op, plan, gpu))) continue;
    plan.threads = threads;
    if (!place_codebooks(plan, op, gpu)) continue;
    take_ring(plan, op, gpu);
    plan.splits = one_wave(op, plan, gpu);
    return plan;
  }
  return std::nullopt;
}

// Supported scales. Keys: per channel, per token, or with a zero per channel and token group.
// Values: per channel, per token, or with a zero per token and channel group, one per lane.
void judge_scales(Judge& judge, const AttentionMma& plan, const AttentionDecode& op) {
  const int head_dim = op.shape.head_dim, value_dim = op.shape.value_dim();
  const auto plain = [](const VqFormat& format, int row) {
    return !format.has_zeros() && format.group_tokens == 0 && format.scale_words(row) <= 1;
  };
  const bool grouped = op.keys.has_zeros() && op.keys.group_tokens > 0;
  judge.require(plain(op.keys, head_dim) || grouped,
                "keys: dataflow mma reads zeros beside scales of groups of tokens, those "
                "beside zeros, and one scale of a token; use dataflow simt");
  judge.require(!grouped || plan.step_tokens <= op.keys.group_tokens,
                "step_tokens {} is more than the {} tokens of a group of keys", plan.step_tokens,
                op.keys.group_tokens);
  judge.require(!grouped || (head_dim % 32 == 0 && head_dim <= 256),
                "keys: head_dim {} with scales of groups of tokens is no multiple of 32 up to 256, "
                "as dataflow mma takes; use dataflow simt",
                head_dim);
  const bool zeros = op.values.has_zeros() && op.values.token_scales;
  judge.require(plain(op.values, value_dim) || zeros,
                "values: dataflow mma reads scales of tokens, with zeros or one of a token, "
                "and none of groups of tokens; use dataflow simt");
  judge.require(!zeros || op.values.scale_channels(value_dim) % (value_dim / 8) == 0,
                "values: the {} channels of a lane have several scales of a token; use dataflow "
                "simt",
                value_dim / 8);
}

}  // namespace

// Lanes share a row of keys in four parts and one of values in eight, of whole sub-vectors; of
// scalar codes whole words. Bytes are multiplied where bf16 is: from sm_80 on.
void judge_plan(Judge& judge, const AttentionMma& plan, const AttentionDecode& op,
                const GpuSpec& gpu) {
  judge.require(op.dtype == DType::f16 || gpu.bf16_products,
                "{} has no mma in bf16; use dataflow simt, or dtype f16", gpu.name);
  judge_narrow(judge, op.keys, "keys");
  judge_narrow(judge, op.values, "values");
  judge.require(gpu.bf16_products || (!op.keys.is_scalar() && !op.values.is_scalar()),
                "{} has no int8 mma, which dataflow mma takes for scalar codes; use dataflow simt",
                gpu.name);
  judge_scales(judge, plan, op);
  judge.require(plan.step_tokens == 8 || plan.step_tokens == 16 || plan.step_tokens == 32,
                "step_tokens {} is none of 8, 16 and 32, as dataflow mma takes", plan.step_tokens);
  judge.require(plan.heads_per_block <= most_heads(op),
                "heads_per_block {} is more than {}, as many as dataflow mma has registers for",
                plan.heads_per_block, most_heads(op));
  judge.require(plan.heads_per_block <= kMostHeads || plan.step_tokens <= kTokensOfPrefix,
                "heads_per_block {} with step_tokens {}: more than {} heads have registers in "
                "steps of at most {} tokens",
                plan.heads_per_block, plan.step_tokens, kMostHeads, kTokensOfPrefix);
  judge.require(
      plan.heads_per_block <= kMostHeadsOf512 || plan.threads <= 256,
      "heads_per_block {} with {} threads: more than {} heads have registers in blocks of "
      "at most 256 threads",
      plan.heads_per_block, plan.threads, kMostHeadsOf512);
  judge.require(std::has_single_bit(static_cast<unsigned>(plan.code_words)),
                "code_words {} is not a power of two", plan.code_words);
  judge_ring(judge, plan, op, gpu);
  const auto shares = [&](const VqFormat& format, int columns, int lanes, const char* operand) {
    judge.require(columns % 32 == 0,
                  "{}: a head_dim of {} is no multiple of 32, as dataflow mma takes; use dataflow "
                  "int8_mma, or simt",
                  operand, columns);
    const int channels = columns / lanes;
    judge.require(channels % format.vector_size == 0,
                  "{}: vector_size {} does not divide the {} channels of a lane; use dataflow simt",
                  operand, format.vector_size, channels);
    judge.require(
        !format.is_scalar() || channels * format.index_bits % (32 * format.vector_size) == 0,
        "{}: the scalar codes of the {} channels of a lane are no whole words; use dataflow simt",
        operand, channels);
    const std::int64_t row = format.row_words(columns);
    judge.require(row % plan.code_words == 0,
                  "{}: code_words {} does not divide the {} words of a row of codes", operand,
                  plan.code_words, row);
    // Rows that are counted to end with a group of either.
    const CodeLayout counted{std::max(op.keys.layout.rows, op.values.layout.rows),
                             format.layout.words};
    judge.require(
        vq::stored_words(counted, op.shape.tokens, row) <= std::numeric_limits<std::int32_t>::max(),
        "{}: {} tokens of {} words are more than dataflow mma counts; use dataflow simt", operand,
        op.shape.tokens, row);
  };
  shares(op.keys, op.shape.head_dim, 4, "keys");
  shares(op.values, op.shape.value_dim(), vq::value_lanes(configured(plan, op)), "values");
  judge_attention(judge, plan, op, gpu, true);
}

AttentionMma choose_plan(AttentionMma plan, const AttentionDecode& op, const GpuSpec& gpu) {
  return feasible(plan, op, gpu).value_or(plan);
}

// Warps take their own steps of tokens, so a block may be as large as one wave holds. Balanced
// plans have as many blocks as the GPU holds at once.
void add_candidates(Candidates& to, AttentionMma plan, const AttentionDecode& op,
                    SpacePlacement allowed) {
  using P = AttentionMma;
  const bool by_length = plan.schedule == Schedule::balanced;
  const auto chosen = feasible(plan, op, to.gpu);
  if (!chosen) return;
  const std::vector<PlacementPair> placements =
      placement_pairs(op, allowed, vq::held_bytes(configured(*chosen, op).values));
  plan = *chosen;
  // Fewer heads leave registers to more warps and share a KV head among blocks.
  std::vector<int> heads{plan.heads_per_block};
  const auto also = [&heads](int number) {
    if (std::find(heads.begin(), heads.end(), number) == heads.end()) heads.push_back(number);
  };
  if (plan.heads_per_block > 2 * op.group()) {
    also(plan.heads_per_block / op.group() / 2 * op.group());
  }
  for (const int most : {16, 8, 4, 1}) also(even_heads(op, most));
  for_each_of(plan,
              {{&P::heads_per_block, heads},
               {&P::threads, {64, 128, 256, 512}},
               {&P::step_tokens, plan.code_stages > 0 ? std::vector{16} : std::vector{8, 16, 32}},
               {&P::code_words, halvings(plan.code_words)}},
              [&] {
                if (by_length) {
                  add_by_length(to, op, plan, placements);
                } else {
                  add_splits(to, op, plan, plan.step_tokens, placements);
                }
              });
}

// For scalar codes a block reads each unit's one entry, the scales, once. A step's key tiles look
// up one octet of channels after another; for values a lane decodes two tokens, and all channels of
// a tile before the next tile.
PlanUse use_of(const AttentionMma& plan, const AttentionDecode& op) {
  PlanUse use = use_of<AttentionMma>(plan, op);
  const std::array<int, 2> lanes{4, vq::value_lanes(configured(plan, op))};
  const std::array<int, 2> in_a_row{plan.step_tokens / 8, 2};
  for (std::size_t i = 0; i < 2; ++i) {
    OperandUse& each = use.operands[i];
    if (vq::is_scalar(each.format.decoder)) {
      each.lookups = each.fills * static_cast<double>(each.units);
      continue;
    }
    each.lane_units = std::min(each.lane_units, lanes[i]);
    each.in_a_row = each.lane_units > 1 ? in_a_row[i] : 1;
  }
  return use;
}

// Each warp takes steps of tokens of its own, in tiles of 8; the warps' parts are merged once.
void count_work(BlockWork& to, const AttentionMma& plan, const AttentionDecode& op,
                const PlanUse& use, ConflictTable& conflicts) {
  const auto config = configured(plan, op);
  const double warps = plan.threads / 32.0;
  const double tokens = std::ceil(static_cast<double>(shared_tokens(op, plan)) / plan.splits);
  const double steps = std::ceil(tokens / (warps * plan.step_tokens));
  const double step_tiles = plan.step_tokens / 8.0;
  const double tiles = warps * steps * step_tiles;
  const double quads = std::ceil(plan.heads_per_block / 4.0);
  const double dims = op.shape.head_dim;
  // Counts as if all lanes had value channels, which some may lack.
  const double value_dims = op.shape.value_dim() * 8.0 / vq::value_lanes(config);
  const auto lookups = [&](const VqFormat& format, double channels) {
    if (format.is_scalar()) return warps * channels / 32.0;
    return tiles * channels / 4.0 / format.vector_size * format.num_codebooks;
  };
  add_lookups(to, use.operands[0], lookups(op.keys, dims), conflicts);
  add_lookups(to, use.operands[1], lookups(op.values, value_dims), conflicts);
  const double octets = dims / 32.0;
  double parts = vq::query_parts(config);
  if (op.keys.entry_type == EntryType::int8) parts /= 2;  // a product takes twice the channels
  // Half as many with values.
  const bool pairs = vq::pairs_quads(config);
  const double paired = pairs ? 0.5 : 1;
  // A product of keys takes two tiles, and as long of one.
  if (plan.step_tokens == 8) parts *= 2;
  to.products += tiles * quads *
                 (octets * op.keys.num_codebooks * parts +
                  value_dims / 32.0 * op.values.num_codebooks * paired);
  to.arithmetic += tiles * quads * 24;  // softmax of a score per lane, and its way to the values
  const double merged = warps * quads * 4 * (op.shape.value_dim() + 2) * 4 / 128;
  const bool balanced = vq::balanced(config);
  const double pieces = balanced ? 1 + static_cast<double>(op.shape.batch) / plan.splits : 1;
  to.passes += pieces * 2 * merged;
  to.prologue += pieces * around_turns(plan, op);
  fill_by_copies(to, use);
  to.chain += steps * step_turns(step_tiles, quads * paired, op);
  // Entries in shared memory load while the previous launch ends, those in global memory after
  // codes.
  constexpr double kFirstLookup = 1.5;
  if (looks_up_in_global(plan, op)) to.chain += kFirstLookup;
  to.registers = registers_of(plan, op);
  to.resident = std::max(1, vq::resident(config));
  to.warp_turns = steps;
  // Fitted: extra turns of blocks of 16 warps, and the times that several blocks take.
  constexpr double kOf16Warps = 1.8;
  if (plan.threads == 512) to.prologue += pieces * kOf16Warps;
  to.times_of_several = 1.035;
  to.gathering = std::int64_t{plan.splits} * vq::head_blocks(config);
  const bool of_tensor = op.keys.scope == Scope::tensor && op.values.scope == Scope::tensor;
  to.books = of_tensor ? 1 : op.shape.kv_heads;
}

}  // namespace vqgen
