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
      for (int i = thread_index(); i < kHeld; i += kRotationThreads) {
        store(out, place(0, i), load_shared(held() + i));
      }
    } else {
      multiply(out);
    }
  }

 private:
  static constexpr int kQuads = kColumns / 4;

  VQ_DEVICE static float* held() { return shared_part<float>(0); }
  // Of column `column` of the block in a piece.
  VQ_DEVICE static i64 place(int piece, int column) {
    return i64{piece} * kPiece + block_x() * kColumns + column;
  }

  VQ_DEVICE void load(const u16* x) const {
    for (int i = thread_index(); i < kHeld; i += kRotationThreads) {
      const int first = i / kColumns * kPiece + i % kColumns;
      float sum = 0;
      for (int part = 0; part < kParts; ++part) {
        const int from = first + part * kColumns;
        float value = to_float<kElement>(load_global(x + from));
        if constexpr (!kBack) value *= load_global(args_.signs + from);
        sum += ones_of(static_cast<u64>(part & block_x())) % 2 == 1 ? -value : value;
      }
      store_shared(held() + i, sum);
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
          const float* const from = held() + (32 * word + bit) * kColumns + column;
          const U32x4 values = load_shared(reinterpret_cast<const U32x4*>(from));
          sums[0] = fused(sign, float_from_bits(values.x), sums[0]);
          sums[1] = fused(sign, float_from_bits(values.y), sums[1]);
          sums[2] = fused(sign, float_from_bits(values.z), sums[2]);
          sums[3] = fused(sign, float_from_bits(values.w), sums[3]);
        }
      }
      VQ_UNROLL
      for (int j = 0; j < 4; ++j) store(out, place(piece, column + j), sums[j]);
    }
  }

  VQ_DEVICE void store(u16* out, i64 at, float sum) const {
    float value = sum * args_.scale;
    if constexpr (kBack) value *= load_global(args_.signs + at);
    store_global(out + at, from_float<kElement>(value));
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
