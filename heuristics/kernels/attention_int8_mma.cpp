// Attention by bytes: keys and values of int8 entries, all products of integers.
#include "core/gpu/gpu_arch.h"
#include "heuristics/kernels/attention.h"

namespace vqgen {
namespace {

// Threads that the sums of one quad of heads, and of two, leave registers to.
constexpr int kThreadsOfQuad = 512;
constexpr int kThreadsOfTwoQuads = 384;

int most_threads(const AttentionInt8Mma& plan) {
  return plan.heads_per_block <= 4 ? kThreadsOfQuad : kThreadsOfTwoQuads;
}

// Codes are bytes that number the entries of one codebook a head, whose rows follow each other.
void judge_format(Judge& judge, const VqFormat& format, int head_dim, const char* operand) {
  judge_narrow(judge, format, operand);
  judge.require(format.decoder == Decoder::table && format.entry_type == EntryType::int8 &&
                    format.vector_size == 4 && format.index_bits == 8,
                "{}: dataflow int8_mma takes int8 entries of 4 elements and codes of 8 bits, as "
                "vecinfer-d4b8i8 has them; use mma",
                operand);
  judge.require(format.num_codebooks == 1,
                "{}: {} residual stages are more than the one of dataflow int8_mma; use mma",
                operand, format.num_codebooks);
  judge.require(format.scope != Scope::channel_group || format.group_channels >= head_dim,
                "{}: dataflow int8_mma has one codebook a head; use mma, or scope head", operand);
  judge.require(
      format.layout.rows == 1,
      "{}: codes in groups of {} rows; dataflow int8_mma copies rows one after the other, "
      "use mma",
      operand, format.layout.rows);
}

// As many splits as one wave of `resident` blocks a multiprocessor has room for, each with two
// rounds at least, but for up to four (H200: 1 x 4096 tokens took 5.74 us by 8 splits and 5.96 by
// 16, 1 x 1024 5.27 by 2 and 4.62 by 4); and as many as let a warp sum up its tokens.
int one_wave(const AttentionDecode& op, const AttentionInt8Mma& plan, const GpuSpec& gpu,
             int resident) {
  constexpr std::int64_t kMost = 256;
  const std::int64_t rounds = ceil_div(op.shape.tokens, std::int64_t{plan.threads});
  const std::int64_t least = ceil_div(rounds, vq::kBytesMostTokens / vq::kBytesStep);
  constexpr std::int64_t kFew = 4;
  const std::int64_t wanted = rounds < kFew ? ceil_div(rounds, std::int64_t{2})
                                            : std::max(ceil_div(rounds, std::int64_t{2}), kFew);
  const std::int64_t wave = std::min(resident * gpu.sms / head_blocks(op, plan), wanted);
  return static_cast<int>(std::clamp(wave, std::min(least, kMost), kMost));
}

// Blocks of so many threads, less where shared memory has less room, with three rounds of codes on
// their way: a fourth was 1 to 4 % slower wherever it was timed, two were up to 6 % (H200).
AttentionInt8Mma of_size(AttentionInt8Mma plan, const AttentionDecode& op, const GpuSpec& gpu,
                         int threads, int resident = 1) {
  plan.threads = std::min(threads, most_threads(plan));
  constexpr int kFewestThreads = 128;
  plan.pipeline_stages = 3;
  while (plan.threads > kFewestThreads &&
         call_shape(plan, op).shared_bytes() > gpu.shared_bytes_per_block) {
    plan.threads -= 32;
  }
  plan.splits = one_wave(op, plan, gpu, resident);
  return plan;
}

constexpr std::int64_t kFewTokens = 4096;  // of a sequence that one block of a quad takes

std::int64_t share_of_block(const AttentionDecode& op, const AttentionInt8Mma& plan) {
  return ceil_div(op.shape.tokens, std::int64_t{plan.splits});
}

// Us on an H200 by 8, 12 and 16 warps, of 128 channels: 16 x 16384 tokens 41.7, 40.2 and 39.3, 1 x
// 196608 34.4, 33.2 and 33.1, in pages of 64 46.0, 42.8 and 42.0, 37.8, 34.9 and 35.6; shorter
// blocks begin sooner with smaller rounds: 1 x 32768 10.1, 10.4 and 11.0, 28 heads of 4 9.9, 10.5
// and 10.9. Where blocks stand in line, two that share a multiprocessor fill each other's gaps:
// 64 x 8192 took 82.3 by 6 warps each, 86.0 by 12.
// So they do where one each leaves many multiprocessors without: 21 x 11251, 84 heads and sequences
// of 64 channels, 15.6 as 252 blocks of 6 warps, 18.5 as 84 of 12; but 3 x 50000, 15 of them, 26.3
// as 255 blocks of 6 warps, 25.5 as 120 of 12 (H200).
constexpr std::int64_t kShortShare = 2048;  // tokens
constexpr std::int64_t kLongShare = 16384;
constexpr double kFullEnough = 0.75;  // of the multiprocessors
constexpr int kThreadsOfTwo = 192;    // where two blocks share one

// Where blocks stand in line. Two quads of heads of 128 channels and no splits take 207 registers,
// by which blocks of 6 warps do not share a multiprocessor. Us by 6 and by 4 warps, of 64 heads of
// 8: 32 x 6080 60.1 and 45.7, 64 x 8192 151 and 114 (H200); of 35 problems of 1024 to 16384 tokens
// 4 warps took 0.67 to 0.78 times as long (H100). With splits they take 168.
AttentionInt8Mma in_line(const AttentionInt8Mma& plan, const AttentionDecode& op,
                         const GpuSpec& gpu) {
  constexpr int kThreadsOfTwoQuadsInLine = 128;
  if (plan.heads_per_block > 4 && op.shape.head_dim > 64) {
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
  if (share <= kShortShare) return small;
  if (static_cast<double>(blocks * small.splits) < kFullEnough * gpu.sms) {
    return of_size(plan, op, gpu, kThreadsOfTwo, 2);
  }
  return of_size(plan, op, gpu, share < kLongShare || op.shape.head_dim < 128 ? 384 : 512);
}

}  // namespace

void judge_plan(Judge& judge, const AttentionInt8Mma& plan, const AttentionDecode& op,
                const GpuSpec& gpu) {
  judge.require(has_byte_products(gpu.arch),
                "{} ({}) has no products of bytes as dataflow int8_mma takes; use mma", gpu.name,
                gpu.arch);
  const int head_dim = op.shape.head_dim;
  judge.require(head_dim == 64 || head_dim == 128,
                "head_dim {} is neither 64 nor 128, as dataflow int8_mma takes; use mma", head_dim);
  judge_format(judge, op.keys, head_dim, "keys");
  judge_format(judge, op.values, head_dim, "values");
  judge.require(op.shape.query_tokens == 1,
                "query_tokens {} are more than the one of dataflow int8_mma; use mma",
                op.shape.query_tokens);
  if (!judge.ok()) return;
  judge.require(plan.threads <= most_threads(plan),
                "threads {} with heads_per_block {}: more than 4 heads have registers in blocks of "
                "at most {} threads",
                plan.threads, plan.heads_per_block, kThreadsOfTwoQuads);
  const std::int64_t tokens = vq::warp_tokens(configured(plan, op), op.shape.tokens);
  judge.require(tokens <= vq::kBytesMostTokens,
                "{} tokens of a warp are more than the {} whose probabilities are exact enough in "
                "16 bits; use more splits or threads",
                tokens, vq::kBytesMostTokens);
  judge_attention(judge, plan, op, gpu);
}

// All heads of a KV head that there are registers for share what is looked up. Where blocks are
// short even so, a quad each makes for fewer splits: 28 heads of 4 KV heads, 1 x 32768 tokens, took
// 11.9 us so, 12.5 with 7 heads a block (H100); or for none: 32 heads of 4, 9 x 933, 64 channels,
// 4.64 us so, 5.67 by fragments, which are taken where blocks of more heads share a sequence.
AttentionInt8Mma choose_plan(AttentionInt8Mma plan, const AttentionDecode& op, const GpuSpec& gpu) {
  const AttentionInt8Mma together = of_heads(plan, op, gpu, even_heads(op));
  if (together.heads_per_block <= 4) return together;
  const AttentionInt8Mma quads = of_heads(plan, op, gpu, even_heads(op, 4));
  const bool side_by_side = head_blocks(op, quads) <= gpu.sms;
  const std::int64_t most = quads.splits > 1 ? kShortShare : kFewTokens;
  return side_by_side && share_of_block(op, quads) <= most ? quads : together;
}

// All entries stand in shared memory in copies, whatever else may be allowed. It was timed on
// Hopper alone.
void add_candidates(Candidates& to, AttentionInt8Mma plan, const AttentionDecode& op,
                    SpacePlacement allowed) {
  if (allowed != SpacePlacement::any || !to.gpu.warpgroup_products) return;
  plan = choose_plan(plan, op, to.gpu);
  if (!check(plan, op, to.gpu).ok) return;
  using P = AttentionInt8Mma;
  std::vector<int> heads{even_heads(op)};
  if (heads.front() > 4) heads.push_back(even_heads(op, 4));
  for_each_of(plan,
              {{&P::heads_per_block, heads},
               {&P::threads, {128, 192, 256, 384, 512}},
               {&P::pipeline_stages, {2, 3, 4, 6, 8}}},
              [&] {
                const std::int64_t rounds = ceil_div(op.shape.tokens, std::int64_t{plan.threads});
                for (const std::int64_t waves : {1, 2}) {
                  const std::int64_t wanted =
                      std::max<std::int64_t>(1, waves * to.gpu.sms / head_blocks(op, plan));
                  plan.splits = static_cast<int>(std::min<std::int64_t>(wanted, rounds));
                  to.add(plan);
                }
              });
}

// As fragments count, but for products of bytes, and for values that are turned by permutes. By
// fits to 50 plans of 19 problems (H200): what warps past the eighth take at start and end, and how
// much longer the schedulers with most warps work where a block is alone on its multiprocessor.
void count_work(BlockWork& to, const AttentionInt8Mma& plan, const AttentionDecode& op,
                const PlanUse& use, ConflictTable& conflicts) {
  const double warps = plan.threads / 32.0;
  const double tokens = std::ceil(static_cast<double>(op.shape.tokens) / plan.splits);
  const double steps = std::ceil(tokens / plan.threads);
  const double raw_turns = std::ceil(std::ceil(op.raw_slots() / double{vq::kRawTile}) /
                                     (warps * plan.splits));  // of a warp, a tile each
  const double tiles = warps * (steps * vq::kBytesStep / 8 + raw_turns);
  const double quads = std::ceil(plan.heads_per_block / 4.0);
  const double lookups = tiles * op.shape.head_dim / 16;
  for (const OperandUse& each : use.operands) add_lookups(to, each, lookups, conflicts);
  const double octets = op.shape.head_dim / 32.0;
  to.products += tiles * octets * quads;  // of keys a half of a product, of values as much
  to.arithmetic += tiles * (op.shape.head_dim / 8.0 + quads * 12);
  to.passes += 2 * warps * quads * 4 * (op.shape.head_dim + 2) * 4 / 128;
  constexpr double kOfWarp = 0.8;
  to.prologue += around_turns(plan, op) + kOfWarp * std::max(0.0, warps - 8);
  to.fill = fill_turns(use, plan.threads);
  to.chain += steps * step_turns(vq::kBytesStep / 8.0, quads, op);
  to.registers = 65536 / most_threads(plan) / 8 * 8;
  to.times = std::ceil(warps / 4) * 4 / warps;
  // Two quads of heads without splits take registers for one.
  const bool alone = quads > 1 && plan.splits == 1 && op.shape.head_dim > 64;
  if (!alone) to.times_of_several = 1 / to.times;
}

std::vector<std::string> explain_plan(const AttentionInt8Mma& plan, const AttentionDecode& op) {
  const auto config = configured(plan, op);
  return {fmt::format("rounds of {} tokens, {} bytes of codes, {} in flight", plan.threads,
                      vq::round_bytes(config), plan.pipeline_stages)};
}

}  // namespace vqgen
