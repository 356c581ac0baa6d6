// The search of append_mma: the same nearest entries as those of AppendStage, bit for bit.
//
// With y = x / scale, tensor cores estimate q(c) = |c|^2 / 2 - y c of a warp's sub-vectors, an item
// (plan.h), to all entries c: y in parts of 16 bits against c as it is stored, upon |c|^2 / 2 in
// fp32. A set of entries is what one lane has of a group of tiles: two columns of each. Of its sets
// a lane keeps the least q of the best, whose number stands in the last bits, and the least of all
// others; then the four lanes of a row do. Where no other set is within the margin, the nearest
// entry is in the best one, which is compared in fp32 by the rule of all (Nearest). Else, rarely,
// and where numbers are too large or none, the warp compares all entries.
//
// The margin. Let n = |y|, r the distance of y to the entry of the least q, U = n^2 + r^2, a the
// nearest entry by the fp32 rule. a is about as near as that one, so both have |c| <= n + r, hence
// |c|^2 / 2 <= U, n |c| <= 1.21 U, and S, the sum of magnitudes in q, is <= 2.21 U; |q| <= U / 2.
// By how much q may be off, for each of the two:
//
//   tensor cores     products are exact; 17 numbers are summed in some order, each cut off at
//                    2^-23 of the largest, and sums as well: 32 x 2^-23 S <= 2.21 x 2^-18 U
//   two parts of y   f16: 2^-22 n |c| + 2^-25 sum |c_i|; bf16: 2^-18 n |c| <= 1.21 x 2^-18 U
//   bits of the set  2^(bits - 23) |q| <= 2^(bits - 24) U
//   |c|^2 / 2        10 x 2^-24 U; y: 2^-23 n |c|
//   the fp32 rule    distances: (d + 2) 2^-24 r^2, entries times scale: 2^-23 r |c|; halved in q
//
// Twice the sum is kMargin U, with 2^-25 sum |c_i| <= 2^-22.5 sqrt(U) taken as (2^-18 U + 2^-27)
// / 2.
#pragma once

#include <vq/kernels/append_mma/plan.h>
#include <vq/ops/append_stage.cuh>
#include <vq/ops/append_unit_rows.cuh>

namespace vq {

template <class Share>
class AppendEstimates {
 public:
  VQ_DEVICE AppendEstimates(const Share& share, int stage)
      : share_(share), stage_(stage), units_(share, stage) {}

  // Computes |c|^2 / 2 of the entries of the share's units, which no previous launch changes.
  VQ_DEVICE void prepare() const {
    for (int i = thread_index(); i < units_.units() * kEntries; i += Share::kThreads) {
      float entry[kSize];
      const auto* const stored = share_.entry_at(units_.book(i / kEntries), i % kEntries);
      read_entry<kElement>(entry, load_constant(stored), 1.0f);
      float sum = 0.0f;
      VQ_UNROLL
      for (int d = 0; d < kSize; ++d) sum += entry[d] * entry[d];
      store_shared(Share::norms() + i, 0.5f * sum);
    }
  }

  // A warp the sub-vectors of an item at a time.
  VQ_DEVICE void search() const {
    for (int item = warp(); item < units_.units() * kUnitItems; item += Share::kThreads / 32) {
      const Run rows = units_.run_of(item / kUnitItems, item % kUnitItems * kItemRows);
      if (rows.first < share_.work.count * Units::kUnitVectors) search(rows);
    }
  }

  VQ_DEVICE void settle() const { AppendStage<Share>(share_, stage_).settle(); }

 private:
  using Units = AppendUnitRows<Share>;
  using Run = typename Units::Run;
  using Row = typename Units::Row;
  static constexpr FormatConfig kFormat = Share::kFormat;
  static constexpr Element kElement = Share::kConfig.element;
  static constexpr int kSize = Share::kVectorSize;
  static constexpr int kPairs = kSize / 2;  // words of an entry
  static constexpr int kEntries = Share::kEntries;
  static constexpr int kUnitItems = unit_items(Share::kConfig, kFormat);
  static constexpr int kParts = kSize == 8 ? 2 : 3;  // parts of each number of y
  static constexpr int kGroup = group_tiles(kFormat);
  static constexpr int kGroups = kEntries / kAppendTile / kGroup;
  static constexpr int kRowTiles = Share::kConfig.row_tiles;
  static constexpr int kItemRows = item_rows(Share::kConfig);
  static constexpr int kSlots = 2 * kRowTiles;  // rows per lane: 2 of each tile
  static constexpr int kOwn = kSlots / 4;       // that it has alone in the end
  static constexpr u32 kSetMask = 4 * kGroups - 1;
  static_assert(kRowTiles % 2 == 0, "the four lanes of a row share its slots in the end");

  // See above, 2^-18 U each, and 5 % for the rounding of U and r.
  static constexpr float kMargin =
      1.05f / 262144 *
      (4.42f + (kElement == Element::bf16 && kSize == 8 ? 2.42f : 0.2f) + 2.0f + 1.0f +
       static_cast<float>(kSetMask + 1) / 32);
  static constexpr float kLeastMargin = 0x1p-27f;
  static constexpr float kMostSquares = 0x1p30f;  // largest |y|^2 whose parts fit f16
  static constexpr float kMostMargin = 0x1p60f;   // far from where fp32 ends
  static constexpr float kMostScale = 0x1p40f;    // bound of the scale and of its inverse

  // The estimates of a row: the least, and the least of all other sets.
  struct Least {
    float best, other;
  };

  VQ_DEVICE Row row_of(const Run& rows, int number) const {
    return Units::row_of(share_, rows, number);
  }
  // The row that half `half` of lane group `group` holds in tile `tile`.
  VQ_DEVICE static int number_of(int tile, int half, int group) {
    return 16 * tile + 8 * half + group;
  }

  VQ_DEVICE void search(const Run& rows) const {
    const i64 number = units_.book(rows.unit);  // ptxas makes a larger loop from rows.book
    const float scale = share_.scale_of(number);
    const float inverted = inverse_within(scale, kMostScale);
    u32 a[kRowTiles][4];
    VQ_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) fragment(a[tile], rows, tile, inverted);
    Least least[kSlots];
    estimate(a, number, rows.unit, least);
    merge(least);
    bool open[kOwn];
    VQ_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const Row row = row_of(rows, own_number(i, lane()));
      const bool sure = compare(row, number, scale, inverted, least[i]);
      open[i] = row.real && !sure;
    }
    VQ_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      if (any_of_warp(open[i])) compare_all(rows, i, open[i], number, scale);
    }
  }
  // Row i that lane `of` has alone, see merge().
  VQ_DEVICE static int own_number(int i, int owner) {
    const int slot = owner % 4 * kOwn + i;
    return number_of(slot / 2, slot % 2, owner / 4);
  }

  // Loads parts of -y for a tile of rows. Pair p of the 8 pairs along k is pair p % kPairs of part
  // p / kPairs; a lane has pairs lane() % 4 and lane() % 4 + 4.
  VQ_DEVICE void fragment(u32 (&a)[4], const Run& rows, int tile, float inverted) const {
    const int mine = lane() % 4;
    VQ_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Row row = row_of(rows, number_of(tile, half, lane() / 4));
      const float* const numbers = Share::row(row.token) + row.vector * kSize + 2 * (mine % kPairs);
      const U32x2 pair = load_shared(reinterpret_cast<const U32x2*>(numbers));
      float low = -float_from_bits(pair.x) * inverted;
      float high = -float_from_bits(pair.y) * inverted;
      u32 part[kParts];
      VQ_UNROLL
      for (int i = 0; i < kParts; ++i) {
        part[i] = pack2<kElement>(low, high);
        low -= to_float<kElement>(static_cast<u16>(part[i] & 0xffffu));
        high -= to_float<kElement>(static_cast<u16>(part[i] >> 16));
      }
      VQ_UNROLL
      for (int slot = 0; slot < 2; ++slot) {
        const int wanted = (mine + 4 * slot) / kPairs;
        u32 word = 0;
        VQ_UNROLL
        for (int i = 0; i < kParts; ++i) word = wanted == i ? part[i] : word;
        a[2 * slot + half] = word;
      }
    }
  }

  // Slot 2 tile + half is row number_of(tile, half, ..), of the lane's columns.
  VQ_DEVICE void estimate(const u32 (&a)[kRowTiles][4], i64 book, int unit,
                          Least (&least)[kSlots]) const {
    const int mine = lane() % 4;
    const u32* const words = reinterpret_cast<const u32*>(share_.to.codebooks) +
                             book * kEntries * kPairs + lane() / 4 * kPairs + mine % kPairs;
    const float* const norms = Share::norms() + unit * kEntries + 2 * mine;
    VQ_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) least[slot] = {infinity(), infinity()};
    u32 next[kGroup];
    load_tiles(next, words, 0);
    for (int group = 0; group < kGroups; ++group) {
      u32 entries[kGroup];
      U32x2 halves[kGroup];
      VQ_UNROLL
      for (int tile = 0; tile < kGroup; ++tile) {
        entries[tile] = next[tile];
        halves[tile] = load_shared(
            reinterpret_cast<const U32x2*>(norms + (group * kGroup + tile) * kAppendTile));
      }
      load_tiles(next, words, group + 1 < kGroups ? group + 1 : group);
      loads_first();
      float lowest[kSlots];
      VQ_UNROLL
      for (int tile = 0; tile < kGroup; ++tile) {
        const float left = float_from_bits(halves[tile].x);
        const float right = float_from_bits(halves[tile].y);
        const u32 b[2] = {entries[tile], entries[tile]};
        VQ_UNROLL
        for (int i = 0; i < kRowTiles; ++i) {
          float q[4] = {left, right, left, right};
          mma_m16n8k16<kElement>(q, a[i], b);
          VQ_UNROLL
          for (int half = 0; half < 2; ++half) {
            float& low = lowest[2 * i + half];
            low = tile == 0 ? q[2 * half] : smaller(low, q[2 * half]);
            low = smaller(low, q[2 * half + 1]);
          }
        }
      }
      const u32 set = static_cast<u32>(4 * group + mine);
      VQ_UNROLL
      for (int slot = 0; slot < kSlots; ++slot) {
        const float marked = float_from_bits((float_bits(lowest[slot]) & ~kSetMask) | set);
        Least& of_row = least[slot];
        of_row.other = smaller(of_row.other, larger(of_row.best, marked));
        of_row.best = smaller(of_row.best, marked);
      }
    }
  }
  VQ_DEVICE static void load_tiles(u32 (&to)[kGroup], const u32* words, int group) {
    VQ_UNROLL
    for (int tile = 0; tile < kGroup; ++tile) {
      to[tile] = load_global(words + (group * kGroup + tile) * kAppendTile * kPairs);
    }
  }

  // Merges the estimates of all lanes of a row in its owner: lane l of four owns slots kOwn l + i.
  VQ_DEVICE static void merge(Least (&least)[kSlots]) {
    VQ_UNROLL
    for (int mask = 2; mask > 0; mask /= 2) {
      const bool upper = (lane() & mask) != 0;
      const int kept = kOwn * mask;
      VQ_UNROLL
      for (int slot = 0; slot < kept; ++slot) {
        const Least gives = upper ? least[slot] : least[slot + kept];
        const Least keeps = upper ? least[slot + kept] : least[slot];
        const float best = shuffle_xor(gives.best, mask);
        const float other = shuffle_xor(gives.other, mask);
        least[slot].other = smaller(smaller(keeps.other, other), larger(keeps.best, best));
        least[slot].best = smaller(keeps.best, best);
      }
    }
  }

  // The best set, each lane a row of its own; whether no other has the nearest entry.
  VQ_DEVICE bool compare(const Row& row, i64 book, float scale, float inverted,
                         const Least& least) const {
    float x[kSize];
    Share::load_vector(x, row.token, row.vector, scale);
    float squares = 0.0f;
    VQ_UNROLL
    for (int d = 0; d < kSize; ++d) squares += (x[d] * inverted) * (x[d] * inverted);
    const float away = squares + 2.0f * least.best;
    const float margin = kMargin * (squares + larger(away, 0.0f)) + kLeastMargin;
    const bool sure =
        squares <= kMostSquares && margin <= kMostMargin && least.other > least.best + margin;
    const int set = static_cast<int>(float_bits(least.best) & kSetMask);
    const int first = set / 4 * kGroup * kAppendTile + set % 4 * 2;
    typename Share::Words words[2 * kGroup];
    VQ_UNROLL
    for (int i = 0; i < 2 * kGroup; ++i) {
      words[i] = share_.entry(book, first + i / 2 * kAppendTile + i % 2);
    }
    float distance = infinity();
    int nearest = 0;
    VQ_UNROLL
    for (int i = 0; i < 2 * kGroup; ++i) {
      float entry[kSize];
      read_entry<kElement>(entry, words[i], scale);
      const float candidate = Share::Candidates::distance(x, entry, 0);
      if (candidate < distance) {
        distance = candidate;
        nearest = first + i / 2 * kAppendTile + i % 2;
      }
    }
    if (row.real && sure) keep(row, static_cast<u32>(nearest));
    return sure;
  }

  // Compares all entries, one by one, with the lanes' rows i that are open.
  VQ_DEVICE void compare_all(const Run& rows, int i, bool open, i64 book, float scale) const {
    for (int owner = 0; owner < 32; ++owner) {
      if (shuffle(open ? 1u : 0u, owner) == 0) continue;
      const Row row = row_of(rows, own_number(i, owner));
      const AppendStage<Share> stage(share_, stage_);
      float x[1][kSize], least[1];
      u32 nearest[1];
      Share::load_vector(x[0], row.token, row.vector, scale);
      stage.scan(x, book, Share::Candidates::entry_scale(scale), 0, least, nearest);
      stage.meet(least[0], nearest[0]);
      if (lane() == 0) keep(row, nearest[0]);
    }
  }

  VQ_DEVICE void keep(const Row& row, u32 nearest) const {
    const int place = row.token * Share::kVectors + row.vector - share_.begin;
    store_shared(Share::nearest() + place, nearest);
  }

  const Share& share_;
  int stage_;
  Units units_;
};

}  // namespace vq
