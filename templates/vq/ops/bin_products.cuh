// The products of attention by bins: bins times the entries of a value column, by tensor cores. 16
// rows of bins are the rows of a product, 8 channels its columns, 16 entries what is summed over,
// in an order of their own in which a lane's bins are side by side. Entries come with channels side
// by side, so each 8 x 8 of them is transposed.
#pragma once

#include <vq/lanes/fragment_lanes.cuh>
#include <vq/ops/bin_columns.cuh>

namespace vq {

template <class Plan>
class BinProducts {
 public:
  using Format = BinValues<Plan>;
  using Row = BinRow<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = Format::config();
  static constexpr int kVectorSize = kFormat.vector_size;
  static constexpr int kAllEntries = entries(kFormat);
  static constexpr int kEntries = kAllEntries / kConfig.entry_splits;
  static constexpr int kPartials = partial_count(kConfig);
  static constexpr int kOwnPartials = product_partials(kConfig);
  static constexpr int kWarps = kProductThreads / 32;
  // A lane loads four channels of an entry, which are two of each of a pair of tiles.
  static constexpr int kPairs = kVectorSize / 16;
  static constexpr int kPairsOfWarp = ceil_div(kPairs, kWarps);
  static constexpr int kRowTiles = kConfig.rows_per_block / 16;
  // Products whose operands are loaded together.
  static constexpr int kSteps = kEntries % 32 == 0 ? 2 : 1;

  VQ_DEVICE explicit BinProducts(const AttentionDecodeArgs& args)
      : args_(args),
        workspace_(args),
        rows_(BinRows::of_block<Plan, Format>(args, kConfig.rows_per_block)),
        column_(block_x() / kConfig.entry_splits),
        split_(block_x() % kConfig.entry_splits) {}

  VQ_DEVICE void run() {
    if (rows_.count <= 0) return;
    const int first = split_ * kEntries;
    const u16* const entries_of =
        column_entries<Format>(args_.values, Row::at(args_, rows_.first).kv_head, column_);
    const u16* const bins = workspace_.bins(0, column_, rows_.first) + place_in_group() * 4;
    const i64 to_next = workspace_.split_bins();
    for (int entry = first; entry < first + kEntries; entry += kSteps * 16) {
      u32 b[kSteps][2 * kPairsOfWarp][2];
      VQ_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        VQ_UNROLL
        for (int j = 0; j < kPairsOfWarp; ++j) {
          load_entries(b[step][2 * j], b[step][2 * j + 1], entries_of, entry + step * 16, pair(j));
        }
      }
      for (int split = 0; split < kConfig.splits; ++split) {
        u32 a[kSteps][kRowTiles][4];
        VQ_UNROLL
        for (int step = 0; step < kSteps; ++step) {
          VQ_UNROLL
          for (int m = 0; m < kRowTiles; ++m) {
            load_bins(a[step][m], bins + split * to_next + entry + step * 16, m);
          }
        }
        VQ_UNROLL
        for (int step = 0; step < kSteps; ++step) {
          VQ_UNROLL
          for (int m = 0; m < kRowTiles; ++m) {
            VQ_UNROLL
            for (int j = 0; j < 2 * kPairsOfWarp; ++j) {
              mma_m16n8k16<kConfig.element>(sums_[m][j], a[step][m], b[step][j]);
            }
          }
        }
      }
    }
    write();
  }

 private:
  VQ_DEVICE static int pair(int j) { return warp() * kPairsOfWarp + j; }

  // Of a lane (g, c) entries 4 c .. 4 c + 3, and of either tile the channel that is number
  // 4 (g / 2) + g % 2 of the pair's, in the second tile 2 more.
  VQ_DEVICE static void load_entries(u32 (&first)[2], u32 (&second)[2], const u16* from, int entry,
                                     int pair) {
    if (kPairs % kWarps != 0 && pair >= kPairs) pair = kPairs - 1;
    VQ_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int of = entry + lane_group() / 2 * 4 + lane_group() % 2 + half * 2;
      const auto four = load_global(reinterpret_cast<const U32x2*>(
          from + i64{of} * kVectorSize + pair * 16 + place_in_group() * 4));
      first[half] = movmatrix_trans(four.x);
      second[half] = movmatrix_trans(four.y);
    }
  }

  VQ_DEVICE void load_bins(u32 (&a)[4], const u16* bins, int m) const {
    VQ_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int r = m * 16 + half * 8 + lane_group();
      U32x2 four{0, 0};
      if (r < rows_.count) {
        four = load_global(reinterpret_cast<const U32x2*>(bins + i64{r} * kAllEntries));
      }
      a[half] = four.x;
      a[half + 2] = four.y;
    }
  }

  // A partial whose probabilities are shares of all, so that its maximum is the logarithm of the
  // sum over all tokens; the partials of a head have equal parts of it.
  VQ_DEVICE void write() const {
    const int stage = column_ % kFormat.residuals;
    const int channel = column_ / kFormat.residuals * kVectorSize;
    VQ_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      VQ_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int r = m * 16 + half * 8 + lane_group();
        if (r >= rows_.count) continue;
        const Row row = Row::at(args_, rows_.first + r);
        if (!row.is_head()) continue;
        float* const to = AttentionSplits<Plan>::partial(
            args_, 0, row.query_head(),
            row.batch * kPartials + stage * kConfig.entry_splits + split_);
        VQ_UNROLL
        for (int j = 0; j < 2 * kPairsOfWarp; ++j) {
          if (kPairs % kWarps != 0 && pair(j / 2) >= kPairs) continue;
          VQ_UNROLL
          for (int i = 0; i < 2; ++i) {
            store_global(to + channel + pair(j / 2) * 16 + place_in_group() * 4 + j % 2 * 2 + i,
                         sums_[m][j][half * 2 + i] * (1.0f / kBinScale));
          }
        }
        if (channel > 0 || warp() > 0 || place_in_group() > 0) continue;
        const float total = load_global(workspace_.total(rows_.first + r));
        store_global(to + kConfig.head_dim, total);
        store_global(to + kConfig.head_dim + 1, total == -infinity() ? 0.0f : 1.0f / kOwnPartials);
      }
    }
  }

  const AttentionDecodeArgs& args_;
  const BinsWorkspace<Plan> workspace_;
  BinRows rows_;
  int column_, split_;
  float sums_[kRowTiles][2 * kPairsOfWarp][4] = {};
};

template <class Plan>
VQ_DEVICE void attention_bins_products(const AttentionDecodeArgs& args) {
  BinProducts<Plan>(args).run();
}

}  // namespace vq
