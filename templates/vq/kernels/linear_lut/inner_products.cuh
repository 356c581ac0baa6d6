// The lookup tables of the lut GEMM: inner products of the lanes' sub-vectors of x with all entries
// of a stage,
//
//   table [entry][lane]   fp32: the column of a lane's sub-vector lies in a bank of its own
//
// by tensor cores if one codebook serves the whole chunk: an MMA takes 16 entries by 8 sub-vectors,
// with k padded by zeros. A lane (g, c) gets lanes 8 q + 2c and 8 q + 2c + 1 of entries g and g +
// 8, q = 0..3. Each lane starts storing with another q, rotated by g, to avoid bank conflicts.
#pragma once

#include <vq/lanes/fragment_lanes.cuh>
#include <vq/ops/linear_work.cuh>

namespace vq {

template <class Plan>
struct InnerProducts {
  using Work = LinearWork<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.weights;
  static constexpr int kVectorSize = kFormat.vector_size;
  static constexpr int kEntries = entries(kFormat);
  static constexpr int kWarps = kConfig.threads / 32;
  // One codebook for all sub-vectors of a chunk, and products of 16 entries.
  static constexpr bool kByTensorCore =
      kHasMma<kConfig.element> && kEntries % 16 == 0 && chunk_in_one_unit(kConfig);

  static constexpr int kSubVectors = kConfig.sub_vectors_per_lane;
  static constexpr int kTables = row_tables(kConfig);  // number t: sub-vector and stage
  static constexpr int kAtOnce = table_rows_at_once(kConfig);
  static constexpr int kRowFloats = kAtOnce * 32;  // from an entry's row to the next

  // Start of table `t` of row `row`.
  VQ_DEVICE static float* table(int row, int t) {
    return shared_part<float>(Work::at().x) +
           (row * kTables + t / kAtOnce * kAtOnce) * (kEntries * 32) + t % kAtOnce * 32;
  }

  // Fills the tables of row `row` of the block, whose columns of the chunk begin at `x` and are
  // column `first` on of the matrix, `left` of them within it. All threads of the block.
  VQ_DEVICE static void fill(int row, const typename Work::Book& book, const u16* x, i64 left,
                             i64 first) {
    if constexpr (kByTensorCore) {
      by_tensor_core(row, book, x, left);
    } else {
      VQ_UNROLL
      for (int t = 0; t < kTables; ++t) by_lanes(row, t, book, x, left, first);
    }
  }

 private:
  // A product of 16 entries of one table by 32 sub-vectors: its number, and its operands.
  struct Turn {
    int table;
    int first_entry;
    u32 a[2];
    u32 b[4];
  };

  VQ_DEVICE static void by_tensor_core(int row, const typename Work::Book& book, const u16* x,
                                       i64 left) {
    constexpr int kTurns = kTables * (kEntries / 16);
    constexpr int kOfWarp = ceil_div(kTurns, kWarps);
    constexpr int kInFlight = kOfWarp < 4 ? kOfWarp : 4;
    const int inside =
        left < chunk_columns(kConfig) ? static_cast<int>(left) : chunk_columns(kConfig);
    for (int turn = warp(); turn < kTurns; turn += kInFlight * kWarps) {
      Turn turns[kInFlight];
      VQ_UNROLL
      for (int i = 0; i < kInFlight; ++i) {
        load(turns[i], turn + i * kWarps, book, x, inside);
      }
      VQ_UNROLL
      for (int i = 0; i < kInFlight; ++i) {
        if (kTurns % (kInFlight * kWarps) == 0 || turn + i * kWarps < kTurns) {
          multiply(turns[i], row, book.scale(0, turns[i].table % kFormat.num_codebooks));
        }
      }
    }
  }

  // Turns past the last repeat it. `inside`: columns of the chunk within the matrix.
  VQ_DEVICE static void load(Turn& turn, int number, const typename Work::Book& book, const u16* x,
                             int inside) {
    constexpr int kTiles = kEntries / 16;
    constexpr int kLast = kTables * kTiles - 1;
    const int held = number < kLast ? number : kLast;
    const int g = lane_group();
    const int c = place_in_group();
    turn.table = held / kTiles;
    turn.first_entry = held % kTiles * 16;
    const int stage = turn.table % kFormat.num_codebooks;
    turn.a[0] = turn.a[1] = 0;
    if (2 * c < kVectorSize) {
      turn.a[0] = book.entry_word(0, stage, turn.first_entry + g, c);
      turn.a[1] = book.entry_word(0, stage, turn.first_entry + g + 8, c);
    }
    VQ_UNROLL
    for (int q = 0; q < 4; ++q) {
      const int sub = (8 * q + g) * kSubVectors + turn.table / kFormat.num_codebooks;
      const int column = sub * kVectorSize + 2 * c;
      turn.b[q] = 0;
      if (2 * c < kVectorSize && column < inside) {
        turn.b[q] = load_global(x + column) | u32{load_global(x + column + 1)} << 16;
      }
    }
  }

  VQ_DEVICE static void multiply(const Turn& turn, int row, float scale) {
    const int g = lane_group();
    const int c = place_in_group();
    const u32 a[4] = {turn.a[0], turn.a[1], 0u, 0u};
    float products[4][4] = {};
    VQ_UNROLL
    for (int q = 0; q < 4; ++q) {
      const u32 b[2] = {turn.b[q], 0u};
      mma_m16n8k16<kConfig.element>(products[q], a, b);
    }
    float* const to = table(row, turn.table) + turn.first_entry * kRowFloats + 2 * c;
    store_rotated(to + g * kRowFloats, products, 0, scale);
    store_rotated(to + (g + 8) * kRowFloats, products, 2, scale);
  }

  // products[q][i], products[q][i + 1] go to row + 8 q, lane by lane in an order rotated by g.
  VQ_DEVICE static void store_rotated(float* row, const float (&products)[4][4], int i,
                                      float scale) {
    const int turn = lane_group() % 4;
    u32 pairs[4][2];
    VQ_UNROLL
    for (int q = 0; q < 4; ++q) {
      const int partner = q ^ 1;
      const bool swap = (turn & 1) != 0;
      pairs[q][0] = float_bits((swap ? products[partner][i] : products[q][i]) * scale);
      pairs[q][1] = float_bits((swap ? products[partner][i + 1] : products[q][i + 1]) * scale);
    }
    VQ_UNROLL
    for (int q = 0; q < 4; ++q) {
      const int partner = q ^ 2;
      const bool swap = (turn & 2) != 0;
      const U32x2 pair = {swap ? pairs[partner][0] : pairs[q][0],
                          swap ? pairs[partner][1] : pairs[q][1]};
      store_shared(reinterpret_cast<U32x2*>(row + 8 * (q ^ turn)), pair);
    }
  }

  // Each lane has its own sub-vector, and each warp every kWarps-th entry.
  VQ_DEVICE static void by_lanes(int row, int t, const typename Work::Book& book, const u16* x,
                                 i64 left, i64 first) {
    const int begin = (lane() * kSubVectors + t / kFormat.num_codebooks) * kVectorSize;
    float own[kVectorSize];
    VQ_UNROLL
    for (int i = 0; i < kVectorSize; ++i) {
      own[i] = begin + i < left ? to_float<kConfig.element>(load_global(x + begin + i)) : 0.0f;
    }
    const int unit = Work::unit_in_chunk(Work::first_output(), first + begin, first);
    float* const to = table(row, t) + lane();
    for (int e = warp(); e < kEntries; e += kWarps) {
      float value[kVectorSize] = {};
      book.add_stage(value, unit, t % kFormat.num_codebooks, static_cast<u32>(e));
      float product = 0.0f;
      VQ_UNROLL
      for (int i = 0; i < kVectorSize; ++i) product += value[i] * own[i];
      store_shared(to + e * kRowFloats, product);
    }
  }
};

}  // namespace vq
