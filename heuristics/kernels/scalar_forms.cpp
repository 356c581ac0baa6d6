// A matrix to and from int8: memory bounds it, so the rules take accesses of 16 bytes and see to it
// that enough of them are in flight. The study's other forms are in heuristics/papers/.
#include "heuristics/kernels/scalar_forms.h"

#include <algorithm>
#include <bit>

#include "core/ceil_div.h"

namespace vqgen {
namespace {

constexpr std::int64_t kMostBlocks = 2147483647;  // of a grid along x
constexpr int kSplitBlocksAnSm = 8;               // blocks that look for largest magnitudes
constexpr int kMostSplits = 256;                  // that one thread goes through for a channel
constexpr int kLeastTokens = 16;                  // of a split, per thread
constexpr int kBlocksAnSm = 2;                    // at least, where there are tokens for them
constexpr int kManyBlocksAnSm = 8;

// Chooses the splits so that each SM has its blocks, with some tokens each; 1 if scales are given.
ScalarForms with_splits(ScalarForms plan, const ScalarMatrix& op, const GpuSpec& gpu) {
  plan.splits = 1;
  if (op.shape.scales == Scales::given) return plan;
  const auto config = configured(plan, op);
  const std::int64_t wanted = std::int64_t{kSplitBlocksAnSm} * gpu.sms / vq::channel_tiles(config);
  const std::int64_t most =
      op.shape.tokens / (std::int64_t{kLeastTokens} * vq::rows_at_once(config));
  plan.splits = static_cast<int>(std::clamp<std::int64_t>(std::min(wanted, most), 1, kMostSplits));
  return plan;
}

// Lanes along the channels: no more than there are channels for.
ScalarForms with_lanes(ScalarForms plan, const ScalarMatrix& op) {
  while (plan.lanes > 1 && plan.lanes / 2 * plan.vector >= op.shape.channels) plan.lanes /= 2;
  return plan;
}

// Blocks of the launch that rounds.
std::int64_t blocks(const ScalarForms& plan, const ScalarMatrix& op) {
  const vq::CallShape shape = call_shape(plan, op);
  return shape.launches[shape.count - 1].x;
}

}  // namespace

void judge_plan(Judge& judge, const ScalarForms& plan, const ScalarMatrix& op, const GpuSpec& gpu) {
  const bool one_channel = plan.form != ScalarForm::vectorized;
  const bool one_token = plan.form == ScalarForm::naive || plan.form == ScalarForm::tiled;
  judge.require(plan.threads % plan.lanes == 0, "lanes {} do not divide threads {}", plan.lanes,
                plan.threads);
  judge.require(std::has_single_bit(static_cast<unsigned>(plan.vector)),
                "vector {} is not a power of two", plan.vector);
  judge.require(one_channel == (plan.vector == 1),
                "form {} and vector {}: vectorized takes 2 to 16 channels, other forms 1",
                enum_name(plan.form), plan.vector);
  judge.require(!one_token || plan.tokens == 1, "form {} takes 1 token per thread, not {}",
                enum_name(plan.form), plan.tokens);
  judge.require(plan.form != ScalarForm::coarsened || plan.tokens > 1,
                "form coarsened takes 2 to 16 tokens per thread; with 1 it is naive");
  judge.require(op.shape.scales == Scales::computed || plan.splits == 1,
                "splits {} have nothing to share where scales are given; use 1", plan.splits);
  if (!judge.ok()) return;
  judge.require(blocks(plan, op) <= kMostBlocks,
                "{} blocks are more than a grid has, {}; raise tokens, vector or threads",
                blocks(plan, op), kMostBlocks);
  judge_block(judge, plan.threads, call_shape(plan, op).shared_bytes(), gpu);
}

ScalarForms choose_plan(ScalarForms plan, const ScalarMatrix& op, const GpuSpec& gpu) {
  if (op.dtype != vq::Real::f32) plan.vector = 8;  // 16 bytes
  if (op.dtype != vq::Real::f32 && !op.decodes) {
    // Rounding takes as long as the loads of half as many bytes, so more of them are in flight.
    ScalarForms more = plan;
    more.threads = 128;
    more.tokens = 8;
    more = with_lanes(more, op);
    if (blocks(more, op) >= std::int64_t{kManyBlocksAnSm} * gpu.sms) plan = more;
  }
  plan = with_lanes(plan, op);
  while (plan.tokens > 1 && blocks(plan, op) < std::int64_t{kBlocksAnSm} * gpu.sms) {
    plan.tokens /= 2;
  }
  return with_splits(plan, op, gpu);
}

void add_form(Candidates& to, const ScalarMatrix& op, ScalarForm form, int vector, int tokens) {
  for (const int threads : {128, 256, 512}) {
    for (const int lanes : {32, 64, 128}) {
      const ScalarForms plan{
          .form = form, .threads = threads, .lanes = lanes, .vector = vector, .tokens = tokens};
      to.add(with_splits(with_lanes(plan, op), op, to.gpu));
    }
  }
}

void add_candidates(Candidates& to, ScalarForms plan, const ScalarMatrix& op, SpacePlacement) {
  to.add(choose_plan(plan, op, to.gpu));
  for (const int vector : {2, 4, 8, 16}) {
    for (const int tokens : {1, 2, 4, 8}) {
      add_form(to, op, ScalarForm::vectorized, vector, tokens);
    }
  }
}

PlanUse use_of(const ScalarForms& plan, const ScalarMatrix& op) {
  return {.threads = plan.threads,
          .blocks = blocks(plan, op),
          .shared_bytes = call_shape(plan, op).shared_bytes()};
}

// No coefficients are fitted to it: the counts order candidates for the tuner's first looks, at the
// GPU's ceilings.
void count_work(BlockWork& to, const ScalarForms& plan, const ScalarMatrix& op, const PlanUse& use,
                ConflictTable&) {
  constexpr int kElement = 14;  // instructions: a conversion, a product, its bounds, packing
  constexpr int kAccess = 6;    // an address and a condition
  const auto config = configured(plan, op);
  const double pieces = static_cast<double>(plan.vector) / vq::span(config);
  const double warps = plan.threads / 32.0;
  to.arithmetic += warps * plan.tokens * (plan.vector * kElement + 2 * pieces * kAccess);
  to.l2_bytes += op.bytes() / static_cast<double>(use.blocks);
  to.chain += 1;
  to.prologue += plan.form == ScalarForm::tiled ? 2 : 1;
  to.registers = 20 + plan.vector * (plan.tokens + 2);
}

std::vector<std::string> explain_plan(const ScalarForms& plan, const ScalarMatrix& op) {
  const auto config = configured(plan, op);
  std::vector<std::string> lines{fmt::format(
      "form {}: a thread takes {} channels of {} tokens, {} channels an access; a block {} "
      "channels of {} tokens",
      enum_name(plan.form), plan.vector, plan.tokens, vq::span(config), vq::tile_channels(config),
      vq::tile_tokens(config))};
  if (op.shape.scales == Scales::computed) {
    lines.push_back(fmt::format(
        "scales: the largest magnitude of each channel, over {} splits of the tokens; this reads "
        "the matrix once more",
        plan.splits));
  }
  return lines;
}

}  // namespace vqgen
