// Reading codes out of packed rows (layout/codes.h): one code, or words of several rows at once.
#pragma once

#include <vq/layout/codes.h>
#include <vq/loads.cuh>

namespace vq {

// The code of kBits that begins at `bit` of a row, whose words are word(number). A second word is
// touched only where the code reaches into it, so never past the row.
template <int kBits, class Word>
VQ_DEVICE u32 code_at(i64 bit, Word word) {
  const i64 number = bit >> 5;
  const int shift = static_cast<int>(bit & 31);
  u32 code = word(number) >> shift;
  if constexpr (32 % kBits != 0) {
    if (shift + kBits > 32) code |= word(number + 1) << (32 - shift);
  }
  if constexpr (kBits == 32) {
    return code;
  } else {
    return code & ((1u << kBits) - 1u);
  }
}

// read_code() from words at `row`, fetched by load(const u32*) from memory or registers.
template <int kBits, class Load>
VQ_DEVICE u32 read_code_at(const u32* row, i64 bit, Load load) {
  return code_at<kBits>(bit, [&](i64 number) { return load(row + number); });
}

// Code number `index` of the row that starts at `row`.
template <int kBits, class Load>
VQ_DEVICE u32 read_code(const u32* row, i64 index, Load load) {
  return read_code_at<kBits>(row, index * kBits, load);
}

// The 32 bits that begin at bit `shift`, 0 to 31, of `low` and go on in `high`.
VQ_DEVICE u32 word_across(u32 low, u32 high, int shift) {
  return static_cast<u32>((u64{high} << 32 | low) >> shift);
}

// A code of 8 bits as the byte of a word that it is: a lookup by it needs no shift.
struct CodeByte {
  u32 word;
  int byte;
  VQ_DEVICE operator u32() const { return word >> 8 * byte & 0xffu; }
};

// A code of 16 bits as two bytes of a word: the number of an entry and, from the next byte on, its
// signs. A lookup by it needs no shift.
struct SignedByte {
  u32 word;
  int byte;
  VQ_DEVICE operator u32() const { return word >> 8 * byte & 0xffffu; }
};

// Code number `index` of words in registers, at a place that is known once loops are unrolled.
template <int kBits>
VQ_DEVICE auto code_in(const u32* words, int index) {
  if constexpr (kBits == 8) {
    return CodeByte{words[index / 4], index % 4};
  } else {
    return read_code<kBits>(words, index, [](const u32* word) { return *word; });
  }
}

}  // namespace vq
