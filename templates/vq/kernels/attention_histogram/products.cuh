// GEMM of histogram attention: bins times the entries of a value column, by tensor cores, with 16
// rows of bins, 8 channels and 16 entries along k per MMA. Both pass through shared memory in tiles
// of some entries; entries are transposed as they are read, as their channels are contiguous. A
// block's warps share its rows and channels.
#pragma once

#include <vq/kernels/attention_histogram/columns.cuh>
#include <vq/lanes/fragment_lanes.cuh>

namespace vq {

// How warps share tiles of 16 rows and of 16 channels: `across` warps share the channels.
struct ProductWarps {
  int across, row_tiles, channel_tiles;  // tiles per warp, at most
};
VQ_HD constexpr ProductWarps share_products(int warps, int row_tiles, int channel_tiles) {
  ProductWarps best{};
  for (int across = 1; across <= warps; across *= 2) {
    const ProductWarps each{across, ceil_div(row_tiles, warps / across),
                            ceil_div(channel_tiles, across)};
    const int products = each.row_tiles * each.channel_tiles;
    const int least = best.row_tiles * best.channel_tiles;
    const bool fewer_loads =
        each.row_tiles + each.channel_tiles < best.row_tiles + best.channel_tiles;
    if (best.across == 0 || products < least || (products == least && fewer_loads)) best = each;
  }
  return best;
}

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
  static constexpr int kRows = kConfig.rows_per_block;
  static constexpr int kRowTiles = kRows / 16;
  static constexpr int kChannelTiles = kVectorSize / 16;
  static constexpr ProductWarps kShare =
      share_products(kProductThreads / 32, kRowTiles, kChannelTiles);
  static constexpr int kTile = product_tile(kConfig);  // entries
  static constexpr int kBinBytes = tile_bin_bytes(kConfig);
  static constexpr int kEntryBytes = tile_entry_bytes(kConfig);
  static constexpr BinProductsShared kAt = bin_products_shared(kConfig);
  static constexpr int kTurns = kEntries / kTile * kConfig.splits;

  VQ_DEVICE explicit BinProducts(const AttentionDecodeArgs& args, int row_block, int column,
                                 int split)
      : args_(args),
        workspace_(args),
        rows_(BinRows::of_block<Plan, Format>(args, row_block, kRows)),
        column_(column),
        split_(split) {
    if (rows_.count <= 0) return;
    entries_ = column_entries<Format>(args.values, Row::at(args, rows_.first).kv_head, column) +
               i64{split} * kEntries * kVectorSize;
    bins_ = workspace_.bins(0, column, rows_.first) + split * kEntries;
  }

  // A turn multiplies a tile of entries by the bins of one token split; the splits of a tile follow
  // each other, so that entries are copied once.
  VQ_DEVICE void run() {
    if (rows_.count <= 0) return;
    VQ_UNROLL
    for (int turn = 0; turn < kProductTiles - 1; ++turn) copy(turn);
    for (int turn = 0; turn < kTurns; ++turn) {
      copy_async_wait<kProductTiles - 2>();
      sync_block();  // the turn's tiles have arrived; the previous turn's are free
      copy(turn + kProductTiles - 1);
      multiply(turn % kProductTiles, turn / kConfig.splits % kProductTiles);
    }
    write();
  }

 private:
  // Channel tile number j of a warp, and row tile number m.
  VQ_DEVICE static int channel_tile(int j) {
    return warp() % kShare.across * kShare.channel_tiles + j;
  }
  VQ_DEVICE static int row_tile(int m) { return warp() / kShare.across * kShare.row_tiles + m; }
  VQ_DEVICE static bool has_channels(int j) {
    return kChannelTiles % kShare.across == 0 || channel_tile(j) < kChannelTiles;
  }
  VQ_DEVICE static bool has_rows(int m) {
    return kShare.row_tiles * (kProductThreads / 32 / kShare.across) == kRowTiles ||
           row_tile(m) < kRowTiles;
  }

  VQ_DEVICE static u8* bins_tile(int buffer) {
    return shared_part<u8>(kAt.bins) + buffer * kRows * kBinBytes;
  }
  VQ_DEVICE static u8* entries_tile(int buffer) {
    return shared_part<u8>(kAt.entries) + buffer * kTile * kEntryBytes;
  }

  // Starts the copies of a turn. Missing rows repeat the block's last row.
  VQ_DEVICE void copy(int turn) const {
    if (turn < kTurns) {
      const int tile = turn / kConfig.splits;
      const int token_split = turn % kConfig.splits;
      const u16* const bins = bins_ + token_split * workspace_.split_bins() + tile * kTile;
      copy_rows<kRows, kTile, kBinBytes>(bins_tile(turn % kProductTiles), [&](int r) -> const u16* {
        return bins + i64{r < rows_.count ? r : rows_.count - 1} * kAllEntries;
      });
      if (token_split == 0) {
        copy_rows<kTile, kVectorSize, kEntryBytes>(
            entries_tile(tile % kProductTiles),
            [&](int r) -> const u16* { return entries_ + (i64{tile} * kTile + r) * kVectorSize; });
      }
    }
    copy_async_commit();
  }
  template <int kCount, int kElements, int kBytes, class RowAt>
  VQ_DEVICE static void copy_rows(u8* to, RowAt row_at) {
    constexpr int kOctets = kElements / 8;
    for (int i = thread_index(); i < kCount * kOctets; i += kProductThreads) {
      const int r = i / kOctets;
      copy_async(reinterpret_cast<U32x4*>(to + r * kBytes) + i % kOctets,
                 reinterpret_cast<const U32x4*>(row_at(r)) + i % kOctets);
    }
  }

  VQ_DEVICE void multiply(int bins_buffer, int entries_buffer) {
    const u8* const bins = bins_tile(bins_buffer) +
                           (ldmatrix_number() % 2 * 8 + ldmatrix_row()) * kBinBytes +
                           ldmatrix_number() / 2 * 16;
    const u8* const entries = entries_tile(entries_buffer) +
                              (ldmatrix_number() % 2 * 8 + ldmatrix_row()) * kEntryBytes +
                              ldmatrix_number() / 2 * 16;
    VQ_UNROLL
    for (int step = 0; step < kTile / 16; ++step) {
      u32 a[kShare.row_tiles][4];
      VQ_UNROLL
      for (int m = 0; m < kShare.row_tiles; ++m) {
        if (!has_rows(m)) continue;
        ldmatrix_x4(a[m],
                    reinterpret_cast<const u32*>(bins + row_tile(m) * 16 * kBinBytes + step * 32));
      }
      VQ_UNROLL
      for (int j = 0; j < kShare.channel_tiles; ++j) {
        if (!has_channels(j)) continue;
        u32 b[4];
        ldmatrix_x4_trans(b, reinterpret_cast<const u32*>(entries + step * 16 * kEntryBytes +
                                                          channel_tile(j) * 32));
        VQ_UNROLL
        for (int m = 0; m < kShare.row_tiles; ++m) {
          if (!has_rows(m)) continue;
          mma_m16n8k16<kConfig.element>(sums_[m][2 * j], a[m], {b[0], b[1]});
          mma_m16n8k16<kConfig.element>(sums_[m][2 * j + 1], a[m], {b[2], b[3]});
        }
      }
    }
  }

  // A partial whose probabilities are shares of all, so that its maximum is the logarithm of the
  // sum over all tokens; the partials of a head have equal parts of it.
  VQ_DEVICE void write() const {
    const int stage = column_ % kFormat.num_codebooks;
    const int channel = column_ / kFormat.num_codebooks * kVectorSize;
    VQ_UNROLL
    for (int m = 0; m < kShare.row_tiles; ++m) {
      VQ_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int r = row_tile(m) * 16 + half * 8 + lane_group();
        if (!has_rows(m) || r >= rows_.count) continue;
        const Row row = Row::at(args_, rows_.first + r);
        if (!row.is_head()) continue;
        float* const to = AttentionSplits<Plan>::partial(
            args_, 0, row.query_head(),
            row.batch * kPartials + stage * kConfig.entry_splits + split_);
        VQ_UNROLL
        for (int j = 0; j < 2 * kShare.channel_tiles; ++j) {
          if (!has_channels(j / 2)) continue;
          VQ_UNROLL
          for (int i = 0; i < 2; ++i) {
            store_global(
                to + channel + channel_tile(j / 2) * 16 + j % 2 * 8 + place_in_group() * 2 + i,
                sums_[m][j][half * 2 + i] * (1.0f / kBinScale));
          }
        }
        if (channel > 0 || warp() % kShare.across > 0 || place_in_group() > 0) continue;
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
  const u16* entries_;
  const u16* bins_;
  float sums_[kShare.row_tiles][2 * kShare.channel_tiles][4] = {};
};

template <class Plan>
VQ_DEVICE void attention_histogram_products(const AttentionDecodeArgs& args) {
  constexpr BinSizes kSizes = bin_sizes(Plan::config());
  constexpr int kSplits = Plan::config().entry_splits;
  const int rows = static_cast<int>(kSizes.unit_rows(Plan::config().values.per_head, args.batch));
  const int row_blocks = ceil_div(rows, Plan::config().rows_per_block);
  const int share = block_x() / row_blocks;
  after_last_launch();
  BinProducts<Plan>(args, block_x() % row_blocks, share / kSplits, share % kSplits).run();
}

}  // namespace vq
