// The codes that one lane reads of a row: the row is parted evenly among 4 or 8 lanes, and a lane's
// share is kBits bits from bit part * kBits on, which may begin and end within words. Loaded words
// stay as they are, so that a load may be in flight for long; align() brings the share to bit 0,
// where the places of all codes are known at compile time.
#pragma once

#include <vq/codes.cuh>

namespace vq {

// kParts lanes share a row of kRowWords words. Where shares are whole words, loads move up to
// kLoadWords of them at once; else one.
template <int kRowWords, int kBits, int kParts, int kLoadWords>
struct LaneCodes {
  static constexpr bool kWhole = kBits % 32 == 0;
  static constexpr int kWords = ceil_div(kBits, 32);
  VQ_HD static constexpr int width() {
    int width = kWhole ? kLoadWords : 1;
    while (kWords % width != 0) width /= 2;
    return width;
  }
  static constexpr int kWidth = width();

  // Words that the share of any part touches, at most.
  VQ_HD static constexpr int touched() {
    int most = 0;
    for (int part = 0; part < kParts; ++part) {
      const int words = ceil_div(part * kBits % 32 + kBits, 32);
      most = words > most ? words : most;
    }
    return most;
  }
  static constexpr int kLoaded = touched();

  // Where the share begins.
  VQ_DEVICE static int first_word(int part) { return part * kBits / 32; }
  VQ_DEVICE static int shift(int part) { return part * kBits % 32; }

  // From the share's first word. Words past the row's last repeat it.
  VQ_DEVICE static void load(u32 (&to)[kLoaded], const u32* from, int part) {
    if constexpr (kWidth == 4) {
      VQ_UNROLL
      for (int i = 0; i < kLoaded; i += 4) {
        const U32x4 four = load_global(reinterpret_cast<const U32x4*>(from + i));
        to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
      }
    } else if constexpr (kWidth == 2) {
      VQ_UNROLL
      for (int i = 0; i < kLoaded; i += 2) {
        const U32x2 two = load_global(reinterpret_cast<const U32x2*>(from + i));
        to[i] = two.x, to[i + 1] = two.y;
      }
    } else {
      VQ_UNROLL
      for (int i = 0; i < kLoaded; ++i) {
        const int left = kRowWords - 1 - first_word(part);
        to[i] = load_global(from + (kWhole || i < left ? i : left));
      }
    }
  }

  VQ_DEVICE static void align(u32 (&share)[kWords], const u32 (&loaded)[kLoaded], int part) {
    VQ_UNROLL
    for (int i = 0; i < kWords; ++i) {
      if constexpr (kWhole) {
        share[i] = loaded[i];
      } else {
        const u32 above = i + 1 < kLoaded ? loaded[i + 1] : 0u;
        share[i] = static_cast<u32>((u64{above} << 32 | loaded[i]) >> shift(part));
      }
    }
  }
};

}  // namespace vq
