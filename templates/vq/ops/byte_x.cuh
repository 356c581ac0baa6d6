// x of a chunk as bytes in shared memory, for dataflow bytes: what products of integers take as
// operand b.
//
// A row of a group of columns is scaled so that its largest magnitude is kPeak, and rounded to
// integers v = 256 high + low, each a signed byte: 15 bits and a sign. A warp turns a row of a
// group at a time. Order: [step][row tile][lane], in which lane (g, c) has the octet that it also
// looks up, as operand b of m16n8k32 has it: the first four of its bytes at k = 4c.., the others at
// k = 16 + 4c.. .
//
//   8 rows a product   octet c of row g: high, high, low, low; the words of two products
//   4                  column g is row g / 2, its high bytes (g even) or its low ones
//
// A row of a group with an element that is no finite number has a scale that is none.
#pragma once

#include <vq/args/linear.h>
#include <vq/kernels/linear_bytes/plan.h>
#include <vq/lanes/fragment_lanes.cuh>
#include <vq/ops/linear_work.cuh>
#include <vq/ops/split_bytes.cuh>

namespace vq {

template <class Plan>
class ByteX {
 public:
  using Work = LinearWork<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr bool kPairs = kConfig.product_rows == 4;  // of columns: the bytes of a row
  static constexpr int kWords = kPairs ? 2 : 4;              // a lane's, of one row tile

  VQ_DEVICE ByteX(const LinearArgs& args, int first_row) : args_(args), first_row_(first_row) {}

  // Begins to fetch this thread's part of the chunk that begins at a column.
  VQ_DEVICE void fetch(i64 first_column) {
    VQ_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      VQ_UNROLL
      for (int i = 0; i < kOctets; ++i) {
        fetched_[turn][i] = {};
        const int octet = lane() + 32 * i;
        if (!is_turn(turn) || !is_octet(octet)) continue;
        const i64 column = first_column + group_of(turn) * kGroupColumns + octet * 8;
        fetched_[turn][i] = Work::x_octet(args_, first_row_ + row_of(turn), column);
      }
    }
  }

  // Stores what was fetched as bytes. All lanes of each warp.
  VQ_DEVICE void store(int buffer) const {
    VQ_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      const float peak = peak_of(fetched_[turn]);
      const float to_peak = SplitBytes::factor_of(peak);
      if (!is_turn(turn)) continue;
      if (lane() == 0) {
        store_shared(scales(buffer) + unit_of(turn), SplitBytes::scale_of(peak));
      }
      VQ_UNROLL
      for (int i = 0; i < kOctets; ++i) {
        const int octet = lane() + 32 * i;
        if (is_octet(octet)) {
          store_octet(buffer, row_of(turn), group_of(turn), octet, fetched_[turn][i], to_peak);
        }
      }
    }
  }

  // The lane's operand words of a row tile in a step of the chunk.
  VQ_DEVICE static void load(u32 (&x)[kWords], int buffer, int step, int tile) {
    const u8* const from = tile_at(buffer, step, tile) + lane() * (4 * kWords);
    if constexpr (kPairs) {
      const U32x2 words = load_shared(reinterpret_cast<const U32x2*>(from));
      x[0] = words.x, x[1] = words.y;
    } else {
      const U32x4 words = load_shared(reinterpret_cast<const U32x4*>(from));
      x[0] = words.x, x[1] = words.y, x[2] = words.z, x[3] = words.w;
    }
  }

  // By which the integers of a row and group, 256 high + low, become numbers.
  VQ_DEVICE static float scale(int buffer, int group, int row) {
    return load_shared(scales(buffer) + group * kConfig.rows_per_block + row);
  }

 private:
  static constexpr u32 kRows = kConfig.rows_per_block;
  static constexpr int kWarps = kConfig.threads / 32;
  static constexpr int kTurns = warp_turns(kConfig);
  static constexpr int kOctets = lane_octets(kConfig);
  static constexpr int kGroupColumns = group_columns(kConfig);
  static constexpr u32 kUnits = chunk_groups(kConfig) * kRows;  // rows of groups
  static constexpr u32 kRunOctets = run_octets(kConfig);
  static constexpr i64 kOffset = shared_layout(kConfig).x;

  // Unsigned, for divisions of one instruction.
  VQ_DEVICE static u32 unit_of(int turn) { return static_cast<u32>(turn * kWarps + warp()); }
  VQ_DEVICE static bool is_turn(int turn) { return kUnits % kWarps == 0 || unit_of(turn) < kUnits; }
  VQ_DEVICE static bool is_octet(int octet) {
    return kGroupColumns % 256 == 0 || octet < kGroupColumns / 8;
  }
  VQ_DEVICE static int group_of(int turn) { return static_cast<int>(unit_of(turn) / kRows); }
  VQ_DEVICE static int row_of(int turn) { return static_cast<int>(unit_of(turn) % kRows); }

  // The largest magnitude of the warp's.
  VQ_DEVICE static float peak_of(const U32x4 (&octets)[kOctets]) {
    u32 peak = 0;
    VQ_UNROLL
    for (int i = 0; i < kOctets; ++i) peak = SplitBytes::peak_bits(peak, octets[i]);
    return SplitBytes::peak<kConfig.element>(SplitBytes::peak_of_warp(peak));
  }

  VQ_DEVICE static void store_octet(int buffer, int row, int group, int octet, const U32x4& x,
                                    float to_peak) {
    u32 high[2], low[2];
    SplitBytes::split<kConfig.element>(high, low, x, to_peak);
    constexpr u32 kSteps = run_steps(kConfig);
    const u32 number = static_cast<u32>(octet);
    const u32 step = static_cast<u32>(group) * (group_runs(kConfig) * kSteps) +
                     number / (4 * kRunOctets) * kSteps + number % kRunOctets;
    const u32 c = number / kRunOctets % 4;
    u8* const to = tile_at(buffer, static_cast<int>(step), row / kConfig.product_rows);
    if constexpr (kPairs) {
      auto* const words = reinterpret_cast<U32x2*>(to) + row % 4 * 8 + c;
      store_shared(words, U32x2{high[0], high[1]});
      store_shared(words + 4, U32x2{low[0], low[1]});
    } else {
      store_shared(reinterpret_cast<U32x4*>(to) + row % 8 * 4 + c,
                   U32x4{high[0], high[1], low[0], low[1]});
    }
  }
  VQ_DEVICE static u8* buffer_at(int buffer) {
    return shared_part<u8>(kOffset) + buffer * byte_chunk_bytes(kConfig);
  }
  VQ_DEVICE static float* scales(int buffer) { return reinterpret_cast<float*>(buffer_at(buffer)); }
  VQ_DEVICE static u8* tile_at(int buffer, int step, int tile) {
    constexpr int kTileBytes = 32 * 4 * kWords;
    return buffer_at(buffer) + chunk_scale_bytes(kConfig) + step * byte_step_bytes(kConfig) +
           tile * kTileBytes;
  }

  const LinearArgs& args_;
  int first_row_;
  U32x4 fetched_[kTurns][kOctets];
};

}  // namespace vq
