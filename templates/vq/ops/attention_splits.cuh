// The partial result of one split of a sequence, and how those of all splits become one:
//
//   partials   [batch x query head][split][channel .., maximum, sum] fp32
//
// Merged in the order of the splits; where a split holds no token, its maximum is -inf, its sum 0.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/layout/attention.h>
#include <vq/ops/splits.cuh>

namespace vq {

template <class Plan>
struct AttentionSplits {
  static constexpr int kHeadDim = Plan::config().head_dim;
  static constexpr int kSplits = Plan::config().splits;
  static constexpr int kFloats = kHeadDim + 2;

  // That of split number `split` for (batch, head) number `head`.
  VQ_DEVICE static float* partial(const AttentionDecodeArgs& args, i64 head, int split) {
    return args.partials + (head * kSplits + split) * kFloats;
  }

  // One channel of one head's result; with channel 0 its log-sum-exp. `load` reads a partial.
  template <class Load>
  VQ_DEVICE static void merge(const AttentionDecodeArgs& args, i64 head, int channel, Load load) {
    const float* const partials = partial(args, head, 0);
    struct Part {
      float value, maximum, sum;
    };
    const auto part_of = [&](int split) {
      const float* const from = partials + split * kFloats;
      return Part{load(from + channel), load(from + kHeadDim), load(from + kHeadDim + 1)};
    };
    float highest = -infinity();
    const auto raise = [&](float other) { highest = other > highest ? other : highest; };
    float total = 0.0f;
    float value = 0.0f;
    const auto add = [&](const Part& part) {
      if (part.sum == 0.0f) return;
      const float weight = exp2_approx(part.maximum - highest);
      total += weight * part.sum;
      value += weight * part.value;
    };
    constexpr int kInFlight = 16;
    if constexpr (kSplits <= kInFlight) {  // one wait for memory
      Part parts[kSplits];
      VQ_UNROLL
      for (int split = 0; split < kSplits; ++split) parts[split] = part_of(split);
      VQ_UNROLL
      for (int split = 0; split < kSplits; ++split) raise(parts[split].maximum);
      VQ_UNROLL
      for (int split = 0; split < kSplits; ++split) add(parts[split]);
    } else {
      in_order<kSplits, kInFlight>(
          [&](int split) { return load(partials + split * kFloats + kHeadDim); }, raise);
      in_order<kSplits, kInFlight>(part_of, add);
    }
    store_global(args.out + head * kHeadDim + channel,
                 from_float<Plan::config().element>(total == 0.0f ? 0.0f : value / total));
    if (channel == 0) store_global(args.lse + head, log_sum_exp(highest, total));
  }

  // Natural logarithm from a maximum in units of log2; -inf where nothing was summed.
  VQ_DEVICE static float log_sum_exp(float highest, float total) {
    constexpr float kLn2 = 0.69314718055994530942f;
    return total == 0.0f ? -infinity() : (highest + log2_approx(total)) * kLn2;
  }
};

}  // namespace vq
