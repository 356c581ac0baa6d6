// The table of inner products of dataflow tables: 32 sub-vectors of x with all entries of a stage,
//
//   table [entry][lane]   fp32: the column of a lane's sub-vector lies in a bank of its own
//
// by tensor core where one codebook serves all 32: 16 entries times 8 sub-vectors a product, k
// filled up with zeros. Its result has a lane (g, c) = (lane / 4, lane % 4) hold sub-vectors 8 q +
// 2c and 8 q + 2c + 1 of entries g and g + 8 for q = 0..3. Stored as they come, the 8 lanes of
// equal c would meet in one bank; so each lane begins with another q, rotated by g.
#pragma once

#include <vq/ops/linear_work.cuh>

namespace vq {

template <class Plan>
struct InnerProducts {
  using Work = LinearWork<Plan>;
  static constexpr LinearConfig kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.weights;
  static constexpr int kVectorSize = kFormat.vector_size;
  static constexpr int kEntries = entries(kFormat);
  static constexpr int kWarps = kConfig.threads / 32;
  // One codebook for all sub-vectors of a chunk, and products of 16 entries.
  static constexpr bool kByTensorCore =
      kHasMma<kConfig.element> && kEntries % 16 == 0 &&
      (Work::kUnitColumns >= Work::kInFeatures || Work::kUnitColumns % kConfig.chunk_columns == 0);

  // Fills `table` for one row of x, whose columns of the chunk begin at `x`, `left` of them within
  // the matrix. All threads of the block.
  VQ_DEVICE static void fill(float* table, const typename Work::Book& book, int stage, const u16* x,
                             i64 left, i64 first) {
    if constexpr (kByTensorCore) {
      by_tensor_core(table, book, stage, x, left);
    } else {
      by_lanes(table, book, stage, x, left, first);
    }
  }

 private:
  // Word `i` of sub-vector `sub` of x, zero past its end.
  VQ_DEVICE static u32 x_word(const u16* x, i64 left, int sub, int i) {
    const int column = sub * kVectorSize + 2 * i;
    if (2 * i >= kVectorSize || column >= left) return 0;
    return load_global(x + column) | u32{load_global(x + column + 1)} << 16;
  }

  VQ_DEVICE static void by_tensor_core(float* table, const typename Work::Book& book, int stage,
                                       const u16* x, i64 left) {
    const int g = lane() / 4;
    const int c = lane() % 4;
    u32 b[4];
    VQ_UNROLL
    for (int q = 0; q < 4; ++q) b[q] = x_word(x, left, 8 * q + g, c);
    for (int first = warp() * 16; first < kEntries; first += kWarps * 16) {
      u32 a[4] = {};
      if (2 * c < kVectorSize) {
        a[0] = book.entry_word(0, stage, first + g, c);
        a[1] = book.entry_word(0, stage, first + g + 8, c);
      }
      float products[4][4] = {};
      VQ_UNROLL
      for (int q = 0; q < 4; ++q) mma_m16n8k16<kConfig.element>(products[q], a, {b[q], 0u});
      const float scale = book.scale(0, stage);
      store_rotated(table + (first + g) * 32 + 2 * c, products, 0, scale);
      store_rotated(table + (first + g + 8) * 32 + 2 * c, products, 2, scale);
    }
  }

  // products[q][i], products[q][i + 1] go to row + 8 q, lane by lane in an order rotated by g.
  VQ_DEVICE static void store_rotated(float* row, const float (&products)[4][4], int i,
                                      float scale) {
    const int turn = lane() / 4 % 4;
    u32 pairs[4][2];
    VQ_UNROLL
    for (int q = 0; q < 4; ++q) {
      const int from = q ^ 1;
      const bool swap = (turn & 1) != 0;
      pairs[q][0] = float_bits((swap ? products[from][i] : products[q][i]) * scale);
      pairs[q][1] = float_bits((swap ? products[from][i + 1] : products[q][i + 1]) * scale);
    }
    VQ_UNROLL
    for (int q = 0; q < 4; ++q) {
      const int from = q ^ 2;
      const bool swap = (turn & 2) != 0;
      const U32x2 pair = {swap ? pairs[from][0] : pairs[q][0], swap ? pairs[from][1] : pairs[q][1]};
      store_shared(reinterpret_cast<U32x2*>(row + 8 * (q ^ turn)), pair);
    }
  }

  // A lane its own sub-vector, a warp every kWarps-th entry.
  VQ_DEVICE static void by_lanes(float* table, const typename Work::Book& book, int stage,
                                 const u16* x, i64 left, i64 first) {
    float own[kVectorSize];
    VQ_UNROLL
    for (int i = 0; i < kVectorSize; ++i) {
      const int column = lane() * kVectorSize + i;
      own[i] = column < left ? to_float<kConfig.element>(load_global(x + column)) : 0.0f;
    }
    const int unit = Work::unit_in_chunk(Work::first_output(), first + lane() * kVectorSize, first);
    for (int e = warp(); e < kEntries; e += kWarps) {
      float value[kVectorSize] = {};
      book.add_stage(value, unit, stage, static_cast<u32>(e));
      float product = 0.0f;
      VQ_UNROLL
      for (int i = 0; i < kVectorSize; ++i) product += value[i] * own[i];
      store_shared(table + e * 32 + lane(), product);
    }
  }
};

}  // namespace vq
