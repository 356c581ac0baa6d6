// One entry as words: vector_size 16-bit elements are 1, 2 or 4 words, moved by one access. And
// numbers as integers, for products of integers.
#pragma once

#include <vq/machine.cuh>

namespace vq {

// Words of 2, 4 or 8 elements. One element, half a word, is no entry but can be looked up like one.
template <int kElements>
using EntryWords =
    Either<kElements <= 2, Either<kElements == 1, u16, u32>, Either<kElements == 4, U32x2, U32x4>>;

VQ_DEVICE u32 word_of(u32 words, int) { return words; }
VQ_DEVICE u32 word_of(U32x2 words, int i) { return i == 0 ? words.x : words.y; }
VQ_DEVICE u32 word_of(U32x4 words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// Four signed bytes as elements. With its top bit turned a byte is v + 128; below 2^10 in f16, or
// 2^23 in fp32, it is the last bits of a number that is so much more.
template <Element kElement>
VQ_DEVICE U32x2 elements_of_bytes(u32 bytes) {
  const u32 raised = bytes ^ 0x80808080u;
  if constexpr (kElement == Element::f16) {
    constexpr u32 kLess = 0xe480e480u;  // -(1024 + 128), twice
    return {add2<kElement>(byte_permute(raised, 0x64646464u, 0x4140u), kLess),
            add2<kElement>(byte_permute(raised, 0x64646464u, 0x4342u), kLess)};
  } else {
    const auto number = [raised](u32 selector) {
      return float_from_bits(byte_permute(raised, 0x4b000000u, selector)) - 8388736.0f;
    };
    return {pack2<kElement>(number(0x7440u), number(0x7441u)),
            pack2<kElement>(number(0x7442u), number(0x7443u))};
  }
}

// The nearest of -peak .. peak; one of them also for what is no number.
VQ_DEVICE i32 nearest_within(float value, float peak) {
  value = value > peak ? peak : value > -peak ? value : -peak;
  return static_cast<i32>(value < 0.0f ? value - 0.5f : value + 0.5f);
}

// value[i] += scale * element i of the entry.
template <Element kElement, int kVectorSize, class Words>
VQ_DEVICE void add_entry(float (&value)[kVectorSize], Words words, float scale) {
  VQ_UNROLL
  for (int i = 0; i < kVectorSize; i += 2) {
    const u32 pair = word_of(words, i / 2);
    value[i] += scale * to_float<kElement>(static_cast<u16>(pair & 0xffffu));
    value[i + 1] += scale * to_float<kElement>(static_cast<u16>(pair >> 16));
  }
}

}  // namespace vq
