// Merges the partial results of a sequence's splits:
//
//   partials   [query token x query head][slot][channel .., maximum, sum] fp32
//
// Split i of sequence b is slot b kSplits + i; with a balanced schedule slots are pieces
// (attention_pieces.cuh). The order is fixed whoever merges: groups of kTogether contiguous slots,
// then the groups. A split without tokens has maximum -inf and sum 0.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/layout/attention.h>
#include <vq/logarithms.cuh>
#include <vq/ops/splits.cuh>

namespace vq {

template <class Plan>
struct AttentionSplits {
  static constexpr int kHeadDim = Plan::config().value_dim;
  static constexpr int kSplits = partial_count(Plan::config());
  static constexpr int kFloats = kHeadDim + 2;

  // The partial of slot `slot` for head `head` of query token `number`.
  VQ_DEVICE static float* partial(const AttentionDecodeArgs& args, int number, int head, int slot) {
    const i64 row = i64{number} * Plan::config().query_heads + head;
    // partial_slots() by numbers: a config with keys in parts, taken at run time, would be built in
    // memory of each thread.
    const int slots = balanced(Plan::config()) ? kSplits + args.batch - 1 : kSplits * args.batch;
    return args.partials + (row * slots + slot) * kFloats;
  }

  // kChannels channels of one split or of several: sums of values in units of exp2(maximum).
  template <int kChannels>
  struct Part {
    float values[kChannels];
    float maximum, sum;

    VQ_DEVICE static Part none() {
      Part part = {};
      part.maximum = -infinity();
      return part;
    }
  };

  // The first `count` of some parts as one, summed in their order. Without branches, behind which
  // the compiler would put the loads of values, one after the other.
  template <int kCount, int kChannels>
  VQ_DEVICE static Part<kChannels> together(const Part<kChannels> (&parts)[kCount], int count) {
    Part<kChannels> all = Part<kChannels>::none();
    VQ_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (i < count && parts[i].maximum > all.maximum) all.maximum = parts[i].maximum;
    }
    VQ_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const bool counts = i < count && parts[i].sum != 0.0f;
      const float weight = counts ? exp2_approx(parts[i].maximum - all.maximum) : 0.0f;
      all.sum += weight * parts[i].sum;
      VQ_UNROLL
      for (int c = 0; c < kChannels; ++c) {
        all.values[c] += weight * (counts ? parts[i].values[c] : 0.0f);
      }
    }
    return all;
  }

  // kChannels channels of group `group` of the `count` partials from `partials` on: of kTogether
  // that one wait for memory brings. `load` reads a partial.
  static constexpr int kTogether = merged_together(Plan::config());
  template <int kChannels, class Load>
  VQ_DEVICE static Part<kChannels> load_group(const float* partials, int group, int count,
                                              int channel, Load load) {
    const int first = group * kTogether;
    Part<kChannels> parts[kTogether];
    VQ_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      const int split = first + i < count ? first + i : count - 1;
      const float* const from = partials + split * kFloats;
      VQ_UNROLL
      for (int c = 0; c < kChannels; ++c) parts[i].values[c] = load(from + channel + c);
      parts[i].maximum = load(from + kHeadDim);
      parts[i].sum = load(from + kHeadDim + 1);
    }
    return together(parts, count - first);
  }

  // Groups of `count` splits become one, in their order; part_of(group) is that group's part.
  template <int kChannels, class PartOf>
  VQ_DEVICE static Part<kChannels> groups_together(int count, PartOf part_of) {
    Part<kChannels> parts[2] = {Part<kChannels>::none()};  // the merged groups, and the next one
    for (int group = 0; group * kTogether < count; ++group) {
      parts[1] = part_of(group);
      parts[0] = together(parts, 2);
    }
    return parts[0];
  }

  // merge() over the partials from `partials` on; one thread merges its channels.
  template <int kChannels, class Load>
  VQ_DEVICE static Part<kChannels> merged(const float* partials, int count, int channel,
                                          Load load) {
    return groups_together<kChannels>(count, [&](int group) {
      return load_group<kChannels>(partials, group, count, channel, load);
    });
  }

  // Adds a head's sink logit to a result's sum, and its maximum where that is larger; `row` is the
  // head's of out. Returns what its weighted values are to be multiplied by.
  static constexpr bool kSinkLogits =
      Plan::config().sink_logits && !ends_with_basis(Plan::config());
  VQ_DEVICE static float add_sink(const AttentionDecodeArgs& args, i64 row, float& maximum,
                                  float& sum) {
    if constexpr (!kSinkLogits) return 1.0f;
    const float sink = load_constant(args.sink_logits + row % Plan::config().query_heads) * kLog2E;
    const float highest = sum == 0.0f || sink > maximum ? sink : maximum;
    const float weight = sum == 0.0f ? 0.0f : exp2_approx(maximum - highest);
    sum = fused(sum, weight, sink == highest ? 1.0f : exp2_approx(sink - highest));
    maximum = highest;
    return weight;
  }

  // Channel c of all splits as an element of `out`; 0 where nothing was summed.
  template <int kChannels>
  VQ_DEVICE static u16 element(const Part<kChannels>& whole, int c) {
    return from_float<Plan::config().element>(whole.sum == 0.0f ? 0.0f
                                                                : whole.values[c] / whole.sum);
  }
  // All splits of a head are head number `to` of out; with channel 0 its log-sum-exp.
  template <int kChannels>
  VQ_DEVICE static void write(const AttentionDecodeArgs& args, Part<kChannels> whole, i64 to,
                              int channel) {
    const float weight = add_sink(args, to, whole.maximum, whole.sum);
    VQ_UNROLL
    for (int c = 0; c < kChannels; ++c) {
      if constexpr (kSinkLogits) whole.values[c] *= weight;
      store_global(args.out + to * kHeadDim + channel + c, element(whole, c));
    }
    if (channel == 0) store_global(args.lse + to, log_sum_exp(whole.maximum, whole.sum));
  }

  // Natural logarithm from a maximum in units of log2; -inf where nothing was summed.
  VQ_DEVICE static float log_sum_exp(float highest, float total) {
    return total == 0.0f ? -infinity() : (highest + log2_approx(total)) * kLn2;
  }
};

}  // namespace vq
