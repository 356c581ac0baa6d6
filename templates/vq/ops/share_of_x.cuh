// x of a block's columns as bytes in shared memory, for int8_wgmma without a pre-pass: all warps
// convert all columns at once (order and scales: linear_int8_wgmma/plan.h). A warp converts some
// rows at a time, lane l octets l, l + 32, .. of each row. An octet's words go to four core
// matrices; the 8 steps of a warp's lanes have no bank conflicts.
#pragma once

#include <vq/args/linear.h>
#include <vq/kernels/linear_int8_wgmma/plan.h>
#include <vq/ops/linear_work.cuh>
#include <vq/ops/split_bytes.cuh>

namespace vq {

template <class Plan>
class ShareOfX {
 public:
  using Work = LinearWork<Plan>;
  static constexpr auto kConfig = Plan::config();

  // `meanwhile` is called while the first loads are on their way. fence_shared and sync_block must
  // follow.
  template <class Meanwhile>
  VQ_DEVICE static void make(const LinearArgs& args, Meanwhile meanwhile) {
    Rows rows;
    by_turns<kTurns, kTogether>([&](int turn) { load(rows, args, turn); },
                                [&](int turn) { store(rows, turn); }, meanwhile);
  }

  // Address of the chunk that begins at a column.
  VQ_DEVICE static u8* chunk(i64 first_column) {
    const auto number = static_cast<int>((first_column - Work::begin()) / kConfig.chunk_columns);
    return shared_part<u8>(Work::at().x + number * chunk_bytes(kConfig));
  }

  // Factor from the integers of a row of the block to numbers.
  VQ_DEVICE static float scale(int row) { return load_shared(scales() + row); }

 private:
  static constexpr int kRows = kConfig.rows_per_block;
  static constexpr int kWarps = kConfig.threads / 32;
  static constexpr int kColumns = staged_chunks(kConfig) * kConfig.chunk_columns;
  static constexpr int kOctets = share_octets(kConfig);
  static constexpr int kRunOctets = run_octets(kConfig);
  // Rows per warp, and rows whose loads are in flight together.
  static constexpr int kTurns = ceil_div(kRows, kWarps);
  static constexpr int kMost = kOctets < 8 ? 8 / kOctets : 1;
  static constexpr int kTogether = kTurns < kMost ? kTurns : kMost;
  struct Rows {
    U32x4 octets[kTogether][kOctets];
  };

  VQ_DEVICE static float* scales() { return shared_part<float>(Work::at().beside); }
  VQ_DEVICE static int row_of(int turn) { return warp() + turn * kWarps; }
  VQ_DEVICE static bool is_row(int row) { return kRows % (kTogether * kWarps) == 0 || row < kRows; }
  VQ_DEVICE static bool is_octet(int octet) { return kColumns % 256 == 0 || octet < kColumns / 8; }

  // Zeros past the last column.
  VQ_DEVICE static void load(Rows& rows, const LinearArgs& args, int turn) {
    VQ_UNROLL
    for (int t = 0; t < kTogether; ++t) {
      VQ_UNROLL
      for (int i = 0; i < kOctets; ++i) {
        const int octet = lane() + 32 * i, row = row_of(turn + t);
        const i64 column = Work::begin() + octet * 8;
        U32x4& words = rows.octets[t][i];
        words = {};
        if (is_row(row) && is_octet(octet) && column < Work::kInFeatures) {
          words = Work::x_octet(args, block_y() * kRows + row, column);
        }
      }
    }
  }

  VQ_DEVICE static void store(const Rows& rows, int turn) {
    float peaks[kTogether];
    VQ_UNROLL
    for (int t = 0; t < kTogether; ++t) {
      u32 most = 0;
      VQ_UNROLL
      for (int i = 0; i < kOctets; ++i) most = SplitBytes::peak_bits(most, rows.octets[t][i]);
      peaks[t] = SplitBytes::peak<kConfig.element>(SplitBytes::peak_of_warp(most));
    }
    VQ_UNROLL
    for (int t = 0; t < kTogether; ++t) {
      const int row = row_of(turn + t);
      if (!is_row(row)) continue;
      if (lane() == 0) store_shared(scales() + row, SplitBytes::scale_of(peaks[t]));
      const float factor = SplitBytes::factor_of(peaks[t]);
      VQ_UNROLL
      for (int i = 0; i < kOctets; ++i) {
        if (is_octet(lane() + 32 * i)) store_octet(rows.octets[t][i], row, i, factor);
      }
    }
  }

  VQ_DEVICE static void store_octet(const U32x4& octet, int row, int i, float factor) {
    u32 high[2], low[2];
    SplitBytes::split<kConfig.element>(high, low, octet, factor);
    const int number = lane() + 32 * i;
    const int step = number / (4 * kRunOctets) * kRunOctets + number % kRunOctets;
    const int c = number / kRunOctets % 4;
    u8* const to =
        shared_part<u8>(Work::at().x) + step * step_stride(kConfig) + row * kCoreRowBytes + c * 4;
    VQ_UNROLL
    for (int k = 0; k < 2; ++k) {
      u8* const octet_bytes = to + k * k_octet_bytes(kConfig);
      store_shared(reinterpret_cast<u32*>(octet_bytes), high[k]);
      store_shared(reinterpret_cast<u32*>(octet_bytes + kRows * kCoreRowBytes), low[k]);
    }
  }
};

}  // namespace vq
