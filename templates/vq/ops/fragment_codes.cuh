// The codes of dataflow fragments: each lane streams those of its own outputs, a run of whole words
// at a time (layout/linear.h), straight into registers.
#pragma once

#include <vq/layout/linear.h>
#include <vq/codes.cuh>

namespace vq {

template <class Plan>
class FragmentCodes {
 public:
  static constexpr LinearConfig kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.weights;
  static constexpr int kTileOutputs = fragment_outputs(kConfig);
  static constexpr int kTiles = kConfig.outputs_per_warp / kTileOutputs;
  static constexpr int kLaneOutputs = kTileOutputs / 8;
  static constexpr int kRunWords = run_words(kConfig);
  static constexpr int kLoadWords = kConfig.code_words;
  static constexpr int kRowWords = static_cast<int>(
      row_words(kConfig.in_features, kFormat.vector_size, kFormat.residuals, kFormat.index_bits));

  // The codes of one run, of this lane's outputs.
  struct Run {
    u32 words[kTiles][kLaneOutputs][kRunWords];
  };

  // The warp serves outputs from `first_output` on. Those past the matrix read its last.
  VQ_DEVICE FragmentCodes(const u32* codes, i64 first_output) {
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      VQ_UNROLL
      for (int i = 0; i < kLaneOutputs; ++i) {
        const i64 wanted = first_output + tile * kTileOutputs + i * 8 + lane() / 4;
        const i64 last = kConfig.out_features - 1;
        rows_[tile][i] = codes + (wanted < last ? wanted : last) * kRowWords;
      }
    }
  }

  // Run number `run` of the row; zeros past its end, where x is zero too.
  VQ_DEVICE void load(Run& to, i64 run) const {
    const int word = (static_cast<int>(run) * 4 + lane() % 4) * kRunWords;
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      VQ_UNROLL
      for (int i = 0; i < kLaneOutputs; ++i) {
        VQ_UNROLL
        for (int at = 0; at < kRunWords; at += kLoadWords) {
          load_words(to.words[tile][i] + at, rows_[tile][i], word + at);
        }
      }
    }
  }

  // The code of sub-vector s and stage of an octet; its place is known once loops are unrolled.
  VQ_DEVICE static u32 at(const u32* words, int octet, int s, int stage) {
    const int code_number = (octet * (8 / kFormat.vector_size) + s) * kFormat.residuals + stage;
    return read_code<kFormat.index_bits>(words, code_number, [](const u32* word) { return *word; });
  }

 private:
  VQ_DEVICE static void load_words(u32* to, const u32* row, int word) {
    const bool inside = word + kLoadWords <= kRowWords;
    if constexpr (kLoadWords == 4) {
      U32x4 four{};
      if (inside) four = load_global(reinterpret_cast<const U32x4*>(row + word));
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    } else if constexpr (kLoadWords == 2) {
      U32x2 two{};
      if (inside) two = load_global(reinterpret_cast<const U32x2*>(row + word));
      to[0] = two.x, to[1] = two.y;
    } else {
      to[0] = inside ? load_global(row + word) : 0u;
    }
  }

  const u32* rows_[kTiles][kLaneOutputs];
};

}  // namespace vq
