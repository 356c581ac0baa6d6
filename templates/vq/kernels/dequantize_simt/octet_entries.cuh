// Decodes 8 channels of a staged row to words.
#pragma once

#include <vq/codebook/codebook.cuh>

namespace vq {

// Decodes the entries of one stage, unscaled, for channels [8 number, ..) of a row that begins
// `row` words after shared byte kCodes; `Rows` is CacheRows of a whole head. `row` is no pointer:
// through a selected pointer NVVM 13.0 dropped the load of a code's second word.
template <class Rows, Element kElement, i64 kCodes>
VQ_DEVICE void octet_entries(u32 (&words)[4], const typename Rows::Book& book, int row, int number,
                             int stage) {
  const auto word = [&](i64 i) {
    return load_shared(shared_part<u32>(kCodes) + (row + static_cast<int>(i)));
  };
  constexpr int kSize = Rows::kVectorSize;
  constexpr int kBits = 8 / kSize * Rows::kResiduals * Rows::kBits;
  // Codes that fill words, or a part of one word, are at constant positions.
  constexpr bool kWhole = kBits % 32 == 0;
  constexpr int kWords = kWhole ? kBits / 32 : 1;
  const u32 begin = static_cast<u32>(number) * kBits;
  u32 codes[kWords];
  if constexpr (kWhole || 32 % kBits == 0) {
    VQ_UNROLL
    for (int i = 0; i < kWords; ++i) codes[i] = word(begin / 32 + i);
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
        return code_at<Rows::kBits>(i64{s * Rows::kResiduals + pass} * Rows::kBits, word);
      }
    });
  }
}

}  // namespace vq
