// The tables of attention by bins: inner products of queries with all entries of a key column, as
// integers (score_bits()). 16 entries are the rows of a tensor-core product, 8 rows of queries its
// columns. The channels of a product come in an order of their own, in which a lane's are side by
// side.
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
    const float scale = score_scale(args) * (1 << score_bits(kConfig));
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
      store(args, to, sums, scale, rows.count - first - place_in_group() * 2);
      to += 8 / kPadded * BinsWorkspace<Plan>::kPairTables;
    }
  }

  // The scores of two rows that follow each other, of `left` that the block has. The last bits of a
  // float from 2^23 to 2^24 are an integer.
  VQ_DEVICE static void store(const AttentionDecodeArgs& args, u16* to,
                              const float (&sums)[kTiles][4], float scale, int left) {
    constexpr u32 kWhole = 0x4b000000u;  // 2^23
    constexpr float kFirst = 8388608.0f + kScoreBias;
    u32 words[2 * kTiles];
    u32 least = ~0u;
    VQ_UNROLL
    for (int i = 0; i < 2 * kTiles; ++i) {
      const u32 low = float_bits(fused(sums[i / 2][i % 2 * 2], scale, kFirst));
      const u32 high = float_bits(fused(sums[i / 2][i % 2 * 2 + 1], scale, kFirst));
      words[i] = byte_permute(low, high, 0x5410u);
      bool fits = ((low ^ kWhole) | (high ^ kWhole)) <= 0xffffu;
      // Heads without a neighbour say it each.
      if constexpr (kPadded == 1) fits = fits && low != kWhole && high != kWhole;
      if (!fits) words[i] = 0;
      least = least < words[i] ? least : words[i];
    }
    if (least == 0) store_large(args, to, words, sums, scale, left);
    VQ_UNROLL
    for (int i = 0; i < 2 * kTiles; ++i) store_two(to + i * 8 * kPadded, words[i], left);
  }
  VQ_DEVICE static void store_two(u16* to, u32 word, int left) {
    if constexpr (kPadded > 1) {
      if (left > 0) store_global(reinterpret_cast<u32*>(to), word);
    } else {
      if (left > 0) store_global(to, static_cast<u16>(word));
      if (left > 1) {
        store_global(to + BinsWorkspace<Plan>::kPairTables, static_cast<u16>(word >> 16));
      }
    }
  }

  // Those of which the table has 0.
  VQ_DEVICE static void store_large(const AttentionDecodeArgs& args, const u16* to,
                                    const u32 (&words)[2 * kTiles], const float (&sums)[kTiles][4],
                                    float scale, int left) {
    const auto score = [&](int i, int which) {
      constexpr float kMost = static_cast<float>(most_score(kConfig));
      const float value = sums[i / 2][i % 2 * 2 + which] * scale;
      const bool finite = value < infinity() && value > -infinity();
      return finite ? nearest_within(value, kMost) + kScoreBias : kNoScore;
    };
    i32* const large = BinsWorkspace<Plan>(args).large(to);
    VQ_UNROLL
    for (int i = 0; i < 2 * kTiles; ++i) {
      if (words[i] != 0) continue;
      i32* const place = large + i * 8 * kPadded;
      if (left > 0) store_global(place, score(i, 0));
      if (left > 1) {
        store_global(place + (kPadded > 1 ? i64{1} : BinsWorkspace<Plan>::kPairTables),
                     score(i, 1));
      }
    }
  }
};

template <class Plan>
VQ_DEVICE void attention_bins_tables(const AttentionDecodeArgs& args) {
  constexpr BinSizes kSizes = bin_sizes(Plan::config());
  const int row_blocks = static_cast<int>(kSizes.table_row_blocks(args.batch));
  BinTables<Plan, 0>::run(args, block_x() / row_blocks, block_x() % row_blocks);
}

}  // namespace vq
