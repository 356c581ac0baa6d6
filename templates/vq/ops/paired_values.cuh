// Values of entries times the probabilities of pairs of quads (warp_softmax.cuh): a pair of tiles
// after the other, of these a sub-vector after the other. So few words are held at a time that the
// sums of 16 rows leave registers for 12 warps.
#pragma once

#include <vq/ops/weighted_values.cuh>

namespace vq {

// Rows: how lanes have the codes of values (fragment_rows.cuh).
template <class Plan, class Rows>
struct PairedValues {
  using Softmax = WarpSoftmax<Plan>;
  using Weighted = WeightedValues<Plan, Rows>;
  static constexpr Element kElement = Plan::config().element;
  static constexpr int kWords = Rows::kVectorSize / 2;
  static constexpr int kOfPair = Rows::kSubVectors * Rows::kPasses;  // turns
  static constexpr int kTurns = Softmax::kTiles / 2 * kOfPair;
  // Of a turn: of both tiles of a pair tokens 2c and 2c + 1.
  using Words = u32[2][2][kWords];
  using Codes = u32[Softmax::kTiles][2][Rows::Share::kLoaded];

  VQ_DEVICE static void look_up(Words& words, const typename Rows::Book& book, const Codes& codes,
                                int turn) {
    VQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      u32 share[Rows::Share::kWords];
      Rows::Share::align(share, codes[turn / kOfPair * 2 + i / 2][i % 2], lane_group());
      Rows::look_up(words[i / 2][i % 2], book, share, lane_group(), turn % kOfPair / Rows::kPasses,
                    turn % Rows::kPasses);
    }
  }

  // `words`: those of turn 0 have been looked up; the lookups of the next products are under way
  // meanwhile.
  VQ_DEVICE static void add(Softmax& softmax, const typename Rows::Book& book, const Codes& codes,
                            const float (&probabilities)[Softmax::kTiles][Softmax::kQuads],
                            Words (&words)[2]) {
    u32 b[Softmax::kQuads][2];
    VQ_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      if (turn + 1 < kTurns) look_up(words[(turn + 1) % 2], book, codes, turn + 1);
      loads_first();
      if (turn % kOfPair == 0) {
        Weighted::template spread<kElement>(b, probabilities, turn / kOfPair * 2);
      }
      Weighted::template add_words<kElement>(softmax, turn % kOfPair / Rows::kPasses * kWords,
                                             words[turn % 2], b);
    }
  }
};

}  // namespace vq
