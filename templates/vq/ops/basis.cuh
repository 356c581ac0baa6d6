// Rows of a cache into its basis and back (layout/basis.h), up to kBasisTile at once, by MMAs where
// the machine has them:
//
//   a   the rows, from shared memory
//   b   factors of the rotation for the warp's kBasisChannels of each row, in registers: the block
//       loads whole lines of the rotation and exchanges them in shared memory, kBasisPiece
//       channels of the rows at a time
//   c   lane (g, c) gets the warp's channels 2c and 2c + 1 of rows g and g + 8
//
// A factor is the sum of two elements, which misses it by 2^-17 at most; likewise what a row is
// less its mean.
#pragma once

#include <vq/layout/basis.h>
#include <vq/lanes/fragment_lanes.cuh>
#include <vq/numbers.cuh>

namespace vq {

// `Plan` is of an op on a KV cache. kDim: channels of a row. kBack: out of the basis.
template <class Plan, int kDim, bool kBack>
class BasisBlock {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr Element kElement = kConfig.element;
  static constexpr int kHeadDim = kDim;
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
      for_each_quad([this](int i, int row, int column) {
        loaded_[i] =
            begin_constant(reinterpret_cast<const U32x4*>(rotation_ + row * kHeadDim + column));
      });
    }
  }

  // Changes rows 0 .. count - 1, of which load(t, channel) is an element and to(t) the place, or
  // null. kCentered: less the mean. kInFlight * kRows rows are loaded at once. `first`: no call was
  // before. A changed row is multiplied by weight(t). to() and weight() are called behind a
  // barrier; shared memory is free behind the next one.
  struct Whole {
    VQ_DEVICE float operator()(int) const { return 1.0f; }
  };
  template <bool kCentered, int kInFlight = kTimes, class Load, class To, class Weight = Whole>
  VQ_DEVICE void change(int count, Load load, To to, bool first = true, Weight weight = Weight()) {
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
      if constexpr (kHeld) {
        if (basis_.rotation && first && time == 0) exchange_factors();
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
        if (row_of(i) < count) store(to(row_of(i)), channel_of(i), sums[i], weight(row_of(i)));
      }
      return;
    }
    for (int time = 0; time < kTimes; ++time) {
      const int row = own_row(time);
      if (row >= count) break;
      const u16 bits = load_shared(rows() + row * kStride + channel);
      store(to(row), channel, to_float<kElement>(bits), weight(row));
    }
  }

 private:
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr bool kMma = kHasMma<kElement> && kHeadDim % 16 == 0;
  static constexpr bool kHeld = kMma && holds_factors(kHeadDim);
  static constexpr int kStride = basis_row(kHeadDim);
  static constexpr int kRests = kBasisTile * kStride;  // what the elements of rows leave of them
  static_assert(kBasisChannels == 8 && kBasisTile == 16, "an MMA per warp");
  static constexpr int kStepsOfPiece = kBasisPiece / 16;
  // A piece in shared memory: high elements, then low ones.
  static constexpr int kPieceStride = basis_row(kBack ? kBasisPiece : kHeadDim);
  static constexpr int kLow = (kBack ? kHeadDim : kBasisPiece) * kPieceStride;

  VQ_DEVICE static u16* rows() { return shared_part<u16>(0); }
  VQ_DEVICE static int own_row(int time) { return time * kRows + thread_index() / kHeadDim; }
  // The row and the channel of this lane's sum i.
  VQ_DEVICE static int row_of(int i) { return lane_group() + i / 2 * 8; }
  VQ_DEVICE static int channel_of(int i) {
    return warp() * kBasisChannels + 2 * place_in_group() + i % 2;
  }
  VQ_DEVICE void store(u16* row, int channel, float value, float weight) const {
    if (row == nullptr) return;
    if (kBack && basis_.mean) value += load_constant(mean_ + channel);
    store_global(row + channel, from_float<kElement>(value * weight));
  }

  // What channel `from` of a row gives to channel `to` of the changed one.
  VQ_DEVICE float factor(int from, int to) const {
    return begin_constant(rotation_ + (kBack ? to * kHeadDim + from : from * kHeadDim + to));
  }
  // Operand b of a step, as two elements per factor.
  struct Elements {
    u32 high[2], low[2];
  };
  VQ_DEVICE static Elements split(const float (&factors)[4]) {
    Elements elements;
    VQ_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float low = factors[2 * half], high = factors[2 * half + 1];
      elements.high[half] = pack2<kElement>(low, high);
      elements.low[half] = pack2<kElement>(rest_of(low), rest_of(high));
    }
    return elements;
  }
  VQ_DEVICE static float rest_of(float factor) {
    return factor - to_float<kElement>(from_float<kElement>(factor));
  }
  VQ_DEVICE Elements load_elements(int step) const {
    float factors[4];
    VQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int from = step * 16 + i / 2 * 8 + 2 * place_in_group() + i % 2;
      factors[i] = factor(from, warp() * kBasisChannels + lane_group());
    }
    return split(factors);
  }

  // Calls each(i, row, column) for the quads of factors that this thread loads, one for each step.
  // Pieces are rows of the rotation on the way in, and columns on the way out.
  template <class Each>
  VQ_DEVICE static void for_each_quad(Each each) {
    VQ_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      const int first = i / kStepsOfPiece * kStepsOfPiece;  // step of the piece
      const int left = kSteps - first;
      const int steps = left < kStepsOfPiece ? left : kStepsOfPiece;
      const int number = (i - first) * basis_threads(kHeadDim) + thread_index();
      const int of_row = kBack ? steps * 4 : kHeadDim / 4;  // quads
      const int row = number / of_row + (kBack ? 0 : first * 16);
      each(i, row, number % of_row * 4 + (kBack ? first * 16 : 0));
    }
  }
  // Gives each lane its factors, a piece after the other.
  VQ_DEVICE void exchange_factors() {
    VQ_UNROLL
    for (int first = 0; first < kSteps; first += kStepsOfPiece) {
      if (first > 0) {
        sync_block();
      }
      for_each_quad([this, first](int i, int row, int column) {
        if (i < first || i >= first + kStepsOfPiece) return;
        float factors[4];
        VQ_UNROLL
        for (int j = 0; j < 4; ++j) factors[j] = float_from_bits(word_of(loaded_[i], j));
        const Elements elements = split(factors);
        u16* const to =
            place_of(kBack ? row : row - first * 16, kBack ? column - first * 16 : column);
        store_shared(reinterpret_cast<U32x2*>(to), U32x2{elements.high[0], elements.high[1]});
        store_shared(reinterpret_cast<U32x2*>(to + kLow), U32x2{elements.low[0], elements.low[1]});
      });
      sync_block();
      VQ_UNROLL
      for (int step = first; step < first + kStepsOfPiece && step < kSteps; ++step) {
        // Lanes of a matrix name its rows: two of high elements, then two of low ones.
        const int from = (step - first) * 16 + lane() / 8 % 2 * 8;
        const int to = warp() * kBasisChannels;
        const u16* const row =
            (kBack ? place_of(to + lane() % 8, from) : place_of(from + lane() % 8, to)) +
            lane() / 16 * kLow;
        u32 words[4];
        if constexpr (kBack) {
          ldmatrix_x4(words, reinterpret_cast<const u32*>(row));
        } else {
          ldmatrix_x4_trans(words, reinterpret_cast<const u32*>(row));
        }
        elements_[step] = {{words[0], words[1]}, {words[2], words[3]}};
      }
    }
  }
  VQ_DEVICE static u16* place_of(int row, int column) {
    return shared_part<u16>(basis_rows_shared(kHeadDim)) + row * kPieceStride + column;
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
        factors = elements_[step];
      } else {
        factors = load_elements(step);
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
  U32x4 loaded_[kHeld ? kSteps : 1];
  Elements elements_[kHeld ? kSteps : 1];
};

}  // namespace vq
