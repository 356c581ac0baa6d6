// Codebooks of keys and values with 256 int8 entries of 2 to 16 elements, for int8_mma attention:
// columns of 128 bytes per entry, so that no lookup has a bank conflict.
//
//   4 elements   one copy per lane, a word each
//   8 elements   one copy for lanes l and l + 16, which a load of two words serves one after the
//                other
//   16 elements  one copy for lanes l, l + 8, l + 16 and l + 24, as above by loads of four words
//   2 elements   one copy per lane, a word each: a key's entry below, a value's above
//
// If lanes share a code, each loads its piece of an entry, and they share a copy: lanes that a load
// serves together have all pieces of different copies, which are all banks.
//
//   table of columns 2n, 2n + 1   row e of 256 bytes: entry e of one, entry e of the other
//   table of pairs                row e of 128 bytes
//
// In a row of 256 bytes a code is byte 1 of its entry's offset and the lane's copy is byte 0: one
// byte permute makes an address from a code at any position in a word.
#pragma once

#include <vq/args/quantized.h>
#include <vq/kernels/attention_int8_mma/plan.h>
#include <vq/codebook/decoding.cuh>
#include <vq/lanes/fragment_lanes.cuh>
#include <vq/loads.cuh>
#include <vq/numbers.cuh>

namespace vq {

template <class Plan>
class EntryColumns {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr AttentionInt8MmaShared kAt = bytes_layout(kConfig);
  static constexpr int kEntries = AttentionInt8Mma::kEntries;
  static constexpr int kColumnBytes = AttentionInt8Mma::kCopies * 4;
  static constexpr int kRowBytes = 2 * kColumnBytes;
  static constexpr LaneRow kKeys = lane_row(kConfig, false);
  static constexpr LaneRow kValues = lane_row(kConfig, true);
  static constexpr int kWide = wide_columns(kConfig);
  static constexpr int kAll = kWide + pair_columns(kConfig);
  static_assert(kRowBytes == 256, "a code is byte 1 of an offset");

  // Loads the codebooks of a KV head with the first kThreads threads; a sync_block must follow. A
  // thread's entries are all in flight before it stores the first.
  template <int kThreads>
  VQ_DEVICE static void load(const QuantizedArgs& keys, const QuantizedArgs& values, int kv_head) {
    Stored stored[kAll][ceil_div(kEntries, kThreads)] = {};
    for_each_entry<kThreads>([&](auto column, int n, int entry) {
      Stored& to = stored[column][n];
      if constexpr (column >= kWide) {
        to.x = pair_of<false, part_of_column(kKeys, column - kWide, true)>(keys, kv_head, entry);
        to.y = pair_of<true, part_of_column(kValues, column - kWide, true)>(values, kv_head, entry);
      } else {
        to = wide_entry<column>(column < kKeyColumns ? keys : values, kv_head, entry);
      }
    });
    for_each_entry<kThreads>([&](auto column, int n, int entry) {
      const U32x4 bytes = bytes_of(stored[column][n]);
      if constexpr (column >= kWide) {
        store_copies(kAt.pairs + ((column - kWide) * kEntries + entry) * kColumnBytes,
                     {bytes.x, bytes.x, bytes.x, bytes.x});
      } else {
        constexpr int kSize = wide_part(column).size;
        const U32x4 copies = kSize == 16  ? bytes
                             : kSize == 8 ? U32x4{bytes.x, bytes.y, bytes.x, bytes.y}
                                          : U32x4{bytes.x, bytes.x, bytes.x, bytes.x};
        store_copies(kAt.entries + column / 2 * (kEntries * kRowBytes) + column % 2 * kColumnBytes +
                         entry * kRowBytes,
                     copies);
      }
    });
  }

  // This lane's piece of the entry of the code that is byte `byte` of the word, which a lane may
  // know at run time alone: a word for each four elements.
  template <bool kOfValues, int kPlace>
  VQ_DEVICE static auto look_up(u32 codes, u32 byte) {
    constexpr LanePart kPart = kOfValues ? kValues.parts[kPlace] : kKeys.parts[kPlace];
    if constexpr (kPart.size == 2) {
      const u32 code = byte_permute(codes, 0u, 0x4440u | byte);
      return load_shared_at<u32>(code * kColumnBytes +
                                 (lane_place<4, 1, kOfValues>() + place_of_pairs(kPart.column)));
    } else {
      constexpr int kSharers = kPart.sharers;
      const u32 offset =
          byte_permute(codes, lane_place<kPart.size, kSharers, kOfValues>(), 0x5504u | byte << 4);
      return load_shared_at<EntryWords<piece_of(kPart) / 2>>(offset +
                                                             place_of_column(kPart.column));
    }
  }

  // The entry of such a code of a mixed word: in the lower half of the lanes of 2 elements.
  VQ_DEVICE static u32 look_up_mixed(u32 codes, u32 byte) {
    constexpr LanePart kPairs = kValues.parts[kValues.pairs], kQuads = kValues.parts[kValues.quads];
    const bool upper = lane_group() >= kValueLanes / 2;
    const u32 code = byte_permute(codes, 0u, 0x4440u | byte);
    const u32 table = upper ? place_of_column(kQuads.column) : place_of_pairs(kPairs.column);
    return load_shared_at<u32>(code * (upper ? kRowBytes : kColumnBytes) +
                               (lane_place<4, 1, true>() + table));
  }

 private:
  VQ_DEVICE static u32 base() { return shared_place(shared_memory()); }
  // Where this lane's copy is in a column of entries of kBytes, or its piece of a copy: lanes that
  // share one are neighbours among the keys' of a row, (g, c) and (g + 1, c) among the values'.
  template <int kBytes, int kSharers, bool kOfValues>
  VQ_DEVICE static u32 lane_place() {
    constexpr int kApart = kOfValues ? kGroupLanes : 1;
    const int copy =
        kSharers == 1 ? lane() : lane() / (kApart * kSharers) * kApart + lane() % kApart;
    const int piece = lane() / kApart % kSharers;
    return static_cast<u32>(copy % (kColumnBytes / kBytes) * kBytes + piece * (kBytes / kSharers));
  }
  VQ_DEVICE static u32 place_of_column(int column) {
    return base() + static_cast<u32>(kAt.entries) +
           static_cast<u32>(column / 2 * (kEntries * kRowBytes) + column % 2 * kColumnBytes);
  }
  VQ_DEVICE static u32 place_of_pairs(int column) {
    return base() + static_cast<u32>(kAt.pairs) +
           static_cast<u32>(column * (kEntries * kColumnBytes));
  }

  // Calls each(column, n, entry) for this thread's n-th entry of each column. A column begins with
  // the thread behind the last one of the column before.
  template <int kThreads, class Each>
  VQ_DEVICE static void for_each_entry(Each each) {
    for_each_number<0, kAll>([&](auto column) {
      const int own = thread_index() - column * kEntries % kThreads;
      const int first = own < 0 ? own + kThreads : own;
      VQ_UNROLL
      for (int n = 0; n < ceil_div(kEntries, kThreads); ++n) {
        if (first + n * kThreads < kEntries) each(column, n, first + n * kThreads);
      }
    });
  }

  using Bytes = Decoding<Decoder::table, kConfig.element, true>;
  // A stored entry: 8 or 16 elements only where a part has them.
  VQ_HD static constexpr bool has(int size) {
    bool any = false;
    for (int i = 0; i < kMostLaneParts; ++i)
      any = any || kKeys.parts[i].size == size || kValues.parts[i].size == size;
    return any;
  }
  struct Sixteen : U32x4 {
    U32x4 upper;
  };
  using Stored = Either<has(16), Sixteen, Either<has(8), U32x4, U32x2>>;
  VQ_DEVICE static U32x4 bytes_of(const Sixteen& stored) {
    const U32x2 lower = Bytes::held(U32x4{stored.x, stored.y, stored.z, stored.w});
    const U32x2 upper = Bytes::held(stored.upper);
    return {lower.x, lower.y, upper.x, upper.y};
  }
  VQ_DEVICE static U32x4 bytes_of(U32x4 stored) {
    const U32x2 bytes = Bytes::held(stored);
    return {bytes.x, bytes.y, 0, 0};
  }
  VQ_DEVICE static U32x4 bytes_of(U32x2 stored) { return {Bytes::held(stored), 0, 0, 0}; }
  static constexpr int kKeyColumns = columns_of(kConfig, false, key_formats(kConfig), false);

  // The part whose entries stand in a column, or none.
  VQ_HD static constexpr int part_of_column(const LaneRow& row, int column, bool pairs) {
    int part = -1;
    for (int i = 0; i < row.count; ++i) {
      if ((row.parts[i].size == 2) == pairs && row.parts[i].column == column) part = i;
    }
    return part;
  }

  // An entry of 4 or more elements in a column, as it is stored, in the first words.
  template <int kColumn>
  VQ_DEVICE static Stored wide_entry(const QuantizedArgs& tensor, int kv_head, int entry) {
    constexpr LanePart kPart = wide_part(kColumn);
    const u16* const from =
        entry_at<kPart.size>(tensor, kPart.per_head ? kv_head : 0, kPart.first_element, entry);
    Stored stored = {};
    if constexpr (kPart.size == 4) {
      const U32x2 words = begin_constant(reinterpret_cast<const U32x2*>(from));
      stored.x = words.x, stored.y = words.y;
    } else {
      const U32x4 words = begin_constant(reinterpret_cast<const U32x4*>(from));
      stored.x = words.x, stored.y = words.y, stored.z = words.z, stored.w = words.w;
    }
    if constexpr (kPart.size == 16) {
      stored.upper = begin_constant(reinterpret_cast<const U32x4*>(from) + 1);
    }
    return stored;
  }
  VQ_HD static constexpr LanePart wide_part(int column) {
    return column < kKeyColumns ? kKeys.parts[part_of_column(kKeys, column, false)]
                                : kValues.parts[part_of_column(kValues, column, false)];
  }
  // An entry of 2 elements of keys, or of values, in a column of pairs; zeros where it has none.
  template <bool kOfValues, int kPlace>
  VQ_DEVICE static u32 pair_of(const QuantizedArgs& tensor, int kv_head, int entry) {
    if constexpr (kPlace < 0) {
      return 0;
    } else {
      constexpr LanePart kPart = kOfValues ? kValues.parts[kPlace] : kKeys.parts[kPlace];
      return begin_constant(reinterpret_cast<const u32*>(
          entry_at<2>(tensor, kPart.per_head ? kv_head : 0, kPart.first_element, entry)));
    }
  }
  template <int kSize>
  VQ_DEVICE static const u16* entry_at(const QuantizedArgs& tensor, i64 unit, i64 first,
                                       int entry) {
    return tensor.codebooks + first + (unit * kEntries + entry) * kSize;
  }
  // Fills a column's 128 bytes with four words. Lanes begin in other banks.
  VQ_DEVICE static void store_copies(i64 place, const U32x4& copies) {
    constexpr int kStores = kColumnBytes / 16;
    VQ_UNROLL
    for (int j = 0; j < kStores; ++j) {
      store_shared(shared_part<U32x4>(place + (j + lane()) % kStores * 16), copies);
    }
  }
};

}  // namespace vq
