// The codes of dataflow fragments: each lane streams those of its own outputs, a run of whole words
// at a time (layout/linear.h), straight into registers. In a step a lane (g, c) looks up 8 / v
// entries of v elements of each of its outputs:
//
//   own octets     all of octet c
//   shared ones    fusion registers, n = v / 2: entry c / n of octets c % n, c % n + n, .. below 4;
//                  for v = 8 the same thing. The lanes that share octets load the same words.
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
  static constexpr int kRunOctets = run_octets(kConfig);
  static constexpr int kLoadWords = kConfig.code_words;
  static constexpr int kStreams = code_streams(kConfig);
  static constexpr int kEntries = 8 / kFormat.vector_size;  // a step's, of one output
  static constexpr int kRowWords = static_cast<int>(
      row_words(kConfig.in_features, kFormat.vector_size, kFormat.residuals, kFormat.index_bits));

  // The codes of one run, of this lane's outputs.
  struct Run {
    u32 words[kTiles][kLaneOutputs][kRunWords];
  };

  // The warp serves outputs from `first_output` on. Those past the matrix read its last.
  VQ_DEVICE FragmentCodes(const u32* codes, i64 first_output)
      : codes_(codes), first_(first_output + lane() / 4) {}

  // Run number `run` of the row; past its end its last words again, where x is zero.
  VQ_DEVICE void load(Run& to, i64 run) const {
    const int word = (static_cast<int>(run) * kStreams + lane() % kStreams) * kRunWords;
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      VQ_UNROLL
      for (int i = 0; i < kLaneOutputs; ++i) {
        VQ_UNROLL
        for (int at = 0; at < kRunWords; at += kLoadWords) {
          load_words(to.words[tile][i] + at, row(tile * kTileOutputs + i * 8), word + at);
        }
      }
    }
  }

  // The first column, from the run's, of the lane's entry e of a step.
  VQ_DEVICE static int column(int step, int e) {
    const int octet = kStreams == 4 ? lane() % 4 : e * kStreams + lane() % kStreams;
    const int number = kStreams == 4 ? e : lane() % 4 / kStreams;
    return octet_column(kStreams, kRunOctets, step, octet) + number * kFormat.vector_size;
  }

  // Its code of a stage, of the run's words of one output. The place is known once loops are
  // unrolled, but for which entry of an octet it is where lanes share octets.
  VQ_DEVICE static u32 at(const u32* words, int step, int e, int stage) {
    const int sub_vector = step * kEntries + e;
    if constexpr (kStreams == 4) {
      return code(words, sub_vector * kFormat.residuals + stage);
    } else {
      return one_of_octet(words, sub_vector * kEntries * kFormat.residuals + stage);
    }
  }

 private:
  VQ_DEVICE static u32 code(const u32* words, int number) {
    return read_code<kFormat.index_bits>(words, number, [](const u32* word) { return *word; });
  }

  // The lane's of the octet's codes `first`, `first` + residuals, ..: by one shift where they stand
  // in one word, else by selects.
  VQ_DEVICE static u32 one_of_octet(const u32* words, int first) {
    constexpr int kApart = kFormat.residuals * kFormat.index_bits;
    const int which = lane() % 4 / kStreams;
    const int begin = first * kFormat.index_bits;
    const int last = begin + (kEntries - 1) * kApart + kFormat.index_bits - 1;
    if (begin / 32 == last / 32) {
      return words[begin / 32] >> (begin % 32 + which * kApart) & ((1u << kFormat.index_bits) - 1u);
    }
    u32 chosen = code(words, first);
    VQ_UNROLL
    for (int i = 1; i < kEntries; ++i) {
      const u32 other = code(words, first + i * kFormat.residuals);
      chosen = which == i ? other : chosen;
    }
    return chosen;
  }

  VQ_DEVICE static void load_words(u32* to, const u32* row, int word) {
    constexpr int kLast = kRowWords - kLoadWords;
    const u32* const from = row + (word < kLast ? word : kLast);
    if constexpr (kLoadWords == 4) {
      const U32x4 four = load_global(reinterpret_cast<const U32x4*>(from));
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    } else if constexpr (kLoadWords == 2) {
      const U32x2 two = load_global(reinterpret_cast<const U32x2*>(from));
      to[0] = two.x, to[1] = two.y;
    } else {
      to[0] = load_global(from);
    }
  }

  // The row of the output so many after the lane's first.
  VQ_DEVICE const u32* row(int after) const {
    constexpr bool kInside = kConfig.out_features % outputs_per_block(kConfig) == 0;
    constexpr i64 kLast = kConfig.out_features - 1;
    const i64 wanted = first_ + after;
    return codes_ + (kInside || wanted < kLast ? wanted : kLast) * kRowWords;
  }

  const u32* codes_;
  i64 first_;
};

}  // namespace vq
