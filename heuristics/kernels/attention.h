// The common part of attention_decode's dataflows: split-KV over a grid that fills the GPU, with
// the heads of a KV head in one block so that a code is decoded once for all of them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "core/ceil_div.h"
#include "heuristics/kernels/slice.h"

namespace vqgen {

// (head, query token, sequence) blocks that a split has; where blocks share all sequences, (head,
// query token) blocks.
template <class P>
std::int64_t head_blocks(const AttentionDecode& op, const P& plan) {
  const auto config = configured(plan, op);
  return std::int64_t{vq::balanced(config) ? 1 : op.shape.batch} * op.shape.kv_heads *
         vq::head_blocks(config);
}
// Tokens that the splits share.
template <class P>
std::int64_t shared_tokens(const AttentionDecode& op, const P& plan) {
  return op.split_tokens() * (vq::balanced(configured(plan, op)) ? op.shape.batch : 1);
}

// Blocks per SM with a balanced schedule: limited by shared memory, and by the registers requested
// for them, 128 per thread, or up to 255 with more heads and channels.
int resident_by_length(const AttentionDecode& op, AttentionMma plan, const GpuSpec& gpu);
// The number of blocks that the GPU holds at once, as splits: each loads its codebooks once and all
// end together.
int splits_by_length(const AttentionDecode& op, const AttentionMma& plan, const GpuSpec& gpu);

// True if a few blocks of long sequences take a second wave, which is mostly empty.
bool begins_a_wave(const AttentionInt8Mma& plan, const AttentionDecode& op, const GpuSpec& gpu);
// Sets whether blocks of the plan, as it is, change the basis themselves.
void fit_basis(AttentionInt8Mma& plan, const AttentionDecode& op, const GpuSpec& gpu);

// The rules' plan of int8_mma attention, balanced if the lengths of sequences may differ much, or
// if a wave would begin.
AttentionInt8Mma int8_mma_by_rules(const AttentionDecode& op, const GpuSpec& gpu);

inline std::int64_t key_words(const AttentionDecode& op) {
  return op.keys.row_words(op.shape.head_dim);
}
inline std::int64_t value_words(const AttentionDecode& op) {
  return op.values.row_words(op.shape.value_dim());
}

// Heads per block: at most `most`, so that accumulators stay in registers, and as even as the group
// allows (9 heads make blocks of 5 and 4).
inline int even_heads(const AttentionDecode& op, std::int64_t most = 8) {
  const std::int64_t group = op.group();
  return static_cast<int>(ceil_div(group, ceil_div(group, most)));
}

// Heads per block: of as many query tokens as `most_of_several` allows, evenly; of one token as
// even_heads().
inline int heads_of_tokens(const AttentionDecode& op, int most, int most_of_several) {
  const std::int64_t tokens = std::clamp(most_of_several / op.group(), 1, op.shape.query_tokens);
  if (tokens == 1) return even_heads(op, most);
  const std::int64_t blocks = ceil_div(std::int64_t{op.shape.query_tokens}, tokens);
  return static_cast<int>(ceil_div(std::int64_t{op.shape.query_tokens}, blocks)) * op.group();
}

// Two waves of the GPU.
inline std::int64_t two_waves(const GpuSpec& gpu) { return std::int64_t{2} * gpu.sms; }

// Blocks that share a sequence: enough that there are `wanted` blocks, of about four tiles at
// least. `shares` blocks have each split.
template <class P>
int choose_splits(const AttentionDecode& op, const P& plan, std::int64_t wanted, int shares = 1) {
  const std::int64_t splits = ceil_div(wanted, head_blocks(op, plan) * shares);
  const std::int64_t most = ceil_div(op.split_tokens(), std::int64_t{4} * plan.tile_tokens);
  constexpr std::int64_t kMost = 256;
  return static_cast<int>(std::clamp<std::int64_t>(splits, 1, std::min(most, kMost)));
}

// Puts the levels of keys and values where the whole block still fits: both shared first, then the
// keys alone, then the values alone, then neither. False where the block does not fit even so.
template <class P>
bool place_codebooks(P& plan, const AttentionDecode& op, const GpuSpec& gpu) {
  constexpr bool kPlacesKeys = requires { plan.key_codebook = Placement{}; };
  for (const bool keys : {true, false}) {
    if (keys && !kPlacesKeys) continue;
    for (const bool values : {true, false}) {
      if constexpr (kPlacesKeys) {
        plan.key_codebook = keys ? all_shared(op.keys.entries()) : all_global();
      }
      plan.value_codebook = values ? all_shared(op.values.entries()) : all_global();
      if (check(plan, op, gpu).ok) return true;
    }
  }
  return false;
}

// Places the codebooks. If wide code rows do not fit in flight with everything in global memory,
// tiles get shorter, then one at a time.
template <class P>
void fit_tile(P& plan, const AttentionDecode& op, const GpuSpec& gpu) {
  constexpr int kShortestTile = 8;
  while (!place_codebooks(plan, op, gpu)) {
    if (plan.tile_tokens > kShortestTile) {
      plan.tile_tokens /= 2;
    } else if (plan.tiles_in_flight == 2) {
      plan.tiles_in_flight = 1;
    } else {
      break;
    }
  }
}

// Lanes that share the dot product of a key of so many sub-vectors.
inline int lanes_for(int sub_vectors) {
  return std::min(8, static_cast<int>(std::bit_floor(static_cast<unsigned>(sub_vectors))));
}

// Each thread decodes values of its own and accumulates them for all heads.
template <class P>
void judge_lanes(Judge& judge, const P& plan, const AttentionDecode& op) {
  int sub_vectors = 0;
  int accumulators = 0;  // of a head
  for_each_part(op.values, vq::value_channels(configured(plan, op)),
                [&](const VqFormat& format, int channels) {
                  sub_vectors = std::max(sub_vectors, channels / format.piece());
                  accumulators += format.piece();
                });
  judge.require(plan.threads >= sub_vectors,
                "threads {} are fewer than the {} sub-vectors of a value, or octets of wide ones",
                plan.threads, sub_vectors);
  judge.require(std::has_single_bit(static_cast<unsigned>(plan.lanes_per_token)),
                "lanes_per_token {} is not a power of two up to 32", plan.lanes_per_token);
  judge.require(plan.heads_per_block * accumulators <= 128,
                "heads_per_block {} times vector_size {} accumulators do not fit the registers",
                plan.heads_per_block, accumulators);
}

// Rules of all dataflows. With `several` a block may have heads of more than one query token.
template <class P>
void judge_attention(Judge& judge, const P& plan, const AttentionDecode& op, const GpuSpec& gpu,
                     bool several = false) {
  if (several && plan.heads_per_block > op.group() && op.shape.query_tokens > 1) {
    judge.require(plan.heads_per_block % op.group() == 0,
                  "heads_per_block {} is more than the {} query heads of a KV head and no multiple "
                  "of them, as query tokens in one block take",
                  plan.heads_per_block, op.group());
    judge.require(plan.heads_per_block <= op.group() * op.shape.query_tokens,
                  "heads_per_block {} is more than the {} query heads of {} query tokens",
                  plan.heads_per_block, op.group() * op.shape.query_tokens, op.shape.query_tokens);
  } else {
    judge.require(plan.heads_per_block <= op.group(),
                  "heads_per_block {} is more than the {} query heads of a KV head",
                  plan.heads_per_block, op.group());
  }
  judge_codebooks(judge, op, gpu);
  if (!judge.ok()) return;
  const auto config = configured(plan, op);
  const int blocks =
      vq::head_blocks(config) * std::max(config.key_channel_splits, config.value_channel_splits);
  judge.require(std::int64_t{op.shape.kv_heads} * blocks <= 65535,
                "{} KV heads of {} blocks exceed the grid's second axis", op.shape.kv_heads,
                blocks);
  if constexpr (requires(P changed) { changed.key_codebook = Placement(); }) {
    judge_placement(judge, config.keys, vq::block_units(config.keys, vq::key_channels(config)),
                    "keys");
  }
  if constexpr (requires(P changed) { changed.value_codebook = Placement(); }) {
    judge_placement(judge, config.values,
                    vq::block_units(config.values, vq::value_channels(config)), "values");
  }
  const vq::CallShape shape = call_shape(plan, op);
  judge_block(judge, plan.threads, shape.shared_bytes(), gpu);
  judge_combine(judge, plan.combine, plan.splits, shape.counters);
  judge.require(
      !vq::balanced(config) || (plan.splits > 1 && op.shape.batch > 1 && !op.shape.batch_invariant),
      "schedule 'balanced' has blocks share several sequences; it takes splits and batch above 1, "
      "and results that may depend on each other");
}

using PlacementPair = std::pair<Placement, Placement>;

// Keys and values alike, and where there is a choice one of them shared and the other global, in a
// dataflow that holds an entry of values in so many bytes.
template <class Op>
std::vector<PlacementPair> placement_pairs(const Op& op, SpacePlacement allowed, int value_bytes) {
  const std::vector<Placement> keys = whole_placements(op.keys, allowed);
  const std::vector<Placement> values = whole_placements(op.values, allowed, value_bytes);
  std::vector<PlacementPair> pairs;
  for (std::size_t i = 0; i < std::max(keys.size(), values.size()); ++i) {
    pairs.emplace_back(keys[std::min(i, keys.size() - 1)], values[std::min(i, values.size() - 1)]);
  }
  if (allowed == SpacePlacement::any) {
    pairs.emplace_back(all_shared(op.keys.entries()), all_global());
    pairs.emplace_back(all_global(), all_shared(op.values.entries()));
  }
  return pairs;
}
template <class Op>
std::vector<PlacementPair> placement_pairs(const Op& op, SpacePlacement allowed) {
  return placement_pairs(op, allowed, op.values.held_bytes());
}

// Adds the plan with the splits for each number of warps an SM, none of them without a tile of
// `tokens`, and with each of these placements of the operands that it places.
template <class P>
void add_splits(Candidates& to, const AttentionDecode& op, P plan, int tokens,
                const std::vector<PlacementPair>& placements) {
  const std::int64_t blocks = head_blocks(op, plan);
  const std::int64_t tiles = ceil_div(shared_tokens(op, plan), std::int64_t{tokens});
  for (const int target : kWarpTargets) {
    const std::int64_t wanted = std::int64_t{target} * to.gpu.sms / (plan.threads / 32);
    constexpr std::int64_t kMost = 256;
    plan.splits = static_cast<int>(
        std::min(kMost, even_splits(tiles, std::max<std::int64_t>(1, wanted / blocks))));
    for (const auto& [keys, values] : placements) {
      if constexpr (requires { plan.key_codebook = keys; }) plan.key_codebook = keys;
      plan.value_codebook = values;
      to.add(plan);
    }
  }
}

// Tokens of a sequence whose codes a call reads, at most.
template <class Op>
std::int64_t read_tokens(const Op& op) {
  if constexpr (requires { op.split_tokens(); }) {
    return op.split_tokens();
  } else {
    return op.shape.tokens;
  }
}

// Codebook use of an op that reads a cache. Each block has `channels` of a head.
template <class Op>
OperandUse cache_use(Operand operand, const Op& op, const vq::FormatConfig& config, int channels,
                     double head_blocks, double blocks) {
  const auto& shape = op.shape;
  const VqFormat& format = operand == Operand::keys ? op.keys : op.values;
  const int row = row_dim(shape, operand);
  OperandUse use{.operand = operand, .format = config};
  use.units = vq::block_units(config, channels);
  use.lane_units = static_cast<int>(use.units);  // lanes are adjacent along a row
  use.tensor_units = kv_units(format, shape.kv_heads, row);
  if (format.in_parts()) {
    use.parts_bytes = 2 * kv_codebook_elements(format, shape.kv_heads, row);
  }
  const std::int64_t tokens = read_tokens(op);
  const double rows = static_cast<double>(shape.kv_heads) * static_cast<double>(tokens);
  for_each_part(format, row, [&](const VqFormat& part, int part_channels) {
    use.lookups +=
        rows * shape.batch * head_blocks * part_channels / part.piece() * part.num_codebooks;
  });
  use.fills = blocks * row / channels;
  use.code_bytes = stored_code_bytes(tokens, row, format) * shape.kv_heads * shape.batch;
  use.code_reads = head_blocks;
  return use;
}

template <class P>
PlanUse use_of(const P& plan, const AttentionDecode& op) {
  const auto config = configured(plan, op);
  const vq::CallShape shape = call_shape(plan, op);
  const int head_blocks = vq::head_blocks(config);
  const auto blocks = static_cast<double>(plan.splits * vqgen::head_blocks(op, plan));
  return {.threads = plan.threads,
          .blocks = shape.blocks(),
          .shared_bytes = shape.main_shared_bytes(),
          .operands = {cache_use(Operand::keys, op, config.keys, vq::key_channels(config),
                                 head_blocks, blocks),
                       cache_use(Operand::values, op, config.values, vq::value_channels(config),
                                 head_blocks, blocks)}};
}

PlanUse use_of(const AttentionLut&, const AttentionDecode&);
PlanUse use_of(const AttentionMma&, const AttentionDecode&);
PlanUse use_of(const AttentionHistogram&, const AttentionDecode&);

// Chained loads that a thread waits for, in L2 latencies, to fetch `books` codebooks per block; the
// constants of this and the following functions are fitted. Bulk copies of whole codebooks overlap;
// a thread fetches up to 64 bytes of entries at a time.
inline double fetch_turns(const vq::FormatConfig& format, double books, int threads) {
  constexpr double kCopiedOfTurn = 16384;
  constexpr double kTogether = 3;
  const vq::EntryRange once = vq::shared_range(format);
  const vq::EntryRange replicated = vq::replicated_range(format);
  const double entries = books * once.end;
  if (vq::stands_as_stored(format) && entries > threads) {
    return entries * vq::held_bytes(format) / kCopiedOfTurn;
  }
  const double one_by_one = std::ceil(entries / threads);
  const int of_level = std::max(once.end - once.begin, replicated.end - replicated.begin);
  if (!vq::fetches_together(format.num_codebooks, of_level, threads)) return one_by_one;
  const double times = std::ceil((one_by_one - 1) * vq::held_bytes(format) / 64);
  return std::min(one_by_one, 1 + kTogether * times);
}

// fetch_turns() plus the thread's stores to shared memory, in as many copies.
inline double fill_turns(const OperandUse& use, std::int64_t blocks, int threads) {
  constexpr double kPassesOfTurn = 240;
  if (vq::is_scalar(use.format.decoder)) return 0;
  const double fills = use.fills / static_cast<double>(blocks);
  const double books = fills * static_cast<double>(use.units) * use.format.num_codebooks;
  return fetch_turns(use.format, books, threads) +
         fills * use.places() * use.entry_bytes() / 128 / kPassesOfTurn;
}
inline double fill_turns(const PlanUse& use, int threads) {
  double turns = 0;
  for (const OperandUse& each : use.operands) turns += fill_turns(each, use.blocks, threads);
  return turns;
}

// Bulk copies of whole codebooks overlap with the end of the previous launch; entries that threads
// fetch and store themselves do not. Fitted.
inline void fill_by_copies(BlockWork& to, const PlanUse& use) {
  constexpr double kHidden = 0.85;
  to.fill = fill_turns(use, to.threads);
  BlockWork copied = {.threads = to.threads, .blocks = to.blocks};
  for (const OperandUse& each : use.operands) {
    if (!vq::stands_as_stored(each.format)) continue;
    to.hidden_fill += kHidden * fill_turns(each, use.blocks, to.threads);
    add_fill(copied, each);
  }
  to.hidden_passes = kHidden * copied.passes;
  to.hidden_l2_bytes = kHidden * copied.l2_bytes;
}

// Work before and after the tokens: the query, one channel per thread; merging the warps' parts.
template <class P>
double around_turns(const P& plan, const AttentionDecode& op) {
  const double quads = std::ceil(plan.heads_per_block / 4.0);
  const double dims = op.shape.head_dim;
  return 1 + 1.7 * plan.heads_per_block * dims / plan.threads +
         plan.threads / 32.0 * quads * op.shape.value_dim() / 1024;
}

// L2 latencies of a warp's step of `tiles` tiles of 8 tokens.
inline double step_turns(double tiles, double quads, const AttentionDecode& op) {
  return 1.25 + tiles * (0.11 * quads + 0.08 * (op.shape.head_dim + op.shape.value_dim()) / 128);
}

// Tiles per block in dataflows simt, lut and channels.
template <class P>
double block_tiles(const P& plan, const AttentionDecode& op) {
  const std::int64_t tiles = ceil_div(op.split_tokens(), std::int64_t{plan.tile_tokens});
  return static_cast<double>(ceil_div(tiles, std::int64_t{plan.splits}));
}

// lanes_per_token threads decode a token's key, and a thread per sub-vector its value; a tile has
// four barriers.
template <class P>
void count_lanes(BlockWork& to, const P& plan, const AttentionDecode& op, const PlanUse& use,
                 ConflictTable& conflicts) {
  const double tiles = block_tiles(plan, op);
  const double warps = plan.threads / 32.0;
  const double heads = plan.heads_per_block;
  const double tile = plan.tile_tokens;
  const auto config = configured(plan, op);
  const double key_subs = vq::key_channels(config) / op.keys.piece();
  const double value_subs = vq::value_channels(config) / op.values.piece();
  // Turns per warp and tile: tokens at a time, sub-vectors per lane.
  const double key_turns = std::ceil(tile * plan.lanes_per_token / plan.threads) *
                           std::ceil(key_subs / plan.lanes_per_token);
  // Values in parts may have more sub-vectors than there are threads.
  const double slices = std::max(1.0, std::floor(plan.threads / value_subs));
  const double value_turns = std::ceil(tile / slices);
  const double keys = tiles * warps * key_turns;
  const double values = tiles * warps * value_turns;
  add_lookups(to, use.operands[0], keys * op.keys.num_codebooks, conflicts);
  add_lookups(to, use.operands[1], values * op.values.num_codebooks, conflicts);
  // The query is read from shared memory, the probability of a token once a head.
  to.arithmetic += keys * heads * op.keys.piece() * 1.5;
  to.arithmetic += values * heads * (op.values.piece() + 1);
  to.passes += keys * (op.keys.num_codebooks + heads * op.keys.piece() / 4.0);
  to.passes += values * (op.values.num_codebooks + heads);
  const auto words = static_cast<double>(key_words(op) + value_words(op));
  to.arithmetic += tiles * warps * 2 * std::ceil(tile * words / plan.threads);
  to.arithmetic += tiles * heads * (tile / 32 * 8 + 30);  // softmax
  to.prologue += 4 * tiles + slices / 4 + 2;
  to.chain += tiles * (key_turns + value_turns);
  if (plan.tiles_in_flight == 1) to.chain += 2 * tiles;  // codes arrive while nothing else goes on
  to.registers = 48 + static_cast<int>(heads) * (op.values.piece() + 2);
}

}  // namespace vqgen
