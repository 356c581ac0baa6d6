// Moves entries from the lanes that look them up to the lanes that multiply them (VQ-LLM, section
// VI-B), for plans that keep the natural column order. The unit is a tile of 8 outputs by 4 octets,
// 4 words per lane (g, c):
//
//   before   the entries that the lane looked up, of n = v / 2 words each (fragment_codes.cuh)
//   after    word c, columns 2c and 2c + 1, of octets 0 .. 3: as mma.m16n8k16 has row g of an
//   operand
//
// Registers: n neighbouring lanes hold the same words of n octets, one octet each, and transpose
// lanes and registers by shuffles in steps 1 .. n - 1, as in heuristics/fusion/exchange.h. Shared:
// a warp's tile goes through shared memory and ldmatrix.
#pragma once

#include <vq/kernels/linear_mma/plan.h>
#include <vq/lanes/fragment_lanes.cuh>
#include <vq/loads.cuh>

namespace vq {

// words[i] becomes what words[i ^ t] was; by selects, so that all stay registers.
template <int kWords>
VQ_DEVICE void xor_places(u32* words, int t) {
  VQ_UNROLL
  for (int bit = 1; bit < kWords; bit *= 2) {
    const bool swap = (t & bit) != 0;
    VQ_UNROLL
    for (int i = 0; i < kWords; ++i) {
      if ((i & bit) != 0) continue;
      const u32 low = words[i];
      const u32 high = words[i | bit];
      words[i] = swap ? high : low;
      words[i | bit] = swap ? low : high;
    }
  }
}

// Lane t of each kWords neighbours gives word i to lane i, which has it as its word t: in step s
// lanes t and t ^ s swap the words t ^ s and t. All words of the tile, kWords at a time.
template <int kWords>
VQ_DEVICE void exchange_words(u32 (&words)[4]) {
  if constexpr (kWords > 1) {
    const int t = lane() % kWords;
    VQ_UNROLL
    for (int first = 0; first < 4; first += kWords) {
      xor_places<kWords>(words + first, t);
      VQ_UNROLL
      for (int s = 1; s < kWords; ++s) words[first + s] = shuffle_xor(words[first + s], s);
      xor_places<kWords>(words + first, t);
    }
  }
}

template <class Plan>
class FragmentExchange {
 public:
  static constexpr auto kConfig = Plan::config();

  // Exchanges the words, with all lanes of the warp. A plan that permutes x leaves them as they
  // are.
  VQ_DEVICE void apply(u32 (&words)[4]) {
    if constexpr (kConfig.fusion == LinearFusion::registers) {
      exchange_words<kConfig.weights.vector_size / 2>(words);
    } else if constexpr (kConfig.fusion == LinearFusion::shared) {
      through_shared(words);
    }
  }

 private:
  static constexpr i64 kOffset = shared_layout(kConfig).beside;

  // A warp alternates between two tiles, so that one barrier per tile is enough: whoever stores in
  // a tile has passed the other's barrier since all have read it.
  VQ_DEVICE void through_shared(u32 (&words)[4]) {
    U32x4* tile = shared_part<U32x4>(kOffset) + (warp() * kExchangeTiles + turn_) * kExchangeOctets;
    turn_ ^= 1;
    store_shared(tile + tile_place(lane_group(), place_in_group()),
                 {words[0], words[1], words[2], words[3]});
    sync_warp();
    ldmatrix_x4(words,
                reinterpret_cast<const u32*>(tile + tile_place(ldmatrix_row(), ldmatrix_number())));
  }

  int turn_ = 0;
};

}  // namespace vq
