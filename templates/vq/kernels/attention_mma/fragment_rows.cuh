// The rows of one cache tensor for attention_mma.cuh: the codes that a lane loads and the
// operand words that they decode to.
#pragma once

#include <vq/layout/attention.h>
#include <vq/codebook/affine_operands.cuh>
#include <vq/codebook/codebook.cuh>
#include <vq/codes.cuh>
#include <vq/tokens/cached_rows.cuh>

namespace vq {

// The codes that one of kParts lanes reads of a row of kRowWords words (layout/codes.h): kBits bits
// from bit part * kBits on, in flight unaligned until align() moves them to bit 0. Whole-word
// shares load kLoadWords words or runs at once; the channels' scales come last.
template <int kRowWords, int kBits, int kParts, int kLoadWords, int kRows, int kRun, int kScales>
struct LaneCodes {
  static constexpr CodeLayout kLayout{kRows, kRun};
  static constexpr bool kWhole = kBits % 32 == 0;
  static constexpr int kWords = ceil_div(kBits, 32);
  static constexpr bool kWholeRuns = kRun == 1 || (kWhole && kWords % kRun == 0);
  VQ_HD static constexpr int width() {
    int width = !kWhole ? 1 : kRows == 1 ? kLoadWords : kRun;
    while (kWords % width != 0) width /= 2;
    return width;
  }
  static constexpr int kWidth = width();

  // Words that the share of any part touches, at most.
  VQ_HD static constexpr int touched() {
    int most = 0;
    for (int part = 0; part < kParts; ++part) {
      const int words = ceil_div(part * kBits % 32 + kBits, 32);
      most = words > most ? words : most;
    }
    return most;
  }
  static constexpr int kTouched = touched();
  static constexpr int kLoaded = kTouched + (kScales > 0 ? 1 : 0);

  // Word and bit at which a lane's share begins.
  VQ_DEVICE static int first_word(int part) { return part * kBits / 32; }
  VQ_DEVICE static int shift(int part) { return part * kBits % 32; }

  // Loads the shares of kTogether rows: one, or a group's if shares are whole runs. `from` is the
  // first row's first word, to(row) the share's destination. Words past a row's last repeat it.
  template <int kTogether, class To, class Load = LoadGlobal>
  VQ_DEVICE static void load(const u32* from, int part, To to, Load how = Load()) {
    if constexpr (kTogether > 1) {
      static_assert(kTogether == kRows && kWhole && kWholeRuns, "");
      VQ_UNROLL
      for (int i = 0; i < kWords; i += kRun) {
        u32 words[kRows * kRun];
        load_words<kRows * kRun>(words, from + word_place(kLayout, i), how);
        VQ_UNROLL
        for (int n = 0; n < kRows * kRun; ++n) to(n / kRun)[i + n % kRun] = words[n];
      }
      if constexpr (kScales > 0) {
        const int scale = scale_word(part);
        const int in_run = scale % kRun;
        u32 words[kRows * kRun];
        load_words<kRows * kRun>(words, from + to_word(part, scale - in_run), how);
        VQ_UNROLL
        for (int row = 0; row < kRows; ++row) {
          u32 own = words[row * kRun];
          VQ_UNROLL
          for (int i = 1; i < kRun; ++i) own = in_run == i ? words[row * kRun + i] : own;
          to(row)[kTouched] = own;
        }
      }
    } else if constexpr (kWidth > 1) {
      VQ_UNROLL
      for (int i = 0; i < kTouched; i += kWidth) {
        load_words<kWidth>(to(0) + i, from + place(part, i), how);
      }
    } else {
      VQ_UNROLL
      for (int i = 0; i < kTouched; ++i) {
        const int left = kRowWords - 1 - first_word(part);
        to(0)[i] = how(from + place(part, kWhole || i < left ? i : left));
      }
    }
    if constexpr (kScales > 0 && kTogether == 1) {
      to(0)[kTouched] = how(from + to_word(part, scale_word(part)));
    }
  }

  // The word that holds the scale of a part's channels.
  VQ_DEVICE static int scale_word(int part) {
    static_assert(kScales == 0 || kParts % kScales == 0, "");
    if constexpr (kScales <= 1) return kRowWords - 1;
    return kRowWords - kScales + part * kScales / kParts;
  }

  // Word offset from the share's start to word `word` of its row.
  VQ_DEVICE static int to_word(int part, int word) {
    return word_place(kLayout, word) - word_place(kLayout, first_word(part));
  }

  // Word offset from the share's start to its word `i`.
  VQ_DEVICE static int place(int part, int i) {
    if constexpr (kRows == 1 || kWholeRuns) return word_place(kLayout, i);
    return to_word(part, first_word(part) + i);
  }

  VQ_DEVICE static void align(u32 (&share)[kWords], const u32 (&loaded)[kLoaded], int part) {
    VQ_UNROLL
    for (int i = 0; i < kWords; ++i) {
      if constexpr (kWhole) {
        share[i] = loaded[i];
      } else {
        const u32 above = i + 1 < kTouched ? loaded[i + 1] : 0u;
        share[i] = word_across(loaded[i], above, shift(part));
      }
    }
  }
};

// `Format` says config() and shared() as for a Codebook, and kRebuilt: what operand words hold. A
// row is shared evenly by kLanes lanes. Scalar codes are no entries: Scalars, of the Format, makes
// operand words of a word of them.
template <class Plan, class Format, int kLanes>
class FragmentRows {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = Format::config();
  static constexpr bool kScalar = is_scalar(kFormat.decoder);
  // Element type of MMA operands.
  static constexpr Element kElement =
      kScalar && kFormat.decoder != Decoder::affine ? Element::f16 : kConfig.element;
  static constexpr int kVectorSize = kFormat.vector_size;
  static constexpr Rebuilt kRebuilt = Format::kRebuilt;
  static constexpr int kOfWord = kRebuilt == Rebuilt::kHeld ? 4 : 2;  // elements of an operand word
  static constexpr int kRowChannels = kFormat.part.channels;
  static constexpr int kChannels = kRowChannels / kLanes;  // channels per lane
  static constexpr int kSubVectors = kChannels / kVectorSize;
  static constexpr int kUnits = units_per_head(kFormat, kRowChannels);
  // MMAs per word: one per stage, with sums in the same accumulators.
  static constexpr int kPasses = kRebuilt == Rebuilt::kSum ? 1 : kFormat.num_codebooks;
  // If lanes have whole units, the position within a unit is equal in all lanes, and a byte lookup
  // makes it a constant (codebook.cuh).
  static constexpr bool kUnitsByByte = kFormat.index_bits == 8 && kRebuilt != Rebuilt::kSum &&
                                       kChannels % kFormat.unit_elements == 0;
  static constexpr int kTensorUnits = kFormat.per_head ? kConfig.kv_heads * kUnits : 1;
  using Book = Codebook<Format, kConfig.element, kUnits, kConfig.threads>;
  using Scalars = typename Format::Scalars;
  using Stored = CodeRows<Format, Plan>;
  using Share = LaneCodes<Stored::kWords, kSubVectors * kFormat.num_codebooks * kFormat.index_bits,
                          kLanes, kConfig.code_words, kFormat.layout.rows, kFormat.layout.words,
                          kFormat.token_scales ? kRowChannels / kFormat.scale_channels : 0>;
  static_assert(kChannels % kVectorSize == 0, "");

  // Binds the block's codebooks and begins to fetch them, with thread number `thread`;
  // book.finish(thread, ..) and a barrier must follow.
  VQ_DEVICE static typename Book::Begun bind(Book& book, int kv_head, int thread) {
    book.switch_to(kFormat.per_head ? i64{kv_head} * kUnits : i64{0});
    return book.begin(thread);
  }

  VQ_DEVICE static int unit_of(int channel) {
    if constexpr (kUnits == 1) return 0;
    return channel / kFormat.unit_elements;
  }

  // The value of 1 in the operand words of scalar codes, for a channel of the bound head.
  VQ_DEVICE static float channel_scale(const Book& book, int channel) {
    if constexpr (kFormat.decoder == Decoder::affine) {  // no array, of which one were in memory
      const u32 pair = word_of(book.held(0, 0, 0u), channel % kVectorSize / 2);
      return to_float<kConfig.element>(static_cast<u16>(pair >> channel % 2 * 16)) * Scalars::kUnit;
    }
    float scales[kVectorSize] = {};
    add_entry<kConfig.element>(scales, book.held(unit_of(channel), 0, 0u), Scalars::kUnit);
    float scale = scales[0];
    VQ_UNROLL
    for (int i = 1; i < kVectorSize; ++i) scale = channel % kVectorSize == i ? scales[i] : scale;
    return scale;
  }

  // Sub-vector s of the share of lane `part`, in operand words: of stage `pass`, or the sum of all.
  VQ_DEVICE static void look_up(u32* words, const Book& book, const u32* share, int part, int s,
                                int pass) {
    const int first = unit_of(part * kChannels + (kUnitsByByte ? 0 : s * kVectorSize));
    const int u = kUnitsByByte ? unit_of(s * kVectorSize) : 0;
    rebuild<kRebuilt, kElement>(words, book, first, u, pass, [&](int stage) {
      return code_in<kFormat.index_bits>(share, s * kFormat.num_codebooks + stage);
    });
  }
};

// Codes of one step: of keys, token g of each tile; of values, tokens 2c and 2c + 1.
template <class KeyRows, class ValueRows, int kTiles>
struct StepCodes {
  u32 keys[kTiles][KeyRows::Share::kLoaded];
  u32 values[kTiles][2][ValueRows::Share::kLoaded];
};

}  // namespace vq
