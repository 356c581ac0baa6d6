// Decodes a code and its entry to words (layout/format.h).
//
// Levels hold an E8P entry as the vector of the code without signs: the stored half-integers, with
// the sign bit of element 7 set if their sum is odd. It is computed when an entry comes from global
// memory, so that a code costs, for 8 elements,
//
//   code   u|signs of 6 .. 0|entry     word i of the entry, its elements 2i and 2i + 1
//            \_ parity: 7    |         ^ their two sign bits      (shift, and-xor)
//                            |         + (1/4, 1/4) or its negative, exact in both types
//
// A table with both |s| + 1/4 and |s| - 1/4 would save the addition, but double the shared memory
// and need a select per element.
//
// Signs of a code with signs turn words alike: of the elements, whether levels hold these or bytes;
// or of the bytes, for products of integers (signed_bytes()).
//
// For scalar codes the entry is the elements' scales. add() multiplies in fp32, value() rounds the
// products to 16 bits.
#pragma once

#include <vq/codebook/entry.cuh>
#include <vq/codebook/scalar.cuh>
#include <vq/codes.cuh>

namespace vq {

// kInt8: levels hold the integers that the entries of a table are as bytes. kNumberBits: with
// signs, the bits of a code below them.
template <Decoder kDecoder, Element kElement, bool kInt8, int kNumberBits = 0>
struct Decoding;

// The decoding of a format.
template <class Format, Element kElement>
using DecodingOf =
    Decoding<Format::config().decoder, kElement, Format::config().int8_entries,
             Format::config().decoder == Decoder::signs ? number_bits(Format::config()) : 0>;

// Signs of elements for words of two: bit i is that of element i.
class WordSigns {
 public:
  VQ_DEVICE explicit WordSigns(u32 signs) : spread_(signs * 0x8001u) {}  // 2i + 1 at bit 2i + 16
  VQ_DEVICE explicit WordSigns(SignedByte code)
      : spread_(add_scaled_byte(code.word, code.byte + 1, 0x8001u, 0)) {}
  // Word i, elements 2i and 2i + 1, with their signs turned.
  VQ_DEVICE u32 turned(u32 word, int i) const {
    return word ^ (spread_ << (15 - 2 * i) & 0x80008000u);
  }

 private:
  u32 spread_;
};

// Four bits as bytes of 0 and 1.
VQ_DEVICE u32 byte_ones(u32 bits) { return (bits & 15u) * 0x204081u & 0x01010101u; }
// Four bytes of 0 to 127, those with a bit in `signs` negated: 128 - v has no carry.
VQ_DEVICE u32 signed_bytes(u32 bytes, u32 signs) {
  const u32 ones = byte_ones(signs);
  return ((bytes ^ ones * 0x7fu) + ones) ^ ones << 7;
}

template <Element kElement>
struct Decoding<Decoder::table, kElement, false> {
  VQ_DEVICE static u32 entry_of(u32 code) { return code; }
  template <class Words>
  VQ_DEVICE static Words held(Words stored) {
    return stored;
  }
  template <class Words>
  VQ_DEVICE static Words value(Words held, u32) {
    return held;
  }
};

template <Element kElement>
struct Decoding<Decoder::table, kElement, true> {
  VQ_DEVICE static u32 entry_of(u32 code) { return code; }

  VQ_DEVICE static u16 held(u32 stored) { return static_cast<u16>(bytes_of(stored)); }
  VQ_DEVICE static u32 held(U32x2 stored) {
    return byte_permute(bytes_of(stored.x), bytes_of(stored.y), 0x5410u);
  }
  VQ_DEVICE static U32x2 held(U32x4 stored) {
    return {held(U32x2{stored.x, stored.y}), held(U32x2{stored.z, stored.w})};
  }
  VQ_DEVICE static u32 value(u16 held, u32) { return elements_of_bytes<kElement>(held).x; }
  VQ_DEVICE static U32x2 value(u32 held, u32) { return elements_of_bytes<kElement>(held); }
  VQ_DEVICE static U32x4 value(U32x2 held, u32) {
    const U32x2 low = elements_of_bytes<kElement>(held.x);
    const U32x2 high = elements_of_bytes<kElement>(held.y);
    return {low.x, low.y, high.x, high.y};
  }

 private:
  // Two elements as the two low bytes.
  VQ_DEVICE static u32 bytes_of(u32 pair) {
    const auto low = static_cast<i32>(to_float<kElement>(static_cast<u16>(pair & 0xffffu)));
    const auto high = static_cast<i32>(to_float<kElement>(static_cast<u16>(pair >> 16)));
    return (static_cast<u32>(low) & 0xffu) | (static_cast<u32>(high) & 0xffu) << 8;
  }
};

template <Element kElement>
struct Decoding<Decoder::e8p, kElement, false> {
  VQ_DEVICE static u32 entry_of(u32 code) { return code & 0xffu; }

  // The entry as levels hold it. Sums of 8 elements up to 7/2 are exact in 16 bits.
  VQ_DEVICE static U32x4 held(U32x4 stored) {
    const u32 sums =
        add2<kElement>(add2<kElement>(stored.x, stored.y), add2<kElement>(stored.z, stored.w));
    const float sum = to_float<kElement>(static_cast<u16>(sums & 0xffffu)) +
                      to_float<kElement>(static_cast<u16>(sums >> 16));
    stored.w |= (static_cast<u32>(sum) & 1u) << 31;
    return stored;
  }

  VQ_DEVICE static U32x4 value(U32x4 held, u32 code) {
    // Bit 7 of the constant shifted down by n is the parity of the four bits n. Here n is all of
    // the upper byte, with u, which the code's own bit 7 cancels.
    constexpr u32 kParities = 0x6996u << 7;
    const u32 upper = code >> 8;
    const u32 signs = upper ^ (kParities >> ((upper ^ upper >> 4) & 15u) & 0x80u);
    const WordSigns word_signs(signs);
    constexpr u32 kQuarter = kElement == Element::f16 ? 0x3400u : 0x3e80u;
    const u32 shift = ((code & 0x8000u) | kQuarter) * 0x10001u;
    const auto signed_word = [&word_signs, shift](u32 word, int i) {
      return add2<kElement>(word_signs.turned(word, i), shift);
    };
    return {signed_word(held.x, 0), signed_word(held.y, 1), signed_word(held.z, 2),
            signed_word(held.w, 3)};
  }
};

// Magnitudes are held as the entries of a table.
template <Element kElement, bool kInt8, int kNumberBits>
struct Decoding<Decoder::signs, kElement, kInt8, kNumberBits>
    : Decoding<Decoder::table, kElement, kInt8> {
  VQ_DEVICE static u32 entry_of(u32 code) { return code & ((1u << kNumberBits) - 1u); }
  VQ_DEVICE static u32 signs_of(u32 code) { return code >> kNumberBits; }

  template <class Held>
  VQ_DEVICE static auto value(Held held, u32 code) {
    return turned(Decoding<Decoder::table, kElement, kInt8>::value(held, 0),
                  WordSigns(signs_of(code)));
  }
  template <class Held>
  VQ_DEVICE static auto value(Held held, SignedByte code) {
    return turned(Decoding<Decoder::table, kElement, kInt8>::value(held, 0), WordSigns(code));
  }

 private:
  VQ_DEVICE static u32 turned(u32 word, const WordSigns& signs) { return signs.turned(word, 0); }
  VQ_DEVICE static U32x2 turned(U32x2 words, const WordSigns& signs) {
    return {signs.turned(words.x, 0), signs.turned(words.y, 1)};
  }
  VQ_DEVICE static U32x4 turned(U32x4 words, const WordSigns& signs) {
    return {signs.turned(words.x, 0), signs.turned(words.y, 1), signs.turned(words.z, 2),
            signs.turned(words.w, 3)};
  }
};

template <Decoder kDecoder, Element kElement>
struct ScalarDecoding {
  VQ_DEVICE static u32 entry_of(u32) { return 0; }
  template <class Words>
  VQ_DEVICE static Words held(Words stored) {
    return stored;
  }
  VQ_DEVICE static u32 value(u32 held, u32 code) {
    float pair[2] = {};
    add(pair, held, code);
    return pack2<kElement>(pair[0], pair[1]);
  }
  VQ_DEVICE static U32x2 value(U32x2 held, u32 code) {
    float four[4] = {};
    add(four, held, code);
    return {pack2<kElement>(four[0], four[1]), pack2<kElement>(four[2], four[3])};
  }
  // value[] += the numbers of the code times the scales.
  template <int kVectorSize, class Words>
  VQ_DEVICE static void add(float (&value)[kVectorSize], Words held, u32 code) {
    float scales[kVectorSize] = {};
    add_entry<kElement>(scales, held, 1.0f);
    VQ_UNROLL
    for (int i = 0; i < kVectorSize; ++i) {
      value[i] += ScalarCode<kDecoder, kVectorSize>::number(code, i) * scales[i];
    }
  }
};

template <Element kElement>
struct Decoding<Decoder::scalar, kElement, false> : ScalarDecoding<Decoder::scalar, kElement> {};
template <Element kElement>
struct Decoding<Decoder::e4m3, kElement, false> : ScalarDecoding<Decoder::e4m3, kElement> {};
template <Element kElement>
struct Decoding<Decoder::affine, kElement, false> : ScalarDecoding<Decoder::affine, kElement> {};

}  // namespace vq
