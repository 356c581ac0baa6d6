// What the codes of 8 channels of a staged row stand for, as words.
#pragma once

#include <vq/codebook/codebook.cuh>

namespace vq {

// The entries of one stage, unscaled, of channels [8 number, ..). `Rows` is CacheRows of a share
// that is the head.
template <class Rows, Element kElement>
VQ_DEVICE void octet_entries(u32 (&words)[4], const typename Rows::Book& book, const u32* row,
                             int number, int stage) {
  constexpr int kSize = Rows::kVectorSize;
  constexpr int kCodes = 8 / kSize * Rows::kResiduals;
  constexpr int kBits = kCodes * Rows::kBits;
  // Codes that fill words, or a part of one, stand at places that are constants.
  constexpr bool kWhole = kBits % 32 == 0;
  constexpr int kWords = kWhole ? kBits / 32 : 1;
  const u32 begin = static_cast<u32>(number) * kBits;
  u32 codes[kWords];
  if constexpr (kWhole || 32 % kBits == 0) {
    VQ_UNROLL
    for (int i = 0; i < kWords; ++i) codes[i] = load_shared(row + begin / 32 + i);
    if constexpr (!kWhole) codes[0] >>= begin % 32;
  }
  VQ_UNROLL
  for (int i = 0; i < 8; i += kSize) {
    const int s = (8 * number + i) / kSize;
    const int unit = Rows::kUnits == 1 ? 0 : Rows::unit_of(s);
    rebuild<Rebuilt::kEntry, kElement>(words + i / 2, book, unit, 0, stage, [&](int pass) {
      if constexpr (kWhole || 32 % kBits == 0) {
        return code_in<Rows::kBits>(codes, i / kSize * Rows::kResiduals + pass);
      } else {
        return Rows::code(row, 0, s, pass);
      }
    });
  }
}

}  // namespace vq
