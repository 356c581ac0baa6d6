// Codes of the mma dataflow: each lane streams the codes of its own outputs, a run of whole words
// at a time (layout/linear.h), straight to registers. In a step a lane (g, c) looks up 8 / v
// entries of v elements for each of its outputs:
//
//   own octets     all of octet c
//   shared ones    fusion registers, n = v / 2: entry c / n of octets c % n, c % n + n, .. below 4;
//                  for v = 8 the same thing. The lanes that share octets load the same words.
//
// Outputs are assigned to lanes by access: if the layout groups the codes of T rows and a lane has
// T outputs, lane (g, c) has outputs T g .. T g + T - 1 of 8 T; else output g of each 8.
//
// Scales of groups of inputs come with the codes (run_scales.cuh).
#pragma once

#include <vq/layout/linear_runs.h>
#include <vq/codes.cuh>
#include <vq/lanes/fragment_lanes.cuh>
#include <vq/ops/run_scales.cuh>

namespace vq {

// `Load` is how codes are read, issued where it is written.
template <class Plan, class Load = BeginConstant>
class FragmentCodes {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = kConfig.weights;
  static constexpr int kTileOutputs = fragment_outputs(kConfig);
  static constexpr int kTiles = kConfig.outputs_per_warp / kTileOutputs;
  static constexpr int kLaneOutputs = kTileOutputs / 8;   // outputs of a tile per lane
  static constexpr int kOutputs = kTiles * kLaneOutputs;  // outputs per lane
  static constexpr int kRunWords = run_words(kConfig);
  static constexpr int kStreams = code_streams(kConfig);
  static constexpr int kEntries = 8 / kFormat.vector_size;  // a step's, of one output
  static constexpr bool kScales = kFormat.group_inputs > 0;
  // Byte lookups of signs without scales have not been measured.
  static constexpr bool kSignedBytes = kFormat.decoder == Decoder::signs && kScales &&
                                       kFormat.index_bits == 16 && number_bits(kFormat) == 8;
  static constexpr CodeLayout kLayout = kFormat.layout;
  static constexpr int kRowWords =
      static_cast<int>(padded_words(kLayout, row_words(kFormat, kConfig.in_features)));
  // Outputs per lane whose words one access loads, and words of each of them.
  static constexpr bool kWholeRuns = kRunWords % kLayout.words == 0;
  static constexpr int kGroup = rows_together(kLayout, 32 * kRunWords);
  static constexpr int kTogether = kOutputs % kGroup == 0 ? kGroup : 1;
  static constexpr int kAtOnce = kLayout.rows == 1 ? kConfig.code_words
                                 : kWholeRuns      ? kLayout.words
                                                   : 1;

  // The codes of one run, of this lane's outputs, and their scales.
  using Scales = RunScales<Plan>;
  struct Words {
    u32 words[kTiles][kLaneOutputs][kRunWords];
  };
  struct ScaledWords : Words {
    Scales scales[kTiles][kLaneOutputs];
    u32 until = 0;  // the column that shared scales last until
  };
  using Run = Either<kScales, ScaledWords, Words>;

  // Codes of the warp's outputs from `first_output` on. Outputs past the matrix repeat its last.
  VQ_DEVICE FragmentCodes(const u32* codes, i64 first_output)
      : codes_(codes), first_(first_output) {}

  // Output `i` of a lane in a tile, for a warp with outputs from `first` on.
  VQ_DEVICE static i64 output_of(i64 first, int tile, int i) {
    const int number = tile * kLaneOutputs + i;
    return first + number / kTogether * (8 * kTogether) + lane_group() * kTogether +
           number % kTogether;
  }

  // Run number `run` of the row; past its end its last words again, where x is zero.
  VQ_DEVICE void load(Run& to, i64 run) const {
    const int word = (static_cast<int>(run) * kStreams + lane() % kStreams) * kRunWords;
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      VQ_UNROLL
      for (int i = 0; i < kLaneOutputs; ++i) {
        if ((tile * kLaneOutputs + i) % kTogether != 0) continue;
        VQ_UNROLL
        for (int piece = 0; piece < kRunWords; piece += kAtOnce) {
          if constexpr (kTogether == 1) {
            load_run(to.words[tile][i] + piece, row(tile, i), word + piece);
          } else {
            u32 words[kTogether * kAtOnce];
            load_run(words, row(tile, i), word + piece);
            VQ_UNROLL
            for (int n = 0; n < kTogether * kAtOnce; ++n) {
              const int number = tile * kLaneOutputs + i + n / kAtOnce;
              to.words[number / kLaneOutputs][number % kLaneOutputs][piece + n % kAtOnce] =
                  words[n];
            }
          }
        }
      }
    }
    if constexpr (kScales) load_scales(to, run * run_columns(kConfig));
  }

  // Groups of inputs in a lane's part of a run, and the one of its entry e of a step.
  static constexpr int kGroups = Scales::kGroups;
  VQ_DEVICE static int group_of(int step, int e) {
    const int octet = kStreams == 4 ? step : step * (4 / kStreams) + e;
    return octet * kGroups / run_octets(kConfig);
  }
  // The factors of all groups in a run that begins at a column. All lanes.
  using Factors = typename Scales::Factor[kTiles][kLaneOutputs][kGroups];
  VQ_DEVICE static void scales(Factors& to, const Run& run, i64 column) {
    VQ_UNROLL
    for (int n = 0; n < kOutputs; ++n) {
      const int tile = n / kLaneOutputs, i = n % kLaneOutputs;
      if constexpr (kScales) {
        run.scales[tile][i].take(to[tile][i], lane_column(column));
      } else {
        to[tile][i][0] = 1.0f;
      }
    }
  }

  // load() of a run that begins before column `end`. Later runs are not loaded, as a warp cannot
  // end before its loads arrive; the stale registers meet x that is zero.
  VQ_DEVICE void load_before(i64 end, Run& to, i64 run) const {
    if (run * run_columns(kConfig) < end) load(to, run);
  }

  // The first column, from the run's, of the lane's entry e of a step.
  VQ_DEVICE static int column(int step, int e) {
    const int octet = kStreams == 4 ? place_in_group() : e * kStreams + lane() % kStreams;
    const int number = kStreams == 4 ? e : place_in_group() / kStreams;
    return octet_column(kStreams, run_octets(kConfig), step, octet) + number * kFormat.vector_size;
  }

  // The code of a stage in a run's words of one output. Its position is a constant once loops are
  // unrolled, except the entry of an octet if lanes share octets.
  VQ_DEVICE static auto at(const u32* words, int step, int e, int stage) {
    const int sub_vector = step * kEntries + e;
    if constexpr (kSignedBytes) {
      const int code = sub_vector * kFormat.num_codebooks + stage;
      return SignedByte{words[code / 2], code % 2 * 2};
    } else if constexpr (kStreams == 4) {
      return code_in<kFormat.index_bits>(words, sub_vector * kFormat.num_codebooks + stage);
    } else {
      return one_of_octet(words, sub_vector * kEntries * kFormat.num_codebooks + stage);
    }
  }

 private:
  // This lane's among the octet's codes `first`, `first` + residuals, ..: one shift if they share a
  // word, else selects.
  VQ_DEVICE static u32 one_of_octet(const u32* words, int first) {
    constexpr int kApart = kFormat.num_codebooks * kFormat.index_bits;
    const int which = place_in_group() / kStreams;
    const int begin = first * kFormat.index_bits;
    const int last = begin + (kEntries - 1) * kApart + kFormat.index_bits - 1;
    if (begin / 32 == last / 32) {
      return words[begin / 32] >> (begin % 32 + which * kApart) & ((1u << kFormat.index_bits) - 1u);
    }
    u32 chosen = code_in<kFormat.index_bits>(words, first);
    VQ_UNROLL
    for (int i = 1; i < kEntries; ++i) {
      const u32 other = code_in<kFormat.index_bits>(words, first + i * kFormat.num_codebooks);
      chosen = which == i ? other : chosen;
    }
    return chosen;
  }

  // Words from `word` on of all outputs of an access.
  VQ_DEVICE static void load_run(u32* to, const u32* row, int word) {
    constexpr int kCount = kTogether * kAtOnce;
    constexpr int kLast = kRowWords - kAtOnce;
    const u32* const from = row + word_place(kLayout, word < kLast ? word : kLast);
    load_words<kCount>(to, from, Load());
  }

  // The first column of the lane's part of a run that begins at a column.
  VQ_DEVICE static i64 lane_column(i64 column) {
    return column + lane() % kStreams * Scales::kColumns;
  }
  // The scales of a run that begins at a column, unless those of an earlier one are its own too.
  VQ_DEVICE void load_scales(Run& to, i64 column) const {
    if constexpr (Scales::kShared) {
      constexpr u32 kLasting = Scales::kLasting;
      const u32 until = (static_cast<u32>(column) / kLasting + 1) * kLasting;
      if (until == to.until) return;
      to.until = until;
    }
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      VQ_UNROLL
      for (int i = 0; i < kLaneOutputs; ++i) {
        const int beyond = (tile * kLaneOutputs + i) % kTogether;
        const int first = tile * kLaneOutputs + i - beyond;
        const u32* const from =
            row(first / kLaneOutputs, first % kLaneOutputs) + beyond * kLayout.words;
        to.scales[tile][i].load(lane_column(column), [from](int number) {
          u32 word[1];
          load_words<1>(word, from + word_place(kLayout, number), Load());
          return word[0];
        });
      }
    }
  }

  // Start of the row of a lane's output, or of the first output of an access.
  VQ_DEVICE const u32* row(int tile, int i) const {
    constexpr bool kInside = kConfig.out_features % outputs_per_block(kConfig) == 0;
    constexpr i64 kLast = (kConfig.out_features - 1) / kTogether * kTogether;
    const i64 wanted = output_of(first_, tile, i);
    return codes_ + row_place(kLayout, i64{kRowWords}, kInside || wanted < kLast ? wanted : kLast);
  }

  const u32* codes_;
  i64 first_;
};

}  // namespace vq
