// A matrix to and from int8 by channel:
//
//   scale = max |x| / 127 over the channel's finite elements; 1 where that is no normal number
//   code  = x / scale, rounded to nearest even, within -127 .. 127; of NaN -127
//   x'    = code * scale in fp32, rounded to the element type
//
// Memory bounds it, so a thread begins the loads of all its tokens before it uses one. Scales take
// a launch of their own that reads the matrix once more: the largest magnitudes of splits of the
// tokens, and where there are several one more that makes one scale of them. The largest of numbers
// is the same in any order, so the bits are too.
#pragma once

#include <vq/args/scalar_matrix.h>
#include <vq/kernels/scalar_forms/plan.h>
#include <vq/loads.cuh>
#include <vq/machine.cuh>

namespace vq {

// kBytes that one access moves, 1 to 16.
template <int kBytes>
struct Piece {
  static constexpr int kWords = kBytes < 4 ? 1 : kBytes / 4;
  u32 words[kWords] = {};

  VQ_DEVICE void load(const u8* from) {
    if constexpr (kBytes == 1) {
      words[0] = load_global(from);
    } else if constexpr (kBytes == 2) {
      words[0] = load_global(reinterpret_cast<const u16*>(from));
    } else {
      load_words<kWords>(words, reinterpret_cast<const u32*>(from), LoadGlobal());
    }
  }
  VQ_DEVICE void store(u8* to) const {
    if constexpr (kBytes == 1) {
      store_global(to, static_cast<u8>(words[0]));
    } else if constexpr (kBytes == 2) {
      store_global(reinterpret_cast<u16*>(to), static_cast<u16>(words[0]));
    } else if constexpr (kBytes == 4) {
      store_global(reinterpret_cast<u32*>(to), words[0]);
    } else if constexpr (kBytes == 8) {
      store_global(reinterpret_cast<U32x2*>(to), U32x2{words[0], words[1]});
    } else {
      store_global(reinterpret_cast<U32x4*>(to), U32x4{words[0], words[1], words[2], words[3]});
    }
  }
};

// A thread's consecutive channels, as it loads or stores them. Channels past the last are 0 and are
// not stored.
template <class Plan, int kSize>
class ChannelItems {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr int kItems = access_channels(kConfig, kSize);  // channels per access
  static constexpr int kPieces = kConfig.vector / kItems;

  // `row` is the channel's first item.
  VQ_DEVICE void load(const u8* row, int channel) {
    VQ_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      if (channel + i * kItems < kConfig.channels) pieces_[i].load(row + i * kItems * kSize);
    }
  }
  VQ_DEVICE void store(u8* row, int channel) const {
    VQ_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      if (channel + i * kItems < kConfig.channels) pieces_[i].store(row + i * kItems * kSize);
    }
  }
  // The bits of item i, and more above them where it is less than a word.
  VQ_DEVICE u32 get(int i) const {
    const int byte = i % kItems * kSize;
    return pieces_[i / kItems].words[byte / 4] >> 8 * (byte % 4);
  }
  // `bits` has nothing above its item. Requires that item i is 0.
  VQ_DEVICE void put(int i, u32 bits) {
    const int byte = i % kItems * kSize;
    pieces_[i / kItems].words[byte / 4] |= bits << 8 * (byte % 4);
  }

 private:
  Piece<kItems * kSize> pieces_[kPieces];
};

template <Real kReal>
VQ_DEVICE float real_from(u32 bits) {
  if constexpr (kReal == Real::f32) return float_from_bits(bits);
  constexpr Element kElement = kReal == Real::f16 ? Element::f16 : Element::bf16;
  return to_float<kElement>(static_cast<u16>(bits));
}
template <Real kReal>
VQ_DEVICE u32 bits_of_real(float value) {
  if constexpr (kReal == Real::f32) return float_bits(value);
  constexpr Element kElement = kReal == Real::f16 ? Element::f16 : Element::bf16;
  return from_float<kElement>(value);
}

// Steps of a scale, within -127 .. 127, rounded to nearest even.
VQ_DEVICE u32 rounded_steps(float steps) {
  constexpr float kWhole = 12582912.0f;  // 1.5 * 2^23: a sum with it is a whole number
  return float_bits(steps + kWhole) & 0xffu;
}

// `value` within -peak .. peak, -peak of NaN.
VQ_DEVICE float within(float value, float peak) { return -larger(-larger(value, -peak), -peak); }

// Quantizes several channels. Instead of a division it multiplies by the scale's reciprocal and
// corrects twice by the remainder: the same quotient to the bit (Markstein, IBM RISC System/6000,
// 1990), if nothing overflows and no remainder that counts is subnormal.
template <int kChannels>
class ScalarCodes {
 public:
  VQ_DEVICE void set_scale(int i, float scale) {
    constexpr float kLeast = 0x1p-100f;
    constexpr float kMost = 0x1p100f;
    scales_[i] = scale;
    reciprocals_[i] = 1.0f / scale;
    peaks_[i] = kPeak * scale;
    if (!(scale >= kLeast && scale <= kMost)) divides_ = true;
  }
  VQ_DEVICE void make(u32 (&codes)[kChannels], const float (&values)[kChannels]) const {
    if (divides_) {
      VQ_UNROLL
      for (int i = 0; i < kChannels; ++i) {
        codes[i] = rounded_steps(within(values[i] / scales_[i], kPeak));
      }
      return;
    }
    VQ_UNROLL
    for (int i = 0; i < kChannels; ++i) {
      const float value = within(values[i], peaks_[i]);
      float steps = value * reciprocals_[i];
      VQ_UNROLL
      for (int correction = 0; correction < 2; ++correction) {
        steps = fused(fused(-steps, scales_[i], value), reciprocals_[i], steps);
      }
      codes[i] = rounded_steps(steps);
    }
  }

 private:
  static constexpr float kPeak = 127.0f;
  float scales_[kChannels];
  float reciprocals_[kChannels];
  float peaks_[kChannels];
  bool divides_ = false;
};

VQ_DEVICE float scalar_number(u32 code) {
  return static_cast<float>(static_cast<i32>(code << 24) >> 24);
}

// The scale for a largest magnitude, given as bits.
VQ_DEVICE float scale_of(u32 most) {
  constexpr u32 kLeastNormal = 0x00800000u;
  const float scale = float_from_bits(most) / 127.0f;
  return float_bits(scale) < kLeastNormal ? 1.0f : scale;
}

// A thread's position in its block's tile.
template <class Plan>
struct ScalarPlace {
  static constexpr auto kConfig = Plan::config();
  int row = thread_index() / kConfig.lanes;
  int in_tile = thread_index() % kConfig.lanes * kConfig.vector;
};

template <class Plan>
VQ_DEVICE void scalar_matrix_forms(const ScalarMatrixArgs& args) {
  constexpr auto kConfig = Plan::config();
  constexpr int kRows = rows_at_once(kConfig);
  constexpr int kElementSize = element_size(kConfig);
  constexpr int kFromSize = kConfig.decodes ? 1 : kElementSize;
  constexpr int kToSize = kConfig.decodes ? kElementSize : 1;
  const ScalarPlace<Plan> place;
  const int first_channel =
      static_cast<int>(block_x() % channel_tiles(kConfig)) * tile_channels(kConfig);
  const int channel = first_channel + place.in_tile;
  const i64 first = block_x() / channel_tiles(kConfig) * tile_tokens(kConfig) + place.row;

  ChannelItems<Plan, kFromSize> from[kConfig.tokens];
  VQ_UNROLL
  for (int i = 0; i < kConfig.tokens; ++i) {
    const i64 token = first + i * kRows;
    if (token < args.tokens) {
      from[i].load(args.from + (token * kConfig.channels + channel) * kFromSize, channel);
    }
  }
  ChannelItems<Plan, 4> scales;
  if constexpr (kConfig.form == ScalarForm::tiled) {
    float* const shared = shared_part<float>(0);
    if (place.row == 0 && channel < kConfig.channels) {
      store_shared(shared + place.in_tile, load_global(args.scales + channel));
    }
    sync_block();
    if (channel < kConfig.channels) {
      scales.put(0, float_bits(load_shared(shared + place.in_tile)));
    }
  } else {
    scales.load(reinterpret_cast<const u8*>(args.scales + channel), channel);
  }
  ScalarCodes<kConfig.vector> coder;
  if constexpr (!kConfig.decodes) {
    VQ_UNROLL
    for (int j = 0; j < kConfig.vector; ++j) coder.set_scale(j, float_from_bits(scales.get(j)));
  }
  VQ_UNROLL
  for (int i = 0; i < kConfig.tokens; ++i) {
    const i64 token = first + i * kRows;
    ChannelItems<Plan, kToSize> to;
    if constexpr (kConfig.decodes) {
      VQ_UNROLL
      for (int j = 0; j < kConfig.vector; ++j) {
        const float value = scalar_number(from[i].get(j)) * float_from_bits(scales.get(j));
        to.put(j, bits_of_real<kConfig.element>(value));
      }
    } else {
      float values[kConfig.vector];
      u32 codes[kConfig.vector];
      VQ_UNROLL
      for (int j = 0; j < kConfig.vector; ++j) {
        values[j] = real_from<kConfig.element>(from[i].get(j));
      }
      coder.make(codes, values);
      VQ_UNROLL
      for (int j = 0; j < kConfig.vector; ++j) to.put(j, codes[j]);
    }
    if (token < args.tokens) {
      to.store(args.to + (token * kConfig.channels + channel) * kToSize, channel);
    }
  }
}

// The largest magnitudes of a tile's channels over a split's tokens, or the scales where it is the
// only one.
template <class Plan>
VQ_DEVICE void scalar_maxima(const ScalarMatrixArgs& args) {
  constexpr auto kConfig = Plan::config();
  constexpr int kRows = rows_at_once(kConfig);
  constexpr int kSize = element_size(kConfig);
  constexpr int kAtOnce = kConfig.vector < 8 ? 8 : 4;  // tokens whose loads are in flight
  constexpr u32 kInfinity = 0x7f800000u;
  const ScalarPlace<Plan> place;
  const int first_channel = block_x() * tile_channels(kConfig);
  const int channel = first_channel + place.in_tile;
  const i64 share = (args.tokens + kConfig.splits - 1) / kConfig.splits;
  const i64 begin = block_y() * share;
  const i64 end = begin + share < args.tokens ? begin + share : args.tokens;
  u32 most[kConfig.vector] = {};
  for (i64 next = begin + place.row; next < end; next += kAtOnce * kRows) {
    ChannelItems<Plan, kSize> from[kAtOnce];
    VQ_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const i64 token = next + i * kRows;
      if (token < end) {
        from[i].load(args.from + (token * kConfig.channels + channel) * kSize, channel);
      }
    }
    VQ_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      VQ_UNROLL
      for (int j = 0; j < kConfig.vector; ++j) {
        const u32 magnitude = float_bits(real_from<kConfig.element>(from[i].get(j))) & 0x7fffffffu;
        if (magnitude > most[j] && magnitude < kInfinity) most[j] = magnitude;
      }
    }
  }
  u32* const shared = shared_part<u32>(0);  // [rows][channels of the tile]
  VQ_UNROLL
  for (int j = 0; j < kConfig.vector; ++j) {
    store_shared(shared + place.row * tile_channels(kConfig) + place.in_tile + j, most[j]);
  }
  sync_block();
  for (int tile_channel = thread_index(); tile_channel < tile_channels(kConfig);
       tile_channel += kConfig.threads) {
    if (first_channel + tile_channel >= kConfig.channels) break;
    u32 all = 0;
    for (int row = 0; row < kRows; ++row) {
      const u32 each = load_shared(shared + row * tile_channels(kConfig) + tile_channel);
      all = each > all ? each : all;
    }
    if constexpr (kConfig.splits == 1) {
      store_global(args.scales + first_channel + tile_channel, scale_of(all));
    } else {
      store_global(args.partials + i64{block_y()} * kConfig.channels + first_channel + tile_channel,
                   float_from_bits(all));
    }
  }
}

template <class Plan>
VQ_DEVICE void scalar_scales(const ScalarMatrixArgs& args) {
  constexpr auto kConfig = Plan::config();
  const int channel = block_x() * kScaleThreads + thread_index();
  if (channel >= kConfig.channels) return;
  float most = 0.0f;
  for (int split = 0; split < kConfig.splits; ++split) {
    most = larger(most, load_global(args.partials + i64{split} * kConfig.channels + channel));
  }
  store_global(args.scales + channel, scale_of(float_bits(most)));
}

}  // namespace vq
