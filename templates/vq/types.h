// The integer types of the device code. NVRTC has no <cstdint>, so they are spelt here.
#pragma once

namespace vq {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

// The element type of queries, outputs, raw tokens and codebook entries: always 16 bits, kept as
// bits (u16) and converted by the machine's to_float / from_float.
enum class Element : int { kF16 = 0, kBF16 = 1 };

// How a code becomes elements: as the number of an entry, or as a point of the E8P lattice
// (layout/format.h).
enum class Decoder : int { kTable = 0, kE8p = 1 };

// A where kFirst, else B.
template <bool kFirst, class A, class B>
struct Either {
  using type = A;
};
template <class A, class B>
struct Either<false, A, B> {
  using type = B;
};

// Words that move as one access.
struct alignas(8) U32x2 {
  u32 x, y;
};
struct alignas(16) U32x4 {
  u32 x, y, z, w;
};

}  // namespace vq
