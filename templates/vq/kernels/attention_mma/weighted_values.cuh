// Values as operand words times probabilities as operand b, for attention_mma.cuh: of words
// that are there, and of scalar codes, which become words by a few instructions
// (codebook/scalar_operands.cuh, codebook/affine_operands.cuh).
#pragma once

#include <vq/ops/warp_softmax.cuh>

namespace vq {

// Rows: how lanes have the codes of values (fragment_rows.cuh).
template <class Plan, class Rows>
struct WeightedValues {
  using Softmax = WarpSoftmax<Plan>;
  static constexpr Element kElement = Plan::config().element;
  static constexpr int kTiles = Softmax::kTiles;
  static constexpr int kQuads = Softmax::kQuads;
  static constexpr int kOf = Softmax::kPaired ? 2 : 1;  // tiles at a time
  using Codes = u32[kTiles][2][Rows::Share::kLoaded];
  using Probabilities = float[kTiles][kQuads];

  // Token 2c + i of a tile of the step from `base` on.
  VQ_DEVICE static int token_of(int base, int tile, int i) {
    return Softmax::token_of(base, tile, place_in_group() * 2) + i * Softmax::kJoined;
  }

  VQ_DEVICE static void add_scalars(Softmax& softmax, const Codes& codes,
                                    const Probabilities& probabilities) {
    using Scalars = typename Rows::Scalars;
    constexpr int kWords = Scalars::kWords;
    u32 b[kQuads][2];
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; tile += kOf) {
      spread<Element::f16>(b, probabilities, tile);
      VQ_UNROLL
      for (int i = 0; i < Rows::Share::kWords; ++i) {
        u32 words[kOf][2][kWords];
        VQ_UNROLL
        for (int n = 0; n < 2 * kOf; ++n) {
          Scalars::unpack(words[n / 2][n % 2], codes[tile + n / 2][n % 2][i]);
        }
        add_words<Element::f16>(softmax, i * kWords, words, b);
      }
    }
  }

  // Tokens of the step from `base` on outside [first, end) may have no scales. Theirs are 0, as
  // their probabilities are.
  VQ_DEVICE static void add_affine(Softmax& softmax, const Codes& codes,
                                   const Probabilities& probabilities, int base, int first,
                                   int end) {
    using Scalars = typename Rows::Scalars;
    constexpr int kWords = Scalars::kWords;
    u32 scales[kTiles][2];
    VQ_UNROLL
    for (int n = 0; n < 2 * kTiles; ++n) {
      scales[n / 2][n % 2] = codes[n / 2][n % 2][Rows::Share::kTouched];
    }
    if (base < first || base + 8 * kTiles > end) {
      VQ_UNROLL
      for (int n = 0; n < 2 * kTiles; ++n) {
        const int token = token_of(base, n / 2, n % 2);
        if (token < first || token >= end) scales[n / 2][n % 2] = 0;
      }
    }
    u32 b[kQuads][2];
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; tile += kOf) {
      spread<kElement>(b, probabilities, tile);
      softmax.add_zeros(scales, tile, b);
      VQ_UNROLL
      for (int i = 0; i < Rows::Share::kWords; ++i) {
        u32 words[kOf][2][kWords];
        VQ_UNROLL
        for (int n = 0; n < 2 * kOf; ++n) {
          const u32 scale = byte_permute(scales[tile + n / 2][n % 2], 0u, 0x1010u);
          Scalars::scaled(words[n / 2][n % 2], codes[tile + n / 2][n % 2][i], scale);
        }
        add_words<kElement>(softmax, i * kWords, words, b);
      }
    }
  }

  // Operand b of one tile, or of the pair that begins with it.
  template <Element kOperand>
  VQ_DEVICE static void spread(u32 (&b)[kQuads][2], const Probabilities& probabilities, int tile) {
    if constexpr (Softmax::kPaired) {
      Softmax::template spread_pairs<kOperand>(b, probabilities[tile], tile);
      Softmax::template spread_pairs<kOperand>(b, probabilities[tile + 1], tile + 1);
    } else {
      Softmax::template spread<kOperand>(b, probabilities[tile]);
    }
  }

  // Words of this lane's channels from `word` on, of tokens 2c and 2c + 1 of one tile or of a pair.
  template <Element kOperand, int kCount>
  VQ_DEVICE static void add_words(Softmax& softmax, int word, const u32 (&words)[kOf][2][kCount],
                                  const u32 (&b)[kQuads][2]) {
    if constexpr (kOf == 2) {
      VQ_UNROLL
      for (int w = 0; w < kCount; ++w) {
        softmax.template add_pairs<kOperand>(word + w,
                                             Softmax::rows_of(words[0][0][w], words[0][1][w]),
                                             Softmax::rows_of(words[1][0][w], words[1][1][w]), b);
      }
    } else {
      VQ_UNROLL
      for (int w = 0; w < kCount; w += 2) {
        softmax.template add<kOperand>(
            (word + w) / 2,
            {words[0][0][w], words[0][0][w + 1], words[0][1][w], words[0][1][w + 1]}, b);
      }
    }
  }
};

}  // namespace vq
