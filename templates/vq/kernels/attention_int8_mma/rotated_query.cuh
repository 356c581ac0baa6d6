// The block's query in the basis of the keys (layout/basis.h), which saves the kernel that brings
// it there:
//
//   factors  a warp has kRows rows of the rotation, a lane channels l + 32 j of each; they are in
//            flight before the previous launch has ended
//   query    in shared memory, the four heads of a quad beside each other
//   sums     a warp's products with its rows; the warp of a head adds those of all warps
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/kernels/attention_int8_mma/plan.h>
#include <vq/loads.cuh>
#include <vq/ops/attention_query.cuh>

namespace vq {

template <class Plan>
class RotatedQuery {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr AttentionInt8MmaShared kAt = bytes_layout(kConfig);
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr int kWarps = kConfig.threads / 32;
  static constexpr int kQuads = quad_heads(kConfig) / 4;
  static constexpr int kRows = ceil_div(kHeadDim, kWarps);
  static constexpr int kOfLane = ceil_div(kHeadDim, 32);
  static constexpr bool kHeld = kRows <= 16 && kRows * kOfLane <= 80;  // registers hold the factors

  // Loads the factors of a KV head. May stand before after_last_launch().
  VQ_DEVICE void begin(const AttentionDecodeArgs& args, int kv_head) {
    rotation_ = args.key_rotation + i64{kv_head} * kHeadDim * kHeadDim;
    if constexpr (kHeld) {
      VQ_UNROLL
      for (int row = 0; row < kRows; ++row) load(factors_[row], row);
    }
  }

  // Gives `rows` the block's query in the basis. Two barriers, and one for each further quad; what
  // the last warps load from shared memory is free behind the next. All threads.
  VQ_DEVICE void rotate(const AttentionDecodeArgs& args, const AttentionWork<Plan>& work,
                        QueryRows<Plan>& rows) const {
    const i64 first = work.query_row() * kConfig.query_heads + work.first_head;
    for (int i = thread_index(); i < kQuads * 4 * kHeadDim; i += kConfig.threads) {
      const int head = i / kHeadDim;
      const int channel = i % kHeadDim;
      float value = 0.0f;
      if (head < work.heads) {
        value = to_float<kConfig.element>(load_global(
            args.query + (first + AttentionWork<Plan>::heads_to(head)) * kHeadDim + channel));
      }
      store_shared(query_of(head / 4, channel) + head % 4, value);
    }
    sync_block();
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      if (quad > 0) sync_block();  // the sums of the quad before are read
      add_up(quad);
      sync_block();
      rows.take(quad, [](int head, int channel) {
        float sum = 0.0f;
        if (!inside(channel)) return sum;
        VQ_UNROLL
        for (int w = 0; w < kWarps; ++w) sum += load_shared(sums_of(w, head) + channel);
        return sum;
      });
    }
  }

 private:
  VQ_DEVICE static bool inside(int channel) { return kHeadDim % 32 == 0 || channel < kHeadDim; }
  VQ_DEVICE static float* query_of(int quad, int channel) {
    return shared_part<float>(kAt.query) + (quad * kHeadDim + channel) * 4;
  }
  VQ_DEVICE static float* sums_of(int w, int head_of_quad) {
    return shared_part<float>(kAt.query_sums) + (w * 4 + head_of_quad) * kHeadDim;
  }
  VQ_DEVICE static int channel_of(int row) { return row * kWarps + warp(); }
  VQ_DEVICE void load(float (&factors)[kOfLane], int row) const {
    VQ_UNROLL
    for (int j = 0; j < kOfLane; ++j) {
      factors[j] = channel_of(row) < kHeadDim && inside(lane() + 32 * j)
                       ? load_constant(rotation_ + channel_of(row) * kHeadDim + lane() + 32 * j)
                       : 0.0f;
    }
  }

  // Stores this warp's sums of a quad.
  VQ_DEVICE void add_up(int quad) const {
    float sums[4][kOfLane] = {};
    VQ_UNROLL
    for (int row = 0; row < kRows; ++row) {
      if (channel_of(row) >= kHeadDim) break;
      float factors[kOfLane];
      if constexpr (kHeld) {
        VQ_UNROLL
        for (int j = 0; j < kOfLane; ++j) factors[j] = factors_[row][j];
      } else {
        load(factors, row);
      }
      const U32x4 heads =
          load_shared(reinterpret_cast<const U32x4*>(query_of(quad, channel_of(row))));
      VQ_UNROLL
      for (int h = 0; h < 4; ++h) {
        VQ_UNROLL
        for (int j = 0; j < kOfLane; ++j) {
          sums[h][j] = fused(float_from_bits(word_of(heads, h)), factors[j], sums[h][j]);
        }
      }
    }
    VQ_UNROLL
    for (int h = 0; h < 4; ++h) {
      VQ_UNROLL
      for (int j = 0; j < kOfLane; ++j) {
        if (!inside(lane() + 32 * j)) continue;
        store_shared(sums_of(warp(), h) + lane() + 32 * j, sums[h][j]);
      }
    }
  }

  const float* rotation_ = nullptr;
  float factors_[kHeld ? kRows : 1][kOfLane];
};

}  // namespace vq
