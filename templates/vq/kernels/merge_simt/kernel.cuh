// attention_merge: combines results of attention over disjoint sets of tokens,
//
//   m = max lse_i,  w_i = exp(lse_i - m),  out = sum w_i out_i / sum w_i,  lse = m + log(sum w_i)
//
// A part whose lse is -inf counts nothing. Memory bounds the kernel, so a lane issues all parts'
// loads before it uses one. The result may overwrite a part: a lane stores only channels that it
// alone has loaded, and lse once all lanes of the row have read it.
#pragma once

#include <vq/args/attention_merge.h>
#include <vq/kernels/merge_simt/plan.h>
#include <vq/codebook/entry.cuh>
#include <vq/logarithms.cuh>
#include <vq/machine.cuh>

namespace vq {

template <class Plan>
class MergedRow {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr int kParts = kConfig.parts;
  static constexpr Element kElement = kConfig.element;

  // Channels `at` and the 7 behind it, of row and head number `number`.
  VQ_DEVICE void merge(const AttentionMergeArgs& args, i64 number, i64 element) {
    U32x4 words[kParts];
    float lse[kParts];
    VQ_UNROLL
    for (int i = 0; i < kParts; ++i) lse[i] = load_global_coherent(args.lses[i] + number);
    VQ_UNROLL
    for (int i = 0; i < kParts; ++i)
      words[i] = load_global_coherent(reinterpret_cast<const U32x4*>(args.outs[i] + element));
    float weight[kParts];
    const float total = weigh(lse, weight);
    const float scale = 1.0f / total;
    const float none = total == 0.0f ? 0.0f : -0.0f;  // to the latter -0 adds as itself
    float value[kMergedChannels];
    VQ_UNROLL
    for (int j = 0; j < kMergedChannels; ++j) value[j] = none;
    VQ_UNROLL
    for (int i = 0; i < kParts; ++i) {
      if (lse[i] == -infinity()) continue;
      add_entry<kElement>(value, words[i], weight[i] * scale);
    }
    words_ = {pack2<kElement>(value[0], value[1]), pack2<kElement>(value[2], value[3]),
              pack2<kElement>(value[4], value[5]), pack2<kElement>(value[6], value[7])};
    lse_ = most_ + kLn2 * log2_approx(total);  // -inf of none
  }

  VQ_DEVICE void store_out(u16* out) const { store_global(reinterpret_cast<U32x4*>(out), words_); }
  VQ_DEVICE void store_lse(float* lse) const { store_global(lse, lse_); }

 private:
  // The weights of the parts that count, and their sum: 0 where none does, 1 of one alone. lse of
  // NaN and of +inf make it NaN.
  VQ_DEVICE float weigh(const float (&lse)[kParts], float (&weight)[kParts]) {
    most_ = -infinity();
    VQ_UNROLL
    for (int i = 0; i < kParts; ++i) most_ = lse[i] > most_ ? lse[i] : most_;
    float total = 0.0f;
    VQ_UNROLL
    for (int i = 0; i < kParts; ++i) {
      const bool counts = lse[i] != -infinity();
      weight[i] = counts ? exp2_approx((lse[i] - most_) * kLog2E) : 0.0f;
      total += weight[i];
    }
    return total;
  }

  float most_;
  float lse_;
  U32x4 words_;
};

template <class Plan>
VQ_DEVICE void attention_merge_simt(const AttentionMergeArgs& args) {
  constexpr auto kConfig = Plan::config();
  constexpr int kLanes = row_lanes(kConfig);
  constexpr int kAtOnce = heads_at_once(kConfig);
  const int own = thread_index() / kLanes;
  const int channel = thread_index() % kLanes * kMergedChannels;
  const i64 all = i64{args.rows} * kConfig.heads;
  for (i64 first = i64{block_x()} * kAtOnce; first < all; first += i64{kConfig.blocks} * kAtOnce) {
    const i64 number = first + own;
    const bool here = own < kAtOnce && number < all;
    const i64 element = number * kConfig.head_dim + channel;
    MergedRow<Plan> row;
    if (here) row.merge(args, number, element);
    sync_block();  // for the log-sum-exp, which all lanes of the row have loaded
    if (here) row.store_out(args.out + element);
    if (here && channel == 0) row.store_lse(args.lse + number);
  }
}

}  // namespace vq
