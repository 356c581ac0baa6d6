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
  VQ_DEVICE static void run(const AttentionDecodeArgs& args, int block) {
    if constexpr (kPart + 1 < key_parts(kConfig)) {
      if (block >= kBlocks) return BinTables<Plan, kPart + 1>::run(args, block - kBlocks);
    }
    const BinRows rows = BinRows::of_block<Plan, Format>(args, kTableRows);
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
  VQ_DEVICE static void stage(const AttentionDecodeArgs& args, const BinRows& rows, int channel) {
    constexpr int kOfRow = kTableThreads / kTableRows;  // threads
    const int r = thread_index() / kOfRow;
    const Row row = Row::at(args, rows.first + r);
    const bool real = r < rows.count && row.is_head();
    const u16* const query =
        args.query + (i64{row.batch} * kConfig.query_heads + row.query_head()) * kConfig.head_dim;
    u16 elements[kVectorSize / kOfRow];  // all on their way together
    VQ_UNROLL
    for (int i = 0; i < kVectorSize / kOfRow; ++i) {
      const int k = i * kOfRow + thread_index() % kOfRow;
      elements[i] = real ? load_global(query + channel_of<Format, Plan>(channel + k)) : u16{0};
    }
    VQ_UNROLL
    for (int i = 0; i < kVectorSize / kOfRow; ++i) {
      store_shared(shared_part<u16>(0) + r * kStride + i * kOfRow + thread_index() % kOfRow,
                   elements[i]);
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
    u16* const tables = BinsWorkspace<Plan>(args).tables(0) + column_table<Plan, kPart>(column);
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
      const int r = first + place_in_group() * 2;
      VQ_UNROLL
      for (int i = 0; i < 2 * kTiles; ++i) {
        const float(&pair)[4] = sums[i / 2];
        store(tables + (entry + lane_group() + i * 8) * kPadded, rows, r,
              within(pair[i % 2 * 2] * scale), within(pair[i % 2 * 2 + 1] * scale));
      }
    }
  }

  // The scores of two rows that follow each other, `to` being the entry's place of the first pair.
  VQ_DEVICE static void store(u16* to, const BinRows& rows, int r, float first, float second) {
    const auto place = [&](int i) {
      const int row = rows.first + r + i;
      return to + row / kPadded * BinsWorkspace<Plan>::kPairTables + row % kPadded;
    };
    if constexpr (kPadded > 1) {
      if (r < rows.count) {
        store_global(reinterpret_cast<u32*>(place(0)), pack2<Element::f16>(first, second));
      }
    } else {
      if (r < rows.count) store_global(place(0), from_float<Element::f16>(first));
      if (r + 1 < rows.count) store_global(place(1), from_float<Element::f16>(second));
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
  BinTables<Plan, 0>::run(args, block_x());
}

}  // namespace vq
