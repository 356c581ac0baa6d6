// The integer types of the device code. NVRTC has no <cstdint>, so they are spelt here.
#pragma once

namespace vq {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

// The names of an enum's values in order, as JSON spells them and the enumerators are called, and
// the name of its type.
template <class E>
struct EnumNames;

// The element type of queries, outputs, raw tokens and codebook entries: always 16 bits, kept as
// bits (u16) and converted by the machine's to_float / from_float.
enum class Element : int { f16, bf16 };
template <>
struct EnumNames<Element> {
  static constexpr const char* kType = "vq::Element";
  static constexpr const char* kNames[] = {"f16", "bf16"};
};

// The type of a matrix of plain numbers.
enum class Real : int { f32, f16, bf16 };
template <>
struct EnumNames<Real> {
  static constexpr const char* kType = "vq::Real";
  static constexpr const char* kNames[] = {"f32", "f16", "bf16"};
};

// How a code becomes elements: an entry's number, a point of the E8P lattice, or a number per
// element: a signed integer, an 8-bit float, or an integer that counts steps from a zero; or an
// entry's number with a sign per element (layout/format.h).
enum class Decoder : int { table, e8p, scalar, e4m3, affine, signs };
template <>
struct EnumNames<Decoder> {
  static constexpr const char* kType = "vq::Decoder";
  static constexpr const char* kNames[] = {"table", "e8p", "scalar", "e4m3", "affine", "signs"};
};

// A where kFirst, else B.
template <bool kFirst>
struct Chosen {
  template <class A, class B>
  using Type = A;
};
template <>
struct Chosen<false> {
  template <class A, class B>
  using Type = B;
};
template <bool kFirst, class A, class B>
using Either = typename Chosen<kFirst>::template Type<A, B>;

// Words that move as one access.
struct alignas(8) U32x2 {
  u32 x, y;
};
struct alignas(16) U32x4 {
  u32 x, y, z, w;
};

}  // namespace vq
