// Rows of a cache into its basis and back (layout/basis.h), up to kBasisTile at once, by MMAs where
// the machine has them:
//
//   a   the rows, from shared memory
//   b   factors of the rotation for the warp's kBasisChannels of each row, in registers
//   c   lane (g, c) gets the warp's channels 2c and 2c + 1 of rows g and g + 8
//
// A factor is the sum of two elements, which misses it by 2^-17 at most; likewise what a row is
// less its mean.
#pragma once

#include <vq/layout/basis.h>
#include <vq/lanes/fragment_lanes.cuh>
#include <vq/numbers.cuh>

namespace vq {

// `Plan` is of an op on a KV cache. kBack: out of the basis.
template <class Plan, bool kBack>
class BasisBlock {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr Element kElement = kConfig.element;
  static constexpr int kHeadDim = kConfig.head_dim;
  // Rows that the block loads at a time, a thread per channel; and how often it does.
  static constexpr int kRows = basis_threads(kHeadDim) / kHeadDim;
  static constexpr int kTimes = kBasisTile / kRows;

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
      for (int step = 0; step < kSteps; ++step) load_factors(factors_[step], step);
    }
  }

  // Changes rows 0 .. count - 1: load(t, channel) is an element of row t, to(t) where row t goes,
  // null if nowhere, asked behind a barrier that all loads stand before. kCentered: on the way into
  // the basis less the mean. kInFlight * kRows rows are loaded before the first is used. What it
  // keeps in shared memory is free behind the next barrier. All threads.
  template <bool kCentered, int kInFlight = kTimes, class Load, class To>
  VQ_DEVICE void change(int count, Load load, To to) const {
    const int channel = thread_index() % kHeadDim;
    const bool centered = kCentered && basis_.mean;
    const float mean = centered ? load_constant(mean_ + channel) : 0.0f;
    for (int time = 0; time < kTimes; time += kInFlight) {
      u16 bits[kInFlight];
      VQ_UNROLL
      for (int i = 0; i < kInFlight; ++i) {
        const int row = own_row(time + i);
        bits[i] = row < count ? load(row, channel) : u16{0};
      }
      VQ_UNROLL
      for (int i = 0; i < kInFlight; ++i) {
        u16* const place = rows() + own_row(time + i) * kStride + channel;
        if (centered) {
          const float value = to_float<kElement>(bits[i]) - mean;
          bits[i] = from_float<kElement>(value);
          store_shared(place + kRests, from_float<kElement>(value - to_float<kElement>(bits[i])));
        }
        store_shared(place, bits[i]);
      }
    }
    sync_block();
    if (basis_.rotation) {
      float sums[4];
      centered ? multiply<true>(sums) : multiply<false>(sums);
      VQ_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (row_of(i) < count) store(to(row_of(i)), channel_of(i), sums[i]);
      }
      return;
    }
    for (int time = 0; time < kTimes; ++time) {
      const int row = own_row(time);
      if (row >= count) break;
      const u16 bits = load_shared(rows() + row * kStride + channel);
      store(to(row), channel, to_float<kElement>(bits));
    }
  }

 private:
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr bool kMma = kHasMma<kElement> && kHeadDim % 16 == 0;
  static constexpr bool kHeld = kMma && kHeadDim <= 128;  // registers hold the factors
  static constexpr int kStride = basis_row(kHeadDim);
  static constexpr int kRests = kBasisTile * kStride;  // what the elements of rows leave of them
  static_assert(kBasisChannels == 8 && kBasisTile == 16, "an MMA per warp");

  VQ_DEVICE static u16* rows() { return shared_part<u16>(0); }
  VQ_DEVICE static int own_row(int time) { return time * kRows + thread_index() / kHeadDim; }
  // The row and the channel of this lane's sum i.
  VQ_DEVICE static int row_of(int i) { return lane_group() + i / 2 * 8; }
  VQ_DEVICE static int channel_of(int i) {
    return warp() * kBasisChannels + 2 * place_in_group() + i % 2;
  }
  VQ_DEVICE void store(u16* row, int channel, float value) const {
    if (row == nullptr) return;
    if (kBack && basis_.mean) value += load_constant(mean_ + channel);
    store_global(row + channel, from_float<kElement>(value));
  }

  // What channel `from` of a row gives to channel `to` of the changed one.
  VQ_DEVICE float factor(int from, int to) const {
    return begin_constant(rotation_ + (kBack ? to * kHeadDim + from : from * kHeadDim + to));
  }
  // Operand b of a step as it is stored, and as two elements per factor.
  VQ_DEVICE void load_factors(float (&factors)[4], int step) const {
    VQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int from = step * 16 + i / 2 * 8 + 2 * place_in_group() + i % 2;
      factors[i] = factor(from, warp() * kBasisChannels + lane_group());
    }
  }
  struct Elements {
    u32 high[2], low[2];
  };
  // Not before the rows are there, since it waits for the factors.
  VQ_DEVICE static Elements split(const float (&factors)[4]) {
    Elements elements;
    VQ_UNROLL
    for (int half = 0; half < 2; ++half) {
      float rest[2];
      u16 high[2];
      VQ_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float each = float_from_bits(warpgroup_copy(float_bits(factors[half * 2 + i])));
        high[i] = from_float<kElement>(each);
        rest[i] = each - to_float<kElement>(high[i]);
      }
      elements.high[half] = high[0] | static_cast<u32>(high[1]) << 16;
      elements.low[half] = pack2<kElement>(rest[0], rest[1]);
    }
    return elements;
  }

  // This lane's channels of the changed rows. kWithRests: of rows in two elements.
  template <bool kWithRests>
  VQ_DEVICE void multiply(float (&sums)[4]) const {
    VQ_UNROLL
    for (int i = 0; i < 4; ++i) sums[i] = 0.0f;
    if constexpr (kMma) {
      multiply_by_mma<kWithRests>(sums);
    } else {
      multiply_by_lanes<kWithRests>(sums);
    }
  }
  template <bool kWithRests>
  VQ_DEVICE void multiply_by_mma(float (&sums)[4]) const {
    float rests[4] = {};
    VQ_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      Elements factors;
      if constexpr (kHeld) {
        factors = split(factors_[step]);
      } else {
        float stored[4];
        load_factors(stored, step);
        factors = split(stored);
      }
      u32 a[4];
      const u16* const own = rows() + lane() % 16 * kStride + step * 16 + lane() / 16 * 8;
      ldmatrix_x4(a, reinterpret_cast<const u32*>(own));
      mma_m16n8k16<kElement>(sums, a, factors.high);
      mma_m16n8k16<kElement>(rests, a, factors.low);
      if constexpr (kWithRests) {
        ldmatrix_x4(a, reinterpret_cast<const u32*>(own + kRests));
        mma_m16n8k16<kElement>(rests, a, factors.high);
      }
    }
    VQ_UNROLL
    for (int i = 0; i < 4; ++i) sums[i] += rests[i];
  }
  template <bool kWithRests>
  VQ_DEVICE void multiply_by_lanes(float (&sums)[4]) const {
    for (int from = 0; from < kHeadDim; ++from) {
      VQ_UNROLL
      for (int i = 0; i < 4; ++i) {
        const u16* const place = rows() + row_of(i) * kStride + from;
        float each = to_float<kElement>(load_shared(place));
        if constexpr (kWithRests) each += to_float<kElement>(load_shared(place + kRests));
        sums[i] = fused(each, factor(from, channel_of(i)), sums[i]);
      }
    }
  }

  const Basis basis_;
  const float* mean_ = nullptr;
  const float* rotation_ = nullptr;
  float factors_[kHeld ? kSteps : 1][4];
};

}  // namespace vq
