// Rows of a cache into its basis and back (layout/basis.h), four at a time. A block keeps the
// rotation in registers, whose rows its lanes read side by side:
//
//   into the basis   a warp multiplies 8 channels of the rows by its rows of the rotation, and the
//                    block adds the warps' sums
//   out of it        a warp makes 8 channels: its lanes share out the sums over the rows' channels,
//                    and one transposing sum gives each lane a channel of a row
#pragma once

#include <vq/layout/basis.h>
#include <vq/machine.cuh>
#include <vq/transposing_sum.cuh>

namespace vq {

// A row of 16-bit elements times one of floats, by one warp; all of its lanes get it.
template <int kChannels, Element kElement>
VQ_DEVICE float dot(const u16* row, const float* other) {
  float total = 0.0f;
  for (int c = lane(); c < kChannels; c += 32) {
    total += to_float<kElement>(load_global(row + c)) * load_constant(other + c);
  }
  VQ_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) total += shuffle_xor(total, mask);
  return total;
}

// `Plan` is of an op on a KV cache; a block has kRows rows. kBack: out of the basis.
template <class Plan, int kRows, bool kBack>
class BasisBlock {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr int kWarps = basis_threads(kHeadDim) / 32;
  static constexpr int kChannels = kBasisChannels;        // that a warp makes
  static constexpr int kOfLane = ceil_div(kHeadDim, 32);  // channels of a row that a lane reads
  static constexpr int kTogether = kBasisRows;
  static_assert(kHeadDim % kChannels == 0 && kRows % kTogether == 0, "whole warps");

  // The keys' basis, or the values', at one KV head. Its constants are in flight from here on,
  // which may be before after_last_launch().
  template <class Args>
  VQ_DEVICE BasisBlock(const Args& args, bool values, int kv_head)
      : basis_(values ? kConfig.value_basis : kConfig.key_basis) {
    const i64 head = i64{kv_head} * kHeadDim;
    if (basis_.mean) mean_ = (values ? args.value_mean : args.key_mean) + head;
    if (!basis_.rotation) return;
    rotation_ = (values ? args.value_rotation : args.key_rotation) + head * kHeadDim;
    if constexpr (kHeld) {
      VQ_UNROLL
      for (int i = 0; i < kOfLane; ++i) {
        VQ_UNROLL
        for (int c = 0; c < kChannels; ++c) factors_[i][c] = factor(i, c);
      }
    }
  }

  // The row of each four whose channel a lane gets from change() out of the basis.
  VQ_DEVICE static int own_row() { return lane() / kChannels; }

  // Changes rows 0 .. count - 1 of 16-bit elements: load(t, channel) of row t to row t at to(t),
  // null where a row is left alone; on the way into the basis less the mean if `centered`. Out of
  // it all are loaded, and a barrier is passed, before any is stored. All threads.
  template <class Load, class To>
  VQ_DEVICE void change(int count, bool centered, Load load, To to) const {
    if constexpr (!kBack) {
      if (basis_.rotation) return into(count, centered, load, to);
    }
    float values[kRows / kTogether];
    VQ_UNROLL
    for (int group = 0; group < kRows / kTogether; ++group) {
      if (group * kTogether < count) values[group] = changed(count, group, centered, load);
    }
    if constexpr (kBack) sync_block();
    VQ_UNROLL
    for (int group = 0; group < kRows / kTogether; ++group) {
      const int row = group * kTogether + lane() / kChannels;
      if (row < count) store(to(row), warp() * kChannels + lane() % kChannels, values[group]);
    }
  }

 private:
  static constexpr bool kHeld = kHeadDim <= 128;  // registers hold the warp's part of the rotation

  // Factor of the warp's channel c and this lane's channel number i: of rows that the warp reads
  // and makes, or makes and reads.
  VQ_DEVICE float factor(int i, int c) const {
    const int j = lane() + 32 * i;
    if (kHeadDim % 32 != 0 && j >= kHeadDim) return 0.0f;
    return load_constant(rotation_ + (warp() * kChannels + c) * kHeadDim + j);
  }
  VQ_DEVICE float held(int i, int c) const {
    if constexpr (kHeld) return factors_[i][c];
    return factor(i, c);
  }
  VQ_DEVICE void store(u16* row, int channel, float value) const {
    if (row == nullptr) return;
    const float mean = kBack && basis_.mean ? load_constant(mean_ + channel) : 0.0f;
    store_global(row + channel, from_float<kConfig.element>(value + mean));
  }
  VQ_DEVICE float value_of(u16 bits, int channel, bool centered) const {
    const float value = to_float<kConfig.element>(bits);
    return !kBack && basis_.mean && centered ? value - load_constant(mean_ + channel) : value;
  }

  // change() into the basis.
  template <class Load, class To>
  VQ_DEVICE void into(int count, bool centered, Load load, To to) const {
    float* const sums = shared_part<float>(0);  // [warp][row][channel]
    // Lane (t, c) has the warp's channel c of row t of each group.
    float values[kRows / kTogether];
    VQ_UNROLL
    for (int group = 0; group < kRows / kTogether; ++group) {
      const int row = group * kTogether + lane() / kChannels;
      const int channel = warp() * kChannels + lane() % kChannels;
      values[group] = row < count ? value_of(load(row, channel), channel, centered) : 0.0f;
    }
    VQ_UNROLL
    for (int group = 0; group < kRows / kTogether; ++group) {
      const int first = group * kTogether;
      if (first >= count) break;
      float parts[kTogether][kOfLane] = {};
      VQ_UNROLL
      for (int c = 0; c < kChannels; ++c) {
        float factors[kOfLane];
        VQ_UNROLL
        for (int i = 0; i < kOfLane; ++i) factors[i] = held(i, c);
        VQ_UNROLL
        for (int t = 0; t < kTogether; ++t) {
          const float each = float_from_bits(shuffle(float_bits(values[group]), t * kChannels + c));
          VQ_UNROLL
          for (int i = 0; i < kOfLane; ++i) parts[t][i] = fused(each, factors[i], parts[t][i]);
        }
      }
      VQ_UNROLL
      for (int t = 0; t < kTogether; ++t) {
        VQ_UNROLL
        for (int i = 0; i < kOfLane; ++i) {
          const int channel = lane() + 32 * i;
          if (kHeadDim % 32 == 0 || channel < kHeadDim)
            store_shared(sums + (warp() * kTogether + t) * kHeadDim + channel, parts[t][i]);
        }
      }
      sync_block();
      for (int i = thread_index(); i < kTogether * kHeadDim; i += kWarps * 32) {
        const int row = first + i / kHeadDim;
        if (row >= count) break;
        float sum = 0.0f;
        VQ_UNROLL
        for (int w = 0; w < kWarps; ++w) sum += load_shared(sums + w * kTogether * kHeadDim + i);
        store(to(row), i % kHeadDim, sum);
      }
      sync_block();  // the sums are read
    }
  }

  // Channel lane() % kChannels of the warp's of row lane() / kChannels of a group of rows.
  template <class Load>
  VQ_DEVICE float changed(int count, int group, bool centered, Load load) const {
    if (!basis_.rotation) {
      const int row = group * kTogether + lane() / kChannels;
      if (row >= count) return 0.0f;
      const int channel = warp() * kChannels + lane() % kChannels;
      return value_of(load(row, channel), channel, centered);
    }
    float values[kOfLane][kTogether];  // all in flight before the first is used
    VQ_UNROLL
    for (int i = 0; i < kOfLane; ++i) {
      const int j = lane() + 32 * i;
      const bool inside = kHeadDim % 32 == 0 || j < kHeadDim;
      VQ_UNROLL
      for (int t = 0; t < kTogether; ++t) {
        const int row = group * kTogether + t;
        values[i][t] = inside && row < count ? value_of(load(row, j), j, centered) : 0.0f;
      }
    }
    float sums[kTogether * kChannels] = {};
    VQ_UNROLL
    for (int i = 0; i < kOfLane; ++i) {
      VQ_UNROLL
      for (int t = 0; t < kTogether; ++t) {
        VQ_UNROLL
        for (int c = 0; c < kChannels; ++c) {
          sums[t * kChannels + c] = fused(values[i][t], held(i, c), sums[t * kChannels + c]);
        }
      }
    }
    return transposing_sum<kTogether * kChannels>(sums);
  }

  const Basis basis_;
  const float* mean_ = nullptr;
  const float* rotation_ = nullptr;
  float factors_[kHeld ? kOfLane : 1][kChannels];
};

}  // namespace vq
