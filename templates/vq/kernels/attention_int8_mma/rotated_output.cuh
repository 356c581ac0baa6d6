// A block's results out of the basis of the cache (layout/basis.h), which saves the kernel that
// takes them out. Splits do so one by one: sums of values are rotated, and the mean counts as often
// as probabilities do.
//
//   results  in shared memory, a row per head
//   factors  a warp takes kChannels channels of the rotated rows at a time, of which a lane has its
//            part of each row of the rotation
//   sums     lanes exchange halves until each has the sum of one channel of one head
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/kernels/attention_int8_mma/plan.h>
#include <vq/loads.cuh>
#include <vq/ops/attention_work.cuh>
#include <vq/transposing_sum.cuh>

namespace vq {

template <class Plan>
class RotatedOutput {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr AttentionInt8MmaShared kAt = bytes_layout(kConfig);
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr int kHeads = kConfig.heads_per_block;
  static constexpr int kQuads = quad_heads(kConfig) / 4;
  static constexpr int kWarps = kConfig.threads / 32;
  static constexpr int kChannels = 8;
  static constexpr int kGroups = kHeadDim / kChannels;
  static constexpr int kOfLane = ceil_div(kHeadDim, 32);
  static constexpr bool kRotates = kConfig.value_basis.rotation;
  // A lane's channels of a row follow each other and are one access, or are l + 32 j.
  static constexpr bool kOneAccess = kHeadDim == 64 || kHeadDim == 128;
  struct Strided {
    u32 words[kOfLane];
  };
  using Row = Either<kOneAccess, Either<kOfLane == 4, U32x4, U32x2>, Strided>;

  // Loads what the warp needs first. Its uses wait for it, not begin().
  VQ_DEVICE void begin(const AttentionDecodeArgs& args, const AttentionWork<Plan>& work) {
    if constexpr (kRotates) {
      rotation_ = args.value_rotation + i64{work.kv_head} * kHeadDim * kHeadDim;
      load_factors(warp());
    }
    if constexpr (kConfig.key_basis.mean) {
      const i64 first = work.query_row() * kConfig.query_heads + work.first_head;
      VQ_UNROLL
      for (int i = 0; i < kOfWarp; ++i) {
        const int head = warp() + i * kWarps;
        if (head >= work.heads) continue;
        const u16* const query =
            args.query + (first + AttentionWork<Plan>::heads_to(head)) * kHeadDim;
        const float* const mean = args.key_mean + i64{work.kv_head} * kHeadDim;
        VQ_UNROLL
        for (int j = 0; j < kOfLane; ++j) {
          const int channel = lane() + 32 * j;
          if (!inside(channel)) continue;
          query_[i][j] = load_global(query + channel);
          mean_[i][j] = load_constant(mean + channel);
        }
      }
    }
  }

  // Keeps a result in the basis.
  VQ_DEVICE static void keep(int head, int channel, float value, float highest, float total) {
    store_shared(row_of(head) + channel, value);
    if (channel == 0) {
      store_shared(highest_of(head), highest);
      store_shared(total_of(head), total);
    }
  }
  // Stores how much larger each head's scores are than those in the basis. All threads.
  VQ_DEVICE void store_shifts(const AttentionDecodeArgs& args) const {
    if constexpr (kConfig.key_basis.mean) {
      VQ_UNROLL
      for (int i = 0; i < kOfWarp; ++i) {
        float sum = 0.0f;
        VQ_UNROLL
        for (int j = 0; j < kOfLane; ++j) {
          sum = fused(to_float<kConfig.element>(query_[i][j]), mean_[i][j], sum);
        }
        VQ_UNROLL
        for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
        const int head = warp() + i * kWarps;
        if (head < kHeads && lane() == 0) store_shared(shift_of(head), sum * score_scale(args));
      }
    }
  }

  // Calls each(head, channel, value, maximum, sum) for the results out of the basis, once all
  // threads have kept theirs. Begins with a barrier. All threads.
  template <class Each>
  VQ_DEVICE void for_each(const AttentionDecodeArgs& args, int kv_head, Each each) {
    sync_block();
    const float* const mean = args.value_mean + i64{kv_head} * kHeadDim;
    const auto give = [&](int head, int channel, float value) {
      const float total = load_shared(total_of(head));
      float highest = load_shared(highest_of(head));
      if constexpr (kConfig.key_basis.mean) highest += load_shared(shift_of(head));
      if constexpr (kConfig.value_basis.mean) {
        value = fused(load_constant(mean + channel), total, value);
      }
      each(head, channel, value, highest, total);
    };
    if constexpr (kRotates) {
      for (int group = warp(); group < kGroups; group += kWarps) {
        if (group >= kWarps) load_factors(group);
        VQ_UNROLL
        for (int quad = 0; quad < kQuads; ++quad) {
          const float sum = sum_of(quad);
          const int head = quad * 4 + lane() % 4;
          if (head < kHeads) give(head, group * kChannels + lane() / 4, sum);
        }
      }
    } else {
      for (int i = thread_index(); i < kHeads * kHeadDim; i += kConfig.threads) {
        const int head = i / kHeadDim;
        const int channel = i % kHeadDim;
        give(head, channel, load_shared(row_of(head) + channel));
      }
    }
  }

 private:
  static constexpr int kOfWarp = ceil_div(kHeads, kWarps);  // heads whose scores it shifts

  VQ_DEVICE static bool inside(int channel) { return kHeadDim % 32 == 0 || channel < kHeadDim; }
  // This lane's channels of a row, zeros past its end.
  template <class Load>
  VQ_DEVICE static Row part_of(const float* row, Load load) {
    if constexpr (kOneAccess) {
      return load(reinterpret_cast<const Row*>(row) + lane());
    } else {
      Row part = {};
      VQ_UNROLL
      for (int j = 0; j < kOfLane; ++j) {
        const int channel = lane() + 32 * j;
        if (inside(channel)) part.words[j] = load(reinterpret_cast<const u32*>(row) + channel);
      }
      return part;
    }
  }
  VQ_DEVICE static float number(const Row& part, int j) {
    if constexpr (kOneAccess) {
      return float_from_bits(word_of(part, j));
    } else {
      return float_from_bits(part.words[j]);
    }
  }

  // Rows are those of the query, of which make_query() has made words.
  VQ_DEVICE static float* row_of(int head) {
    return shared_part<float>(kAt.query) + head * kHeadDim;
  }
  VQ_DEVICE static float* highest_of(int head) { return shared_part<float>(kAt.results) + head; }
  VQ_DEVICE static float* total_of(int head) { return highest_of(head) + kHeads; }
  VQ_DEVICE static float* shift_of(int head) { return highest_of(head) + 2 * kHeads; }

  VQ_DEVICE void load_factors(int group) {
    if (group >= kGroups) return;
    VQ_UNROLL
    for (int i = 0; i < kChannels; ++i) {
      const float* const row = rotation_ + (group * kChannels + i) * kHeadDim;
      factors_[i] = part_of(row, BeginConstant());
    }
  }
  // The sum of channel lane() / 4 of the group, of head lane() % 4 of the quad.
  VQ_DEVICE float sum_of(int quad) const {
    float sums[32];
    VQ_UNROLL
    for (int h = 0; h < 4; ++h) {
      const Row own = quad * 4 + h < kHeads ? part_of(row_of(quad * 4 + h), LoadShared()) : Row{};
      VQ_UNROLL
      for (int i = 0; i < kChannels; ++i) {
        float sum = 0.0f;
        VQ_UNROLL
        for (int j = 0; j < kOfLane; ++j) {
          sum = fused(number(factors_[i], j), number(own, j), sum);
        }
        sums[i * 4 + h] = sum;
      }
    }
    return transposing_sum<32>(sums);
  }

  const float* rotation_ = nullptr;
  Row factors_[kRotates ? kChannels : 1];
  u16 query_[kOfWarp][kOfLane] = {};
  float mean_[kOfWarp][kOfLane] = {};
};

}  // namespace vq
