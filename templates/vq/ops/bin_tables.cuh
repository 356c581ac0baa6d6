// The tables of attention by bins: inner products of queries with all entries of a key column, in
// units of log2. 16 entries are the rows of a tensor-core product, 8 rows of queries its columns.
// The channels of a product come in an order of their own, in which a lane's are side by side.
#pragma once

#include <vq/lanes/fragment_lanes.cuh>
#include <vq/ops/bin_columns.cuh>

namespace vq {

template <class Plan, int kPart>
class BinTables {
 public:
  using Format = BinKeys<Plan, kPart>;
  using Row = BinRow<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = Format::config();
  static constexpr int kVectorSize = kFormat.vector_size;
  static constexpr int kSteps = kVectorSize / 16;
  static constexpr int kEntries = entries(kFormat);
  // Of 16 entries, which share the loads of the query.
  static constexpr int kTiles = kEntries < 32 ? 1 : 2;
  static constexpr int kOfColumn = entry_blocks(kFormat);
  static constexpr int kBlocks = columns_of(kFormat) * kOfColumn;
  static constexpr int kStride = staged_halves(kFormat);
  static constexpr int kPadded = Row::kPadded;

  // Block number `block` of those of this part and the next ones.
  VQ_DEVICE static void run(const AttentionDecodeArgs& args, int block, int row_block) {
    if constexpr (kPart + 1 < key_parts(kConfig)) {
      if (block >= kBlocks) {
        return BinTables<Plan, kPart + 1>::run(args, block - kBlocks, row_block);
      }
    }
    const BinRows rows = BinRows::of_block<Plan, Format>(args, row_block, kTableRows);
    if (rows.count <= 0) return;
    const int column = block / kOfColumn;
    stage(args, rows, column / kFormat.residuals * kVectorSize);
    sync_block();
    const int first = block % kOfColumn * kTableEntries;
    const int end = kEntries - first < kTableEntries ? kEntries : first + kTableEntries;
    constexpr int kOfWarp = kTiles * 16;
    for (int entry = first + warp() * kOfWarp; entry < end; entry += kTableThreads / 32 * kOfWarp) {
      multiply(args, rows, column, entry);
    }
  }

 private:
  // Rows of the query's channels from the format's `channel` on; zeros where there is no head.
  // Channels side by side, so that lanes read a line together.
  VQ_DEVICE static void stage(const AttentionDecodeArgs& args, const BinRows& rows, int channel) {
    constexpr int kTurns = kTableRows * kVectorSize / kTableThreads;
    constexpr int kTogether = 16;  // on their way
    static_assert(kTurns % kTogether == 0, "16 channels or a multiple");
    for (int first = 0; first < kTurns; first += kTogether) {
      u16 elements[kTogether];
      VQ_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        const int n = (first + i) * kTableThreads + thread_index();
        const int r = n / kVectorSize;
        const Row row = Row::at(args, rows.first + r);
        const u16* const query =
            args.query +
            (i64{row.batch} * kConfig.query_heads + row.query_head()) * kConfig.head_dim;
        const bool real = r < rows.count && row.is_head();
        elements[i] = real
                          ? load_global(query + channel_of<Format, Plan>(channel + n % kVectorSize))
                          : u16{0};
      }
      VQ_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        const int n = (first + i) * kTableThreads + thread_index();
        store_shared(shared_part<u16>(0) + n / kVectorSize * kStride + n % kVectorSize,
                     elements[i]);
      }
    }
  }

  VQ_DEVICE static void multiply(const AttentionDecodeArgs& args, const BinRows& rows, int column,
                                 int entry) {
    const u16* const from =
        column_entries<Format>(args.keys, Row::at(args, rows.first).kv_head, column) +
        i64{entry + lane_group()} * kVectorSize + place_in_group() * 4;
    u32 a[kTiles][kSteps][4];
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      VQ_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        VQ_UNROLL
        for (int half = 0; half < 2; ++half) {
          const auto four = load_global(reinterpret_cast<const U32x2*>(
              from + (tile * 2 + half) * 8 * kVectorSize + step * 16));
          a[tile][step][half] = four.x;
          a[tile][step][half + 2] = four.y;
        }
      }
    }
    const float scale = score_scale(args);
    // Those of the lane's first row. Eight rows on are those of whole pairs on.
    const int row = rows.first + place_in_group() * 2;
    u16* to = BinsWorkspace<Plan>(args).tables(0) + column_table<Plan, kPart>(column) +
              row / kPadded * BinsWorkspace<Plan>::kPairTables + row % kPadded +
              (entry + lane_group()) * kPadded;
    for (int first = 0; first < rows.count; first += 8) {
      float sums[kTiles][4] = {};
      VQ_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        const auto four = load_shared(
            reinterpret_cast<const U32x2*>(shared_part<u16>(0) + (first + lane_group()) * kStride +
                                           step * 16 + place_in_group() * 4));
        VQ_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          mma_m16n8k16<kConfig.element>(sums[tile], a[tile][step], {four.x, four.y});
        }
      }
      store(to, sums, scale, rows.count - first - place_in_group() * 2);
      to += 8 / kPadded * BinsWorkspace<Plan>::kPairTables;
    }
  }

  // The scores of two rows that follow each other, of `left` that the block has.
  VQ_DEVICE static void store(u16* to, const float (&sums)[kTiles][4], float scale, int left) {
    u32 words[2 * kTiles];
    u32 outside = 0;
    VQ_UNROLL
    for (int i = 0; i < 2 * kTiles; ++i) {
      words[i] =
          pack2<Element::f16>(sums[i / 2][i % 2 * 2] * scale, sums[i / 2][i % 2 * 2 + 1] * scale);
      // Of infinities and NaN a half's exponent carries into its sign.
      outside |= (words[i] & 0x7c007c00u) + 0x04000400u;
    }
    if ((outside & 0x80008000u) != 0) {
      VQ_UNROLL
      for (int i = 0; i < 2 * kTiles; ++i) {
        words[i] = pack2<Element::f16>(within(sums[i / 2][i % 2 * 2] * scale),
                                       within(sums[i / 2][i % 2 * 2 + 1] * scale));
      }
    }
    VQ_UNROLL
    for (int i = 0; i < 2 * kTiles; ++i) {
      u16* const place = to + i * 8 * kPadded;
      if constexpr (kPadded > 1) {
        if (left > 0) store_global(reinterpret_cast<u32*>(place), words[i]);
      } else {
        if (left > 0) store_global(place, static_cast<u16>(words[i]));
        if (left > 1) {
          store_global(place + BinsWorkspace<Plan>::kPairTables, static_cast<u16>(words[i] >> 16));
        }
      }
    }
  }

  // Within f16, so that infinities of either sign do not meet in a sum. A NaN stays one.
  VQ_DEVICE static float within(float score) {
    constexpr float kMost = 65504.0f;
    return score > kMost ? kMost : score < -kMost ? -kMost : score;
  }
};

template <class Plan>
VQ_DEVICE void attention_bins_tables(const AttentionDecodeArgs& args) {
  constexpr BinSizes kSizes = bin_sizes(Plan::config());
  const int row_blocks = static_cast<int>(kSizes.table_row_blocks(args.batch));
  BinTables<Plan, 0>::run(args, block_x() / row_blocks, block_x() % row_blocks);
}

}  // namespace vq
