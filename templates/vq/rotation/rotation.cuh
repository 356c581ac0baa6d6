// Rows of x rotated by the matrix of <vq/layout/rotation.h>, which is the Kronecker product of a
// matrix of order m and of Sylvester's of 2^high and of 2^low.
//
//   a row, m x 2^high x 2^low -> signed sums over 2^high, in registers  -> shared memory, m x 2^low
//                             -> 2^low by butterflies, in place         -> m by a table of signs
//
// A block has one of the 2^high outputs of the first step. All blocks of a row read all of it,
// since the sums are over all of it; it is small, and in L2.
#pragma once

#include <vq/args/rotation.h>
#include <vq/loads.cuh>

namespace vq {

// kBack: signs o H x; else H^T (signs o x), by a table of the transpose.
template <Element kElement, bool kBack, int kOrder, int kBits, int kLow>
class RotationBlock {
 public:
  static constexpr int kPiece = 1 << kBits;
  static constexpr int kColumns = 1 << kLow;
  static constexpr int kParts = 1 << (kBits - kLow);
  static constexpr int kHeld = kOrder * kColumns;
  static constexpr i64 kFeatures = i64{kOrder} * kPiece;

  VQ_DEVICE explicit RotationBlock(const RotationArgs& args) : args_(args) {}

  VQ_DEVICE void rotate(i64 row) const {
    load(args_.x + row * kFeatures);
    sync_block();
    for (int bit = 0; bit < kLow; ++bit) {
      butterflies(1 << bit);
      sync_block();
    }
    u16* const out = args_.y + row * kFeatures;
    if constexpr (kOrder == 1) {
      for (int i = thread_index(); i < kQuads; i += kRotationThreads) {
        float sums[4];
        load_quad(sums, 4 * i);
        store(out, place(0, 4 * i), sums);
      }
    } else {
      multiply(out);
    }
  }

 private:
  static constexpr int kQuads = kColumns / 4;
  static constexpr int kAtOnce = kParts < 8 ? kParts : 8;  // loads in flight

  VQ_DEVICE static float* held() { return shared_part<float>(0); }
  // The place in a row of column `column` of the block, in a piece.
  VQ_DEVICE static i64 place(int piece, int column) {
    return i64{piece} * kPiece + block_x() * kColumns + column;
  }
  VQ_DEVICE static void unpack(float (&values)[4], const U32x4& bits) {
    values[0] = float_from_bits(bits.x);
    values[1] = float_from_bits(bits.y);
    values[2] = float_from_bits(bits.z);
    values[3] = float_from_bits(bits.w);
  }
  VQ_DEVICE static void load_quad(float (&values)[4], int at) {
    unpack(values, load_shared(reinterpret_cast<const U32x4*>(held() + at)));
  }
  VQ_DEVICE void load_signs(float (&signs)[4], i64 at) const {
    unpack(signs, load_global(reinterpret_cast<const U32x4*>(args_.signs + at)));
  }

  // A thread sums four neighbouring columns.
  VQ_DEVICE void load(const u16* x) const {
    for (int i = thread_index(); i < kHeld / 4; i += kRotationThreads) {
      const int first = i / kQuads * kPiece + i % kQuads * 4;
      float sums[4] = {0, 0, 0, 0};
      for (int part = 0; part < kParts; part += kAtOnce) {
        U32x2 words[kAtOnce];
        float signs[kAtOnce][4];
        VQ_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          const int from = first + (part + j) * kColumns;
          words[j] = load_global(reinterpret_cast<const U32x2*>(x + from));
          if constexpr (!kBack) load_signs(signs[j], from);
        }
        VQ_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          const bool minus = ones_of(static_cast<u64>((part + j) & block_x())) % 2 == 1;
          const u32 halves[4] = {words[j].x & 0xffffu, words[j].x >> 16, words[j].y & 0xffffu,
                                 words[j].y >> 16};
          VQ_UNROLL
          for (int d = 0; d < 4; ++d) {
            float value = to_float<kElement>(static_cast<u16>(halves[d]));
            if constexpr (!kBack) value *= signs[j][d];
            sums[d] += minus ? -value : value;
          }
        }
      }
      store_shared(reinterpret_cast<U32x4*>(held() + 4 * i),
                   U32x4{float_bits(sums[0]), float_bits(sums[1]), float_bits(sums[2]),
                         float_bits(sums[3])});
    }
  }

  VQ_DEVICE void butterflies(int step) const {
    for (int i = thread_index(); i < kHeld / 2; i += kRotationThreads) {
      float* const low = held() + i / step * 2 * step + i % step;
      const float a = load_shared(low), b = load_shared(low + step);
      store_shared(low, a + b);
      store_shared(low + step, a - b);
    }
  }

  // A thread makes four neighbouring columns of an output piece.
  VQ_DEVICE void multiply(u16* out) const {
    constexpr int kWords = rotation_table_words(kOrder);
    for (int i = thread_index(); i < kOrder * kQuads; i += kRotationThreads) {
      const int piece = i / kQuads, column = i % kQuads * 4;
      float sums[4] = {0, 0, 0, 0};
      for (int word = 0; word < kWords; ++word) {
        const u32 signs = load_global(args_.table + piece * kWords + word);
        const int most = kOrder - 32 * word < 32 ? kOrder - 32 * word : 32;
        for (int bit = 0; bit < most; ++bit) {
          const float sign = float_from_bits(0x3f800000u | (signs << (31 - bit) & 0x80000000u));
          float values[4];
          load_quad(values, (32 * word + bit) * kColumns + column);
          VQ_UNROLL
          for (int d = 0; d < 4; ++d) sums[d] = fused(sign, values[d], sums[d]);
        }
      }
      store(out, place(piece, column), sums);
    }
  }

  VQ_DEVICE void store(u16* out, i64 at, const float (&sums)[4]) const {
    float values[4], signs[4] = {1, 1, 1, 1};
    if constexpr (kBack) load_signs(signs, at);
    VQ_UNROLL
    for (int d = 0; d < 4; ++d) values[d] = sums[d] * args_.scale * signs[d];
    store_global(reinterpret_cast<U32x2*>(out + at), U32x2{pack2<kElement>(values[0], values[1]),
                                                           pack2<kElement>(values[2], values[3])});
  }

  const RotationArgs& args_;
};

template <Element kElement, bool kBack, int kOrder, int kBits, int kLow>
VQ_DEVICE void rotate_rows(const RotationArgs& args) {
  const RotationBlock<kElement, kBack, kOrder, kBits, kLow> block(args);
  for (i64 row = block_y(); row < args.rows; row += args.rows_at_once) {
    if (row != block_y()) sync_block();  // the last row's sums are read
    block.rotate(row);
  }
}

}  // namespace vq
