// Plans of int8_mma attention: keys and values with int8 entries, all MMAs in integers.
#include "core/gpu/gpu_arch.h"
#include "heuristics/kernels/attention.h"
#include "heuristics/occupancy.h"

namespace vqgen {
namespace {

// Threads that the sums of heads leave registers to: of one quad of up to 128 channels 512, of two
// 384. Of more channels fewer, as their sums take registers; 0: a block has too many.
int most_threads(const AttentionInt8Mma& plan, int row) {
  const int quads = vq::ceil_div(plan.heads_per_block, 4);
  if (row <= 128) return quads == 1 ? 512 : 384;
  const int channels = quads * row;
  return channels <= 160 ? 384 : channels <= 320 ? 256 : 0;
}
// One query token, so that there are no new rows to bring into the basis; pieces of a balanced
// schedule would rotate one by one. Rows of queries and of results share memory.
bool may_fuse_basis(const AttentionInt8Mma& plan, const AttentionDecode& op) {
  return (has_basis(op.keys) || has_basis(op.values)) && op.shape.query_tokens == 1 &&
         plan.schedule == Schedule::per_sequence && op.shape.head_dim <= 192 &&
         op.shape.value_dim() == op.shape.head_dim;
}
// Blocks of further waves would wait for the rotation again.
bool fuses_basis(const AttentionInt8Mma& plan, const AttentionDecode& op, const GpuSpec& gpu) {
  return may_fuse_basis(plan, op) && head_blocks(op, plan) * plan.splits <= gpu.sms;
}
bool in_parts(const AttentionDecode& op) { return op.keys.in_parts() || op.values.in_parts(); }
// The heuristics take fewer threads for parts and entries of 2 elements, which need more registers.
int most_threads(const AttentionInt8Mma& plan, const AttentionDecode& op) {
  const bool pairs = op.keys.vector_size == 2 || op.values.vector_size == 2;
  const int most = most_threads(plan, longest_row(op.shape));
  constexpr int kOfQuad = 384;
  constexpr int kOfTwoQuads = 256;
  if (!in_parts(op) && !pairs) return most;
  return std::min(most, plan.heads_per_block <= 4 ? kOfQuad : kOfTwoQuads);
}

// Codes are bytes that number the entries of one codebook a head, or one per part.
void judge_part(Judge& judge, const VqFormat& format, int channels, const char* operand) {
  judge.require(format.decoder == Decoder::table && format.entry_type == EntryType::int8 &&
                    format.index_bits == 8,
                "{}: dataflow int8_mma takes int8 entries of 2, 4, 8 or 16 elements and codes of 8 "
                "bits, as vecinfer-d4b8i8 and klt-2bit have them; use dataflow mma, or simt",
                operand);
  judge.require(
      format.num_codebooks == 1,
      "{}: {} residual stages are more than the one of dataflow int8_mma; use dataflow mma",
      operand, format.num_codebooks);
  judge.require(format.scope != Scope::channel_group || format.group_channels >= channels,
                "{}: dataflow int8_mma has one codebook a head; use dataflow mma, or scope head",
                operand);
  judge.require(
      format.layout.rows == 1,
      "{}: codes in groups of {} rows; dataflow int8_mma copies rows one after the other, "
      "use dataflow mma",
      operand, format.layout.rows);
}

void judge_format(Judge& judge, const VqFormat& format, int head_dim, const char* operand) {
  int next = 0;
  for_each_part(format, head_dim, [&](const VqFormat& part, int channels) {
    judge_part(judge, part, channels, operand);
    for (const int channel : part.channels) {
      judge.require(channel == next++,
                    "{}: channels of the parts do not follow each other, as those of klt-1bit do; "
                    "use dataflow simt",
                    operand);
    }
  });
}

// Lanes share rows evenly.
void judge_rows(Judge& judge, const vq::AttentionConfig<AttentionInt8Mma>& c, bool values,
                const char* operand) {
  for (int i = 0; i < vq::operand_formats(c, values); ++i) {
    const vq::FormatConfig f = vq::operand_format(c, values, i);
    judge.require(vq::shared_by_lanes(c, values, i),
                  "{}: {} codes of {} channels cannot be shared out evenly among the lanes of "
                  "dataflow int8_mma; use dataflow simt",
                  operand, f.part.channels / f.vector_size, f.vector_size);
  }
}

// Sets the splits to one wave of `resident` blocks per SM, each with at least two rounds unless
// there are up to four splits, and enough of them that a warp's sums fit its integers.
int one_wave(const AttentionDecode& op, const AttentionInt8Mma& plan, const GpuSpec& gpu,
             int resident) {
  constexpr std::int64_t kMost = 256;
  const std::int64_t rounds = ceil_div(op.split_tokens(), std::int64_t{plan.threads});
  constexpr std::int64_t kRoundsOfWarp = vq::kBytesManyTokens / vq::kBytesStep;
  const std::int64_t least = ceil_div(rounds, kRoundsOfWarp);
  constexpr std::int64_t kFew = 4;
  const std::int64_t wanted = rounds < kFew ? ceil_div(rounds, std::int64_t{2})
                                            : std::max(ceil_div(rounds, std::int64_t{2}), kFew);
  const std::int64_t wave = std::min(resident * gpu.sms / head_blocks(op, plan), wanted);
  return static_cast<int>(std::clamp(wave, std::min(least, kMost), kMost));
}

// A block of `threads` threads, or fewer if shared memory is small, with three rounds of codes in
// flight, the fastest number measured.
AttentionInt8Mma of_size(AttentionInt8Mma plan, const AttentionDecode& op, const GpuSpec& gpu,
                         int threads, int resident = 1) {
  plan.threads = std::min(threads, most_threads(plan, op));
  constexpr int kFewestThreads = 128;
  plan.pipeline_stages = 3;
  while (plan.threads > kFewestThreads &&
         call_shape(plan, op).shared_bytes() > gpu.shared_bytes_per_block) {
    plan.threads -= 32;
  }
  // Entries of parts leave little room: two rounds of more warps are faster than three of fewer.
  constexpr int kThreadsOfTwoRounds = 384;
  if (in_parts(op) && plan.threads < kThreadsOfTwoRounds) {
    AttentionInt8Mma two = plan;
    two.pipeline_stages = 2;
    two.threads = std::min({threads, most_threads(plan, op), kThreadsOfTwoRounds});
    if (call_shape(two, op).shared_bytes() <= gpu.shared_bytes_per_block) plan = two;
  }
  plan.splits = one_wave(op, plan, gpu, resident);
  return plan;
}

// Blocks for all sequences, as many as the GPU holds at once. More threads would spill.
AttentionInt8Mma for_mixed_lengths(AttentionInt8Mma plan, const AttentionDecode& op,
                                   const GpuSpec& gpu) {
  constexpr int kMost = 1024;
  constexpr int kThreads = 384;
  plan.schedule = Schedule::balanced;
  if (vq::counters(configured(plan, op), op.shape.batch) <= vq::kMostCounters) {
    plan.combine = Combine::last_block;
  }
  plan = of_size(plan, op, gpu, kThreads);
  plan.splits = 2;
  const int registers = 65536 / std::max(most_threads(plan, op), 1) / 8 * 8;
  const int resident =
      occupancy(gpu, plan.threads, registers, call_shape(plan, op).shared_bytes()).blocks;
  const std::int64_t blocks = std::int64_t{std::max(resident, 1)} * gpu.sms;
  plan.splits =
      static_cast<int>(std::clamp<std::int64_t>(blocks / head_blocks(op, plan), 2, kMost));
  return plan;
}

constexpr std::int64_t kFewTokens = 4096;  // per sequence that one block of a quad takes

std::int64_t share_of_block(const AttentionDecode& op, const AttentionInt8Mma& plan) {
  return ceil_div(op.split_tokens(), std::int64_t{plan.splits});
}

// Choice of warps per block: long shares amortize 16 warps, and short blocks start sooner with
// smaller rounds. With more than one wave of blocks, or many SMs idle at one block each, two
// smaller blocks per SM fill each other's gaps.
constexpr std::int64_t kShortShare = 2048;  // tokens
constexpr std::int64_t kLongShare = 16384;
constexpr double kFullEnough = 0.75;  // share of the SMs
constexpr int kThreadsOfTwo = 192;    // where two blocks share one

// With more than one wave and two quads of heads of 128 channels, registers let blocks of 4 warps,
// but not of 6, share an SM. With splits fewer registers are needed.
AttentionInt8Mma in_line(const AttentionInt8Mma& plan, const AttentionDecode& op,
                         const GpuSpec& gpu) {
  if (in_parts(op)) return of_size(plan, op, gpu, most_threads(plan, op));  // one has an SM
  constexpr int kThreadsOfTwoQuadsInLine = 128;
  if (plan.heads_per_block > 4 && longest_row(op.shape) > 64) {
    const AttentionInt8Mma four_warps = of_size(plan, op, gpu, kThreadsOfTwoQuadsInLine);
    if (four_warps.splits == 1) return four_warps;
  }
  return of_size(plan, op, gpu, kThreadsOfTwo);
}

AttentionInt8Mma of_heads(AttentionInt8Mma plan, const AttentionDecode& op, const GpuSpec& gpu,
                          int heads) {
  plan.heads_per_block = heads;
  const std::int64_t blocks = head_blocks(op, plan);
  if (blocks > gpu.sms) return in_line(plan, op, gpu);
  const AttentionInt8Mma small = of_size(plan, op, gpu, 256);
  const std::int64_t share = share_of_block(op, small);
  if (share <= kShortShare) {
    // More warps share the rotation of more than 128 channels.
    const bool rotates = has_basis(op.keys) && op.shape.head_dim > 128;
    return rotates ? of_size(plan, op, gpu, 384) : small;
  }
  if (static_cast<double>(blocks * small.splits) < kFullEnough * gpu.sms) {
    return of_size(plan, op, gpu, kThreadsOfTwo, 2);
  }
  return of_size(plan, op, gpu, share < kLongShare || longest_row(op.shape) < 128 ? 384 : 512);
}

// True if sequences may be so long that they differ much in length, or hold so many rows in parts
// that a balanced schedule costs next to nothing: more with full-precision tokens or pages, which
// take registers that it needs too, and beside a plan that rotates within its blocks.
bool may_differ_in_length(const AttentionDecode& op, const AttentionInt8Mma& apart) {
  constexpr std::int64_t kLong = 131072;          // tokens
  constexpr std::int64_t kLongInParts = 16384;    // tokens
  constexpr std::int64_t kManyInParts = 1 << 21;  // rows of all sequences and KV heads
  const std::int64_t rows = std::int64_t{op.shape.batch} * op.shape.kv_heads * op.split_tokens();
  const bool plain = op.raw_slots() == 0 && op.shape.page_tokens == 0 && apart.fused_basis == 0;
  const std::int64_t least = plain ? kLongInParts : 2 * kLongInParts;
  const bool many = in_parts(op) && op.split_tokens() >= least && rows >= kManyInParts;
  return many || op.split_tokens() >= kLong;
}

}  // namespace

void judge_plan(Judge& judge, const AttentionInt8Mma& plan, const AttentionDecode& op,
                const GpuSpec& gpu) {
  judge.require(has_byte_products(gpu.arch),
                "{} ({}) has no int8 mma, which dataflow int8_mma takes; use dataflow mma",
                gpu.name, gpu.arch);
  const auto judge_size = [&](const char* field, int channels) {
    judge.require(channels % 16 == 0 && channels >= 64 && channels <= 256,
                  "{} {} is no multiple of 16 from 64 to 256, as dataflow int8_mma takes; use "
                  "dataflow simt",
                  field, channels);
    judge.require(channels % 32 == 0 || !in_parts(op),
                  "{} {} is no multiple of 32, as rows in parts of dataflow int8_mma are; use "
                  "dataflow simt",
                  field, channels);
  };
  judge_size("head_dim", op.shape.head_dim);
  judge_size("value_head_dim", op.shape.value_dim());
  judge_format(judge, op.keys, op.shape.head_dim, "keys");
  judge_format(judge, op.values, op.shape.value_dim(), "values");
  if (!judge.ok()) return;
  const auto config = configured(plan, op);
  judge_rows(judge, config, false, "keys");
  judge_rows(judge, config, true, "values");
  const int longest = longest_row(op.shape);
  const int most = most_threads(plan, longest);
  judge.require(
      most > 0,
      "heads_per_block {}: blocks have no registers for more than 4 heads of {} channels; "
      "use 4",
      plan.heads_per_block, longest);
  if (!judge.ok()) return;
  judge.require(plan.threads <= most,
                "threads {} with heads_per_block {}: so many heads of {} channels have registers "
                "in blocks of at most {} threads",
                plan.threads, plan.heads_per_block, longest, most);
  judge.require(plan.fused_basis == 0 || may_fuse_basis(plan, op),
                "fused_basis 1 takes keys or values with center or klt, head_dim up to 192 of "
                "both, one query token and schedule per_sequence; use fused_basis 0");
  // Splits begin with a whole turn.
  const std::int64_t split =
      std::min<std::int64_t>(op.shape.tokens, op.split_tokens() + vq::turn_tokens(config));
  const std::int64_t tokens = vq::warp_tokens(config, op.shape.batch, split);
  judge.require(tokens <= vq::kBytesMostTokens,
                "{} tokens of a warp are more than the {} whose probabilities are exact enough in "
                "16 bits; use more splits or threads",
                tokens, vq::kBytesMostTokens);
  judge_attention(judge, plan, op, gpu, true);
}

namespace {

// All heads of a KV head that registers allow share each lookup. If blocks are short even so, one
// quad per block needs fewer splits, or none, and is faster.
AttentionInt8Mma choose_heads(AttentionInt8Mma plan, const AttentionDecode& op,
                              const GpuSpec& gpu) {
  const int of_block = longest_row(op.shape) > 160 ? 4 : 8;  // that have registers
  const int heads = heads_of_tokens(op, of_block, of_block);
  if (plan.schedule == Schedule::balanced) {
    plan.heads_per_block = heads;
    return for_mixed_lengths(plan, op, gpu);
  }
  const AttentionInt8Mma together = of_heads(plan, op, gpu, heads);
  if (together.heads_per_block <= 4) return together;
  const AttentionInt8Mma quads = of_heads(plan, op, gpu, even_heads(op, 4));
  const bool side_by_side = head_blocks(op, quads) <= gpu.sms;
  const std::int64_t most = quads.splits > 1 ? kShortShare : kFewTokens;
  return side_by_side && share_of_block(op, quads) <= most ? quads : together;
}

}  // namespace

AttentionInt8Mma choose_plan(AttentionInt8Mma plan, const AttentionDecode& op, const GpuSpec& gpu) {
  plan = choose_heads(plan, op, gpu);
  fit_basis(plan, op, gpu);
  return plan;
}

void fit_basis(AttentionInt8Mma& plan, const AttentionDecode& op, const GpuSpec& gpu) {
  plan.fused_basis = fuses_basis(plan, op, gpu) ? 1 : 0;
}

bool begins_a_wave(const AttentionInt8Mma& plan, const AttentionDecode& op, const GpuSpec& gpu) {
  constexpr std::int64_t kLong = 8192;  // tokens
  const std::int64_t blocks = call_shape(plan, op).blocks();
  return plan.splits == 1 && op.split_tokens() >= kLong && blocks > gpu.sms &&
         2 * blocks <= std::int64_t{3} * gpu.sms;
}

AttentionInt8Mma int8_mma_by_rules(const AttentionDecode& op, const GpuSpec& gpu) {
  const AttentionInt8Mma apart = choose_plan(AttentionInt8Mma{}, op, gpu);
  const bool shared = op.shape.batch > 1 && !op.shape.batch_invariant;
  const bool quad = apart.heads_per_block <= 4;  // more were not measured
  if (shared && (may_differ_in_length(op, apart) || (quad && begins_a_wave(apart, op, gpu)))) {
    const AttentionInt8Mma balanced =
        choose_plan(AttentionInt8Mma{.schedule = Schedule::balanced}, op, gpu);
    if (check(balanced, op, gpu).ok) return balanced;
  }
  return apart;
}

// All entries are in shared memory in copies, whatever other placements are allowed. It is tuned on
// Hopper alone.
void add_candidates(Candidates& to, AttentionInt8Mma plan, const AttentionDecode& op,
                    SpacePlacement allowed) {
  if (allowed != SpacePlacement::any || !to.gpu.warpgroup_products) return;
  plan = choose_plan(plan, op, to.gpu);
  if (!check(plan, op, to.gpu).ok) return;
  using P = AttentionInt8Mma;
  std::vector<int> heads{plan.heads_per_block};
  if (heads.front() != even_heads(op)) heads.push_back(even_heads(op));
  if (even_heads(op) > 4) heads.push_back(even_heads(op, 4));
  for_each_of(plan,
              {{&P::heads_per_block, heads},
               {&P::threads, {128, 192, 256, 384, 512}},
               {&P::pipeline_stages, {2, 3, 4, 6, 8}}},
              [&] {
                const std::int64_t rounds = ceil_div(op.split_tokens(), std::int64_t{plan.threads});
                for (const std::int64_t waves : {1, 2}) {
                  const std::int64_t wanted =
                      std::max<std::int64_t>(1, waves * to.gpu.sms / head_blocks(op, plan));
                  plan.splits = static_cast<int>(std::min<std::int64_t>(wanted, rounds));
                  fit_basis(plan, op, to.gpu);
                  to.add(plan);
                }
              });
}

// Lookups in columns have no conflicts; those of wide pieces take a pass per word. Each part's
// codes are loaded by themselves, strided ones one by one.
void count_parts(BlockWork& to, const vq::AttentionConfig<AttentionInt8Mma>& config, double tiles) {
  for (const bool values : {false, true}) {
    const vq::LaneRow row = vq::lane_row(config, values);
    for (int i = 0; i < row.count; ++i) {
      const vq::LanePart& part = row.parts[i];
      const double lookups = tiles * part.codes * row.lanes / 4;
      to.lookups += lookups;
      const int words = std::max(1, vq::piece_of(part) / 4);
      const int loads = part.codes == 0 ? 0 : part.strided ? part.codes : 1;
      to.passes += lookups * words + tiles * (values ? 2 : 1) * loads;
    }
    if (row.mixed_word >= 0) {
      const double lookups = tiles * 2 * row.lanes / 4;
      to.lookups += lookups;
      to.passes += lookups + tiles * 2;
    }
  }
}

// The count of mma, with byte MMAs and values permuted to operands. Fitted: the cost of warps
// beyond the eighth at start and end, and of unevenly loaded schedulers if a block is alone on its
// SM.
void count_work(BlockWork& to, const AttentionInt8Mma& plan, const AttentionDecode& op,
                const PlanUse& use, ConflictTable& conflicts) {
  const double warps = plan.threads / 32.0;
  const double tokens = std::ceil(static_cast<double>(shared_tokens(op, plan)) / plan.splits);
  const double steps = std::ceil(tokens / plan.threads);
  const double raw_turns =
      std::ceil(std::ceil((op.shape.sinks + op.shape.recent_tokens) / double{vq::kRawTile}) /
                (warps * plan.splits));  // tiles per warp
  const double tiles = warps * (steps * vq::kBytesStep / 8 + raw_turns);
  const double quads = std::ceil(plan.heads_per_block / 4.0);
  if (in_parts(op)) {
    count_parts(to, configured(plan, op), tiles);
  } else {
    for (const OperandUse& each : use.operands) {
      const double of_row = row_dim(op.shape, each.operand) / 4.0 / each.format.vector_size;
      add_lookups(to, each, tiles * of_row, conflicts);
    }
  }
  const double value_dim = op.shape.value_dim();
  const double octets = (op.shape.head_dim + value_dim) / 64.0;
  to.products += tiles * octets * quads;  // keys take half an MMA, values as much
  to.arithmetic += tiles * (value_dim / 8.0 + quads * 12);
  to.passes += 2 * warps * quads * 4 * (value_dim + 2) * 4 / 128;
  constexpr double kOfWarp = 0.8;
  to.prologue += around_turns(plan, op) + kOfWarp * std::max(0.0, warps - 8);
  to.fill = fill_turns(use, plan.threads);
  to.chain += steps * step_turns(vq::kBytesStep / 8.0, quads, op);
  to.registers = 65536 / most_threads(plan, longest_row(op.shape)) / 8 * 8;
  to.times = std::ceil(warps / 4) * 4 / warps;
  // Two quads of heads without splits take registers for one.
  const bool alone = quads > 1 && plan.splits == 1 && longest_row(op.shape) > 64;
  if (!alone) to.times_of_several = 1 / to.times;
}

std::vector<std::string> explain_plan(const AttentionInt8Mma& plan, const AttentionDecode& op) {
  const auto config = configured(plan, op);
  return {fmt::format("rounds of {} tokens, {} bytes of codes, {} in flight", plan.threads,
                      vq::round_bytes(config), plan.pipeline_stages)};
}

}  // namespace vqgen
