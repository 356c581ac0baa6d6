// x of a chunk as bytes in shared memory: operand b of the int8_mma GEMM.
//
// A row of a column group is scaled so that its largest magnitude is kPeak, and rounded to integers
// v = 256 high + low, each a signed byte: 15 bits and a sign. A warp converts a unit, a row of a
// group, at a time, in the block or in a pre-pass. Order: [step][row tile][lane]; lane (g, c) has
// the octet that it also looks up, as operand b of m16n8k32: its first four bytes at k = 4c.., the
// others at k = 16 + 4c.. .
//
//   8 rows per MMA   octet c of row g: high, high, low, low; the words of two MMAs
//   4                column g is row g / 2, its high bytes (g even) or its low ones
//   1                column g is zero but in the octet of lane g / 2, whose high bytes (g even) or
//                    low ones it has
//
// A row of a group with an infinite or NaN element has a scale of NaN.
#pragma once

#include <vq/args/linear.h>
#include <vq/kernels/linear_int8_mma/plan.h>
#include <vq/lanes/fragment_lanes.cuh>
#include <vq/ops/bulk_ring.cuh>
#include <vq/ops/linear_work.cuh>
#include <vq/ops/made_ring.cuh>
#include <vq/ops/split_bytes.cuh>

namespace vq {

// A chunk of x as bytes, of the rows that a block serves: its scales [group][row], then its bytes.
template <class Plan>
class ByteChunk {
 public:
  using Work = LinearWork<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr bool kPairs = kConfig.product_rows < 8;  // columns in pairs: the bytes of a row
  static constexpr int kWords = kPairs ? 2 : 4;             // per lane and row tile
  static constexpr u32 kUnits = chunk_units(kConfig);
  static constexpr int kTileBytes = 64 * kConfig.product_rows;

  // True if any of units first, first + kApart, .. of a chunk, kCount at a time and first below
  // kApart, lies past the last.
  template <int kApart, int kCount>
  VQ_HD static constexpr bool may_pass() {
    return kUnits % (kApart * kCount) != 0;
  }

  // The lane's elements of a unit.
  struct Elements {
    U32x4 octets[lane_octets(kConfig)];
  };

  // Unit `unit` of a chunk that begins at a column; zeros past the last, where kMayPass.
  // `first_row` is the block's.
  template <bool kMayPass>
  VQ_DEVICE static Elements load(const LinearArgs& args, int first_row, i64 first_column,
                                 u32 unit) {
    Elements elements{};
    const auto group = static_cast<int>(unit / kRows);
    const auto row = static_cast<int>(unit % kRows);
    VQ_UNROLL
    for (int i = 0; i < kOctets; ++i) {
      const int octet = lane() + 32 * i;
      if ((kMayPass && unit >= kUnits) || !is_octet(octet)) continue;
      const i64 column = first_column + group * kGroupColumns + octet * 8;
      if (column < Work::kInFeatures) {
        elements.octets[i] = Work::x_octet(args, first_row + row, column);
      }
    }
    return elements;
  }

  // Destination of a chunk; byte offsets count from its first.
  struct ToShared {
    u8* chunk;
    template <class T>
    VQ_DEVICE void operator()(int place, T words) const {
      store_shared(reinterpret_cast<T*>(chunk + place), words);
    }
  };
  struct ToGlobal {
    u8* chunk;
    template <class T>
    VQ_DEVICE void operator()(int place, T words) const {
      store_global(reinterpret_cast<T*>(chunk + place), words);
    }
  };

  // Turns units `first`, `first` + kApart, .. to bytes, those that there are, and stores them and
  // their scales. All lanes. All peaks first, so that units do not wait for each other's.
  template <int kApart, int kCount, class Store>
  VQ_DEVICE static void make(const Elements (&elements)[kCount], u32 first, Store store) {
    float peaks[kCount];
    VQ_UNROLL
    for (int i = 0; i < kCount; ++i) peaks[i] = peak_of(elements[i]);
    VQ_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const u32 unit = first + i * kApart;
      if (may_pass<kApart, kCount>() && unit >= kUnits) continue;
      if (lane() == 0) store(static_cast<int>(unit) * 4, SplitBytes::scale_of(peaks[i]));
      store_bytes(elements[i], unit, SplitBytes::factor_of(peaks[i]), store);
    }
  }

  VQ_DEVICE static int scale_place(int group, int row) {
    return (group * static_cast<int>(kRows) + row) * 4;
  }
  VQ_DEVICE static int tile_place(int step, int tile) {
    return chunk_scale_bytes(kConfig) + step * byte_step_bytes(kConfig) + tile * kTileBytes;
  }

 private:
  static constexpr u32 kRows = kConfig.rows_per_block;
  static constexpr int kOctets = lane_octets(kConfig);
  static constexpr int kGroupColumns = group_columns(kConfig);
  static constexpr u32 kRunOctets = run_octets(kConfig);

  VQ_DEVICE static float peak_of(const Elements& elements) {
    u32 most = 0;
    VQ_UNROLL
    for (int i = 0; i < kOctets; ++i) most = SplitBytes::peak_bits(most, elements.octets[i]);
    return SplitBytes::peak<kConfig.element>(SplitBytes::peak_of_warp(most));
  }
  template <class Store>
  VQ_DEVICE static void store_bytes(const Elements& elements, u32 unit, float factor, Store store) {
    VQ_UNROLL
    for (int i = 0; i < kOctets; ++i) {
      if (!is_octet(lane() + 32 * i)) continue;
      u32 high[2], low[2];
      SplitBytes::split<kConfig.element>(high, low, elements.octets[i], factor);
      const int place = unit_place(unit) + lane_place(i);
      if constexpr (kPairs) {
        store(place, U32x2{high[0], high[1]});
        store(place + 32, U32x2{low[0], low[1]});
      } else {
        store(place, U32x4{high[0], high[1], low[0], low[1]});
      }
    }
  }

  VQ_DEVICE static bool is_octet(int octet) {
    return kGroupColumns % 256 == 0 || octet < kGroupColumns / 8;
  }
  // Where a unit's bytes begin, and the lane's octet i within them.
  VQ_DEVICE static int unit_place(u32 unit) {
    constexpr int kGroupSteps = group_runs(kConfig) * run_steps(kConfig);
    constexpr u32 kProductRows = kConfig.product_rows;
    const u32 row = unit % kRows;
    return tile_place(static_cast<int>(unit / kRows) * kGroupSteps,
                      static_cast<int>(row / kProductRows)) +
           static_cast<int>(row % kProductRows) * 64;
  }
  VQ_DEVICE static int lane_place(int i) {
    const u32 octet = static_cast<u32>(lane() + 32 * i);
    const u32 step = octet / (4 * kRunOctets) * run_steps(kConfig) + octet % kRunOctets;
    return static_cast<int>(step * byte_step_bytes(kConfig) +
                            octet / kRunOctets % 4 * (kPairs ? 8 : 16));
  }
};

// The chunks of a block in shared memory.
template <class Plan>
class ByteX {
 public:
  using Work = LinearWork<Plan>;
  using Chunk = ByteChunk<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr bool kBefore = kConfig.prepack_x == 1;
  static constexpr int kMakers = kConfig.producer_warps;
  static constexpr bool kInRing = in_ring(kConfig);
  static constexpr int kReaders = multiplying_warps(kConfig);

  VQ_DEVICE ByteX(const LinearArgs& args, int first_row)
      : args_(args), first_row_(first_row), ring_(ring_of(args)) {}

  // Chunks arrive while others are multiplied: prepacked by a pre-pass, or from producer warps.
  using Copied = BulkRing<byte_chunks(kConfig), byte_chunk_bytes(kConfig), kReaders>;
  using Made = MadeRing<byte_chunks(kConfig), byte_chunk_bytes(kConfig), kMakers, kReaders>;
  using Ring = Either<(kMakers > 0), Made, Copied>;
  VQ_DEVICE Ring& ring() { return ring_; }

  // Without a pre-pass: all warps make the chunk that begins at a column, between two sync_block.
  VQ_DEVICE void make(i64 first_column) const {
    make_units<kConfig.threads / 32>(first_column, warp(), [] {});
  }
  // make() by the producer warps, which follow the consumer warps.
  VQ_DEVICE void make_in_turn(i64 first_column) {
    make_units<kMakers>(first_column, warp() - kReaders, [this] { ring_.await_free(); });
    ring_.hand_out();
  }

  // The lane's operand words of a row tile in a step of the chunk.
  VQ_DEVICE void load(u32 (&x)[Chunk::kWords], int step, int tile) const {
    const u8* const tile_bytes = ring_.chunk() + Chunk::tile_place(step, tile);
    const u8* const from = tile_bytes + lane() * (4 * Chunk::kWords);
    if constexpr (by_lane(kConfig)) {
      U32x2 words{};
      if (lane_group() / 2 == place_in_group()) {
        words = load_shared(reinterpret_cast<const U32x2*>(tile_bytes + lane_group() % 2 * 32 +
                                                           place_in_group() * 8));
      }
      x[0] = words.x, x[1] = words.y;
    } else if constexpr (Chunk::kPairs) {
      const U32x2 words = load_shared(reinterpret_cast<const U32x2*>(from));
      x[0] = words.x, x[1] = words.y;
    } else {
      const U32x4 words = load_shared(reinterpret_cast<const U32x4*>(from));
      x[0] = words.x, x[1] = words.y, x[2] = words.z, x[3] = words.w;
    }
  }

  // Factor from the integers of a row and group, 256 high + low, to numbers.
  VQ_DEVICE float scale(int group, int row) const {
    return load_shared(
        reinterpret_cast<const float*>(ring_.chunk() + Chunk::scale_place(group, row)));
  }

 private:
  static constexpr int kBytes = static_cast<int>(byte_chunk_bytes(kConfig));

  VQ_DEVICE static Ring ring_of(const LinearArgs& args) {
    constexpr LinearShared kAt = shared_layout(kConfig);
    constexpr i64 kBarriers = kAt.beside + mask_bytes(kConfig);
    if constexpr (kMakers > 0) {
      return Ring(kAt.x, kBarriers);
    } else {
      return Ring(
          shared_part<u8>(kAt.x), shared_part<u8>(kBarriers),
          kBefore ? args.staged + block_y() * made_row_bytes(kConfig) +
                        Work::begin() / kConfig.chunk_columns * kBytes
                  : nullptr,
          static_cast<int>(ceil_div(Work::end() - Work::begin(), i64{kConfig.chunk_columns})));
    }
  }

  VQ_DEVICE u8* place() const {
    if constexpr (kMakers > 0) {
      return ring_.chunk();
    } else {
      return shared_part<u8>(shared_layout(kConfig).x);
    }
  }

  // Units first, first + kWarps, .. of a chunk, some at a time, so that their loads are on their
  // way together; `ready` is called before they are stored, by warps without a unit too.
  template <int kWarps, class Ready>
  VQ_DEVICE void make_units(i64 first_column, u32 first, Ready ready) const {
    constexpr int kOctets = lane_octets(kConfig);
    constexpr int kTurns = ceil_div(static_cast<int>(Chunk::kUnits), kWarps);
    constexpr int kMost = kOctets < 8 ? 8 / kOctets : 1;
    constexpr int kTogether = kTurns < kMost ? kTurns : kMost;
    if (Chunk::kUnits < kWarps && first >= Chunk::kUnits) ready();
    for (u32 unit = first; unit < Chunk::kUnits; unit += kTogether * kWarps) {
      typename Chunk::Elements elements[kTogether];
      VQ_UNROLL
      for (int i = 0; i < kTogether; ++i) {
        elements[i] = Chunk::template load<Chunk::template may_pass<kWarps, kTogether>()>(
            args_, first_row_, first_column, unit + i * kWarps);
      }
      ready();
      Chunk::template make<kWarps>(elements, unit, typename Chunk::ToShared{place()});
    }
  }

  const LinearArgs& args_;
  int first_row_;
  Ring ring_;
};

// The pre-pass: stores chunks in their shared-memory layout, one unit per warp.
template <class Plan>
VQ_DEVICE void make_chunks(const LinearArgs& args) {
  using Chunk = ByteChunk<Plan>;
  constexpr auto kConfig = Plan::config();
  constexpr int kRows = kConfig.rows_per_block;
  constexpr i64 kChunks = chunks(kConfig);
  const i64 number = i64{block_x()} * (kMakingThreads / 32) + warp();
  const u32 unit = static_cast<u32>(number % Chunk::kUnits);
  const i64 chunk = number / Chunk::kUnits % kChunks;
  const i64 block = number / Chunk::kUnits / kChunks;
  const int first_row = static_cast<int>(block) * kRows;
  if (first_row + static_cast<int>(unit) % kRows >= LinearWork<Plan>::rows(args)) return;
  u8* const to = args.staged + block * made_row_bytes(kConfig) + chunk * byte_chunk_bytes(kConfig);
  const typename Chunk::Elements elements[1] = {
      Chunk::template load<false>(args, first_row, chunk * kConfig.chunk_columns, unit)};
  Chunk::template make<1>(elements, unit, typename Chunk::ToGlobal{to});
}

template <class Plan>
VQ_DEVICE void linear_chunks_of_x(const LinearArgs& args) {
  for_expert<Plan>(args, block_z(), [](const LinearArgs& own) { make_chunks<Plan>(own); });
}

}  // namespace vq
