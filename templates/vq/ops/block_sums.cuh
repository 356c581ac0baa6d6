// Sums that a block keeps in shared memory until all of its outputs have theirs. Layout:
// layout/linear.h.
//
// Blocks that form a cluster merge splits: each adds up its part of the outputs from all of them,
// in the order of the splits, so that bits equal those of the other ways to merge.
//
//   all blocks     store their sums | barrier of the cluster | add up, each its part, write y | ..
//                  .. | and wait for all: nobody ends whose sums others may be reading
//
// A part is every n-th run of 32 quads of outputs, one quad per lane: coalesced loads of 16 bytes.
// With an epilogue, a part is every n-th run of elements of y, one per thread.
#pragma once

#include <vq/args/linear.h>
#include <vq/layout/linear.h>
#include <vq/ops/splits.cuh>

namespace vq {

template <class Work>
struct BlockSums {
  static constexpr auto kConfig = Work::kConfig;
  static constexpr int kBlocks = splits(kConfig);
  static constexpr int kPitch = sums_pitch(kConfig);
  static constexpr int kQuads = Work::kBlockOutputs / 4;  // quads per row

  // Waits until other warps have read the memory to be overwritten. Call it with all threads before
  // the first store.
  VQ_DEVICE static void begin() {
    if constexpr (keeps_sums(kConfig)) {
      sync_block();
    }
  }

  // Address of the sum of a row and an output of the block.
  VQ_DEVICE static float* place(int row, int output) {
    return shared_part<float>(0) + row * kPitch + output;
  }
  VQ_DEVICE static void store(int row, int output, float sum) {
    store_shared(place(row, output), sum);
  }

  // All threads of all blocks, when their sums are stored.
  VQ_DEVICE static void merge(const LinearArgs& args) {
    if constexpr (kConfig.epilogue.none()) {
      merge_quads(args);
    } else {
      merge_elements(args);
    }
  }

 private:
  VQ_DEVICE static void merge_elements(const LinearArgs& args) {
    constexpr int kColumns = Work::kBlockColumns;
    const int first_row = block_y() * kConfig.rows_per_block;
    if constexpr (kBlocks > 1) {
      sync_cluster();
    } else {
      sync_block();
    }
    for (int i = Work::split() * kConfig.threads + thread_index(); i < held_rows(args) * kColumns;
         i += kBlocks * kConfig.threads) {
      const int row = i / kColumns;
      const i64 column = Work::first_column() + i % kColumns;
      if (column >= Work::kColumns) continue;
      Work::end(args, first_row + row, column, [&](i64 output) {
        const float* const sums = place(row, static_cast<int>(output - Work::first_output()));
        if constexpr (kBlocks == 1) {
          return load_shared(sums);
        } else {
          float sum = 0.0f;
          in_order<kBlocks, kBlocks>([&](int peer) { return load_peer(sums, peer); },
                                     [&](float partial) { sum += partial; });
          return sum;
        }
      });
    }
    if constexpr (kBlocks > 1) {
      leave_cluster();
    }
  }

  VQ_DEVICE static int held_rows(const LinearArgs& args) {
    const int left = Work::rows(args) - block_y() * kConfig.rows_per_block;
    return left < block_rows(kConfig) ? left : block_rows(kConfig);
  }

  VQ_DEVICE static void merge_quads(const LinearArgs& args) {
    constexpr int kTurn = kBlocks * kConfig.threads;
    const int first_row = block_y() * kConfig.rows_per_block;
    const int held = held_rows(args);
    const int first = (warp() * kBlocks + Work::split()) * 32 + lane();
    Scales scales = load_scales(args, first);  // under way while others are behind
    sync_cluster();
    for (int quad = first; quad < held * kQuads; quad += kTurn) {
      if constexpr (kTurn % kQuads != 0) scales = load_scales(args, quad);
      // Nothing would wait for these, and a load must be done before its peer ends.
      constexpr bool kRagged = Work::kOutFeatures % Work::kBlockOutputs != 0;
      if (kRagged && output_of(quad) >= Work::kOutFeatures) continue;
      const int row = quad / kQuads;
      const auto* const sums = reinterpret_cast<const U32x4*>(place(row, quad % kQuads * 4));
      float sum[4] = {};
      in_order<kBlocks, kBlocks>([&](int block) { return load_peer(sums, block); },
                                 [&](const U32x4& partial) {
                                   VQ_UNROLL
                                   for (int i = 0; i < 4; ++i) {
                                     sum[i] += float_from_bits(word_of(partial, i));
                                   }
                                 });
      write(args, first_row + row, output_of(quad), sum, scales);
    }
    leave_cluster();
  }

  struct Scales {
    float values[4];
  };

  VQ_DEVICE static void write(const LinearArgs& args, int row, i64 output, const float (&sum)[4],
                              const Scales& scales) {
    if constexpr (Work::kOutFeatures % 4 == 0) {
      u32 words[2];
      VQ_UNROLL
      for (int i = 0; i < 2; ++i) {
        words[i] = pack2<kConfig.element>(Work::scaled(sum[2 * i], scales.values[2 * i]),
                                          Work::scaled(sum[2 * i + 1], scales.values[2 * i + 1]));
      }
      Work::store_quad(args.y + row * Work::kOutFeatures + output, {words[0], words[1]});
    } else {
      VQ_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (output + i < Work::kOutFeatures) {
          Work::finish_scaled(args, row, output + i, sum[i], scales.values[i]);
        }
      }
    }
  }

  VQ_DEVICE static i64 output_of(int quad) { return Work::first_output() + quad % kQuads * 4; }
  VQ_DEVICE static Scales load_scales(const LinearArgs& args, int quad) {
    Scales scales{};
    VQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (kConfig.output_scales && output_of(quad) + i < Work::kOutFeatures) {
        scales.values[i] = load_global(args.output_scales + output_of(quad) + i);
      }
    }
    return scales;
  }
};

}  // namespace vq
