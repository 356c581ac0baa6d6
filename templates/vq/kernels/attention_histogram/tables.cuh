// Tables of histogram attention: inner products of queries with all entries of a key column, as
// integers (score_bits()). An MMA tile is 16 query rows by 8 entries; a warp keeps 32 entries in
// registers and loops over rows in shared memory. Channels and rows are permuted so that a lane's
// channels are contiguous and its four rows by two entries are 16 bytes of a table of 4 heads.
#pragma once

#include <vq/kernels/attention_histogram/columns.cuh>
#include <vq/lanes/fragment_lanes.cuh>

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
  // Entries of a sub-vector's stages are contiguous, and so are their tables.
  static constexpr int kEntries = sub_vector_entries(kFormat);
  static constexpr int kTiles = kEntries % 32 == 0 ? 4 : 2;  // tiles of 8 entries per warp
  static constexpr int kOfSubVector = entry_blocks(kFormat);
  static constexpr int kBlocks = kFormat.part.channels / kVectorSize * kOfSubVector;
  static constexpr int kPadded = Row::kPadded;
  static constexpr int kRows = 32;  // rows per turn: two tiles

  // Runs block number `block`, counted over this part and the next ones.
  VQ_DEVICE static void run(const AttentionDecodeArgs& args, int block, int row_block) {
    if constexpr (kPart + 1 < key_formats(kConfig)) {
      if (block >= kBlocks) {
        return BinTables<Plan, kPart + 1>::run(args, block - kBlocks, row_block);
      }
    }
    const BinRows rows = BinRows::of_block<Plan, Format>(args, row_block, kTableRows);
    if (rows.count <= 0) return;
    const int sub_vector = block / kOfSubVector;
    stage(args, rows, sub_vector * kVectorSize);
    sync_block();
    const int first = block % kOfSubVector * kTableEntries;
    const int end = kEntries - first < kTableEntries ? kEntries : first + kTableEntries;
    constexpr int kOfWarp = kTiles * 8;
    for (int entry = first + warp() * kOfWarp; entry < end; entry += kTableThreads / 32 * kOfWarp) {
      multiply(args, rows, sub_vector * kFormat.num_codebooks, entry);
    }
  }

 private:
  // First operands of a turn: [step][tile][lane]. Rows 4 g + 2 m and 4 g + 2 m + 1 of a turn are
  // rows g and g + 8 of tile m: lane group g has four consecutive rows.
  VQ_DEVICE static U32x4* operands(int turn) {
    return shared_part<U32x4>(0) + turn * (kSteps * 2 * 32) + lane();
  }

  // True if channels of a head are contiguous by fours.
  VQ_HD static constexpr bool in_fours() {
    constexpr RowPart kOf = kFormat.part;
    if constexpr (kOf.in_parts) {
      constexpr ChannelTable kChannels = part_channels(kConfig.key_parts);
      for (int i = 0; i < kOf.channels; ++i) {
        const int four = kOf.first_channel + i / 4 * 4;
        if (kChannels.at[kOf.first_channel + i] != kChannels.at[four] + i % 4) return false;
      }
    }
    return true;
  }

  // Stages query channels from the format's `channel` on, zeros for missing heads. A warp stages a
  // turn's rows.
  VQ_DEVICE static void stage(const AttentionDecodeArgs& args, const BinRows& rows, int channel) {
    for (int turn = warp(); turn * kRows < rows.count; turn += kTableThreads / 32) {
      const u16* query[4];
      bool real[4];
      VQ_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int r = turn * kRows + lane_group() * 4 + i;
        const Row row = Row::at(args, rows.first + r);
        real[i] = r < rows.count && row.is_head();
        query[i] = args.query +
                   (i64{row.batch} * kConfig.query_heads + row.query_head()) * kConfig.head_dim;
      }
      VQ_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        u16 elements[4][4];
        VQ_UNROLL
        for (int c = 0; c < 4; ++c) {
          const int first_channel = channel + step * 16 + place_in_group() * 4;
          const int of_head = in_fours() ? channel_of<Format, Plan>(first_channel) + c
                                         : channel_of<Format, Plan>(first_channel + c);
          VQ_UNROLL
          for (int i = 0; i < 4; ++i) {
            elements[i][c] = real[i] ? load_global(query[i] + of_head) : u16{0};
          }
        }
        const auto two = [&](int i, int c) {
          return elements[i][c] | static_cast<u32>(elements[i][c + 1]) << 16;
        };
        VQ_UNROLL
        for (int tile = 0; tile < 2; ++tile) {
          const int i = tile * 2;
          store_shared(operands(turn) + (step * 2 + tile) * 32,
                       U32x4{two(i, 0), two(i + 1, 0), two(i, 2), two(i + 1, 2)});
        }
      }
    }
  }

  VQ_DEVICE static void multiply(const AttentionDecodeArgs& args, const BinRows& rows, int column,
                                 int entry) {
    const u16* const from =
        column_entries<Format>(args.keys, Row::at(args, rows.first).kv_head, column) +
        i64{entry + lane_group()} * kVectorSize + place_in_group() * 4;
    U32x2 entries[kTiles][kSteps];
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      VQ_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        entries[tile][step] =
            load_global(reinterpret_cast<const U32x2*>(from + tile * 8 * kVectorSize + step * 16));
      }
    }
    const float scale = score_scale(args) * (1 << score_bits(kConfig));
    // Tables of the lane's first row; a turn's rows are whole pairs.
    const int row = lane_group() * 4;
    u16* to = BinsWorkspace<Plan>(args).tables(rows.first / kPadded + row / kPadded) +
              column_table<Plan, kPart>(column) + row % kPadded +
              (entry + place_in_group() * 2) * kPadded;
    for (int turn = 0; turn * kRows < rows.count; ++turn) {
      const U32x4* const queries = operands(turn);
      float sums[kTiles][2][4] = {};
      VQ_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        VQ_UNROLL
        for (int m = 0; m < 2; ++m) {
          const U32x4 four = load_shared(queries + (step * 2 + m) * 32);
          const u32 a[4] = {four.x, four.y, four.z, four.w};
          VQ_UNROLL
          for (int tile = 0; tile < kTiles; ++tile) {
            const U32x2 b = entries[tile][step];
            mma_m16n8k16<kConfig.element>(sums[tile][m], a, {b.x, b.y});
          }
        }
      }
      store(args, to, sums, scale, rows.count - turn * kRows - row);
      to += kRows / kPadded * BinsWorkspace<Plan>::kPairTables;
    }
  }

  // A lane's numbers of an entry tile as four words of two neighbours in a table. With head pairs,
  // word 2 e + p has rows 2 p and 2 p + 1 of entry e; with one head, word i has row i of two
  // entries.
  VQ_DEVICE static float number(const float (&sums)[2][4], int word, int which) {
    return kPadded == 1 ? sums[word / 2][word % 2 * 2 + which]
                        : sums[word % 2][which * 2 + word / 2];
  }
  VQ_HD static constexpr int first_row(int word) { return kPadded == 1 ? word : word % 2 * 2; }
  VQ_HD static constexpr i64 place(int word) {
    const int row = first_row(word);
    const int entry = kPadded == 1 ? 0 : word / 2;
    return row / kPadded * BinsWorkspace<Plan>::kPairTables + row % kPadded + entry * kPadded;
  }

  // The last bits of a float from 2^23 to 2^24 are an integer. Numbers beyond lose no more than a
  // float does.
  static constexpr u32 kWhole = 0x4b000000u;  // 2^23
  VQ_DEVICE static u32 lower(u32 a, u32 b) { return a < b ? a : b; }
  VQ_DEVICE static u32 higher(u32 a, u32 b) { return a > b ? a : b; }

  // The scores of the lane's four rows, of `left` that the block has from the first of them on.
  VQ_DEVICE static void store(const AttentionDecodeArgs& args, u16* to, float (&sums)[kTiles][2][4],
                              float scale, int left) {
    u32 least = ~0u, most = 0;
    VQ_UNROLL
    for (int i = 0; i < kTiles * 8; ++i) {
      float& sum = sums[i / 8][i / 4 % 2][i % 4];
      sum = fused(sum, scale, 8388608.0f + kScoreBias);
      least = lower(least, float_bits(sum));
      most = higher(most, float_bits(sum));
    }
    // Neither number of a word is 0, which says that they do not fit.
    const bool fit = least > kWhole && most <= kWhole + 0xffff;
    u32 words[kTiles][4];
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      VQ_UNROLL
      for (int w = 0; w < 4; ++w) {
        words[tile][w] = byte_permute(float_bits(number(sums[tile], w, 0)),
                                      float_bits(number(sums[tile], w, 1)), 0x5410u);
      }
      if (!fit) store_large(args, to + tile * 8 * kPadded, words[tile], sums[tile], left);
      store_words(to + tile * 8 * kPadded, words[tile], left);
    }
  }
  VQ_DEVICE static void store_words(u16* to, const u32 (&words)[4], int left) {
    if constexpr (kPadded == 4) {
      if (left > 0) {
        store_global(reinterpret_cast<U32x4*>(to), U32x4{words[0], words[1], words[2], words[3]});
      }
    } else if constexpr (kPadded == 1) {
      VQ_UNROLL
      for (int w = 0; w < 4; ++w) {
        if (left > w) store_global(reinterpret_cast<u32*>(to + place(w)), words[w]);
      }
    } else {
      constexpr int kNext = kPadded == 8 ? 1 : 2;  // words of an entry, or of a pair
      VQ_UNROLL
      for (int w = 0; w < 2 * (3 - kNext); w += 3 - kNext) {
        if (left <= first_row(w)) continue;
        store_global(reinterpret_cast<U32x2*>(to + place(w)), U32x2{words[w], words[w + kNext]});
      }
    }
  }

  // Stores the numbers that overflow, whose table entry is 0.
  VQ_DEVICE static void store_large(const AttentionDecodeArgs& args, const u16* to, u32 (&words)[4],
                                    const float (&sums)[2][4], int left) {
    const auto fits = [](float sum) { return float_bits(sum) - (kWhole + 1) < 0xffffu; };
    const auto score = [](float sum) {
      constexpr float kMost = static_cast<float>(most_score(kConfig));
      const bool finite = sum < infinity() && sum > -infinity();
      return static_cast<u32>(finite ? nearest_within(sum - 8388608.0f, kMost) : kNoScore);
    };
    i32* const large = BinsWorkspace<Plan>(args).large(to);
    VQ_UNROLL
    for (int w = 0; w < 4; ++w) {
      const float low = number(sums, w, 0);
      const float high = number(sums, w, 1);
      if (fits(low) && fits(high)) continue;
      words[w] = 0;
      if (left <= first_row(w)) continue;
      store_global(reinterpret_cast<U32x2*>(large + place(w)), U32x2{score(low), score(high)});
    }
  }
};

template <class Plan>
VQ_DEVICE void attention_histogram_tables(const AttentionDecodeArgs& args) {
  constexpr BinSizes kSizes = bin_sizes(Plan::config());
  const int row_blocks = static_cast<int>(kSizes.table_row_blocks(args.batch));
  BinTables<Plan, 0>::run(args, block_x() / row_blocks, block_x() % row_blocks);
}

}  // namespace vq
