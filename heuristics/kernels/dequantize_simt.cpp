// Plans of cache dequantization, which is bound by the bytes it writes: the grid is one or a few
// waves, and codebooks are in shared memory if a block loads little compared with what it writes.
#include "heuristics/kernels/attention.h"
#include "heuristics/occupancy.h"

namespace vqgen {
namespace {

constexpr int kLeastDecoded = 16;      // per block
constexpr int kUsuallyDecoded = 1024;  // at most
constexpr int kMostDecoded = 4096;     // per block with large codebooks to load
constexpr int kBeginning = 64;         // tokens' worth of a block's start
constexpr double kWorthFilling = 1;    // bytes fetched to shared memory for one that is written
constexpr double kWorthCopies = 0.25;  // bytes stored to shared memory for one that is written

// Tokens whose rows are as many bytes as a tensor's codebooks.
double tokens_of_codebooks(const vq::FormatConfig& format) {
  const int channels = format.part.channels;
  return static_cast<double>(vq::units_of(format, channels)) *
         static_cast<double>(vq::unit_codebook_elements(format)) / channels;
}

// Registers per thread.
int registers_of(const KvDequantize& op) {
  return op.keys.hadamard && op.shape.head_dim == 256 ? 128 : 80;
}

std::int64_t resident_blocks(const DequantizeSimt& plan, const KvDequantize& op,
                             const GpuSpec& gpu) {
  const std::int64_t bytes = call_shape(plan, op).main_shared_bytes();
  return std::int64_t{std::max(occupancy(gpu, plan.threads, registers_of(op), bytes).blocks, 1)} *
         gpu.sms;
}

// Sets the tokens per block with which the grid's waves end soonest; a block's start counts as
// `beginning` tokens.
DequantizeSimt share_tokens(DequantizeSimt plan, const KvDequantize& op, const GpuSpec& gpu,
                            double beginning) {
  const int most = beginning > 2 * kBeginning ? kMostDecoded : kUsuallyDecoded;
  plan.tokens_per_block = most;
  const int step = vq::step_tokens(configured(plan, op));
  DequantizeSimt best = plan;
  double least = 0;
  for (int tokens = kLeastDecoded; tokens <= most;) {
    plan.tokens_per_block = tokens;
    const std::int64_t waves =
        ceil_div(call_shape(plan, op).blocks(), resident_blocks(plan, op, gpu));
    const double time = static_cast<double>(waves) * (tokens + beginning);
    if ((least == 0 || time < least) && check(plan, op, gpu).ok) {
      best = plan;
      least = time;
    }
    if (tokens >= op.shape.tokens) break;
    tokens += tokens < step ? kLeastDecoded : step;
  }
  return best;
}

}  // namespace

void judge_plan(Judge& judge, const DequantizeSimt& plan, const KvDequantize& op,
                const GpuSpec& gpu) {
  judge_codebooks(judge, op, gpu);
  const auto config = configured(plan, op);
  const vq::CallShape shape = call_shape(plan, op);
  judge.require(shape.launches[0].x <= 2147483647,
                "{} tokens by {} exceed the grid's first axis; raise tokens_per_block",
                op.shape.tokens, plan.tokens_per_block);
  judge_placement(judge, config.keys, vq::block_units(config.keys, op.shape.head_dim), "keys");
  judge_placement(judge, config.values, vq::block_units(config.values, op.shape.value_dim()),
                  "values");
  judge_block(judge, plan.threads, shape.shared_bytes(), gpu);
}

DequantizeSimt choose_plan(DequantizeSimt plan, const KvDequantize& op, const GpuSpec& gpu) {
  const auto config = configured(plan, op);
  const std::array operands{std::pair(&DequantizeSimt::key_codebook, &config.keys),
                            std::pair(&DequantizeSimt::value_codebook, &config.values)};
  plan.tokens_per_block = kLeastDecoded;
  // In shared memory if they fit, as a block is of keys or of values alone, and then if a block
  // writes at least what it loads.
  for (const auto& [placement, format] : operands) {
    plan.*placement = all_shared(vq::entries(*format));
    if (!check(plan, op, gpu).ok) plan.*placement = all_global();
  }
  const auto shared = [&] {
    double beginning = kBeginning;
    for (const auto& [placement, format] : operands) {
      if (plan.*placement == all_global()) continue;
      beginning = std::max(beginning, kBeginning + tokens_of_codebooks(*format));
    }
    return share_tokens(plan, op, gpu, beginning);
  };
  plan = shared();
  for (const auto& [placement, format] : operands) {
    const double tokens = tokens_of_codebooks(*format);
    if (tokens > kWorthFilling * plan.tokens_per_block) plan.*placement = all_global();
  }
  plan = shared();
  // Copies, of which lanes read without conflicts, where they cost no room for blocks.
  for (const auto& [placement, format] : operands) {
    if (plan.*placement == all_global()) continue;
    const int copies = 128 / vq::held_bytes(*format);
    const double tokens = copies * tokens_of_codebooks(*format);
    DequantizeSimt with_copies = plan;
    with_copies.*placement = all_replicated(vq::entries(*format), copies);
    if (tokens <= kWorthCopies * plan.tokens_per_block && check(with_copies, op, gpu).ok &&
        resident_blocks(with_copies, op, gpu) == resident_blocks(plan, op, gpu)) {
      plan = with_copies;
    }
  }
  return plan;
}

void add_candidates(Candidates& to, DequantizeSimt plan, const KvDequantize& op,
                    SpacePlacement allowed) {
  using P = DequantizeSimt;
  if (allowed == SpacePlacement::any) to.add(choose_plan(plan, op, to.gpu));
  const std::vector<PlacementPair> placements = placement_pairs(op, allowed);
  for_each_of(plan,
              {{&P::threads, {128, 256, 512}},
               {&P::tokens_per_block, {16, 32, 64, 128, 256, 512, 1024, 2048}}},
              [&] {
                for (const auto& [keys, values] : placements) {
                  plan.key_codebook = keys;
                  plan.value_codebook = values;
                  to.add(plan);
                }
              });
}

PlanUse use_of(const DequantizeSimt& plan, const KvDequantize& op) {
  const auto config = configured(plan, op);
  const vq::CallShape shape = call_shape(plan, op);
  const double of_each = static_cast<double>(shape.blocks()) / 2;
  return {.threads = plan.threads,
          .blocks = shape.blocks(),
          .shared_bytes = shape.main_shared_bytes(),
          .operands = {
              cache_use(Operand::keys, op, config.keys, op.shape.head_dim, 1, of_each),
              cache_use(Operand::values, op, config.values, op.shape.value_dim(), 1, of_each)}};
}

// No coefficients are fitted to it yet: the counts order candidates for the tuner's first looks, at
// the GPU's ceilings. Half of the blocks are of each tensor.
void count_work(BlockWork& to, const DequantizeSimt& plan, const KvDequantize& op,
                const PlanUse& use, ConflictTable& conflicts) {
  const double warps = plan.threads / 32.0;
  double chain = 0;
  for (const OperandUse& each : use.operands) {
    const vq::FormatConfig& format = each.format;
    const int rows = vq::rows_at_once(configured(plan, op), row_dim(op.shape, each.operand));
    const double turns = std::ceil(1.0 * plan.tokens_per_block / rows);
    chain = std::max(chain, 1 + turns);
    const double lookups = turns * warps * vq::kDecodedChannels / vq::piece_elements(format) *
                           format.num_codebooks / 2;
    add_lookups(to, each, lookups, conflicts);
    // A code is read, shifted and added; sums are rounded and stored.
    to.arithmetic += lookups * (4 + 2 * vq::piece_elements(format)) + turns * warps * 8;
    // A rotation is three additions of each channel, its factor, and what makes operands.
    if (format.hadamard) to.arithmetic += turns * warps / 2 * vq::kDecodedChannels * 5;
  }
  to.chain += chain;
  to.prologue += 2;
  to.registers = registers_of(op);
}

std::vector<std::string> explain_plan(const DequantizeSimt& plan, const KvDequantize& op) {
  return {fmt::format("tokens_per_block {}: of keys or of values, {} in a step",
                      plan.tokens_per_block, vq::step_tokens(configured(plan, op)))};
}

}  // namespace vqgen
