// The rows of one tensor of the cache as attention_fragments.cuh reads them: which codes a lane
// loads, and the operand words that they stand for.
#pragma once

#include <vq/layout/attention.h>
#include <vq/codebook/codebook.cuh>
#include <vq/ops/lane_codes.cuh>

namespace vq {

// `Format` says config() and shared() as for a Codebook. A row is shared evenly by kLanes lanes.
//
// Format::kScaled: do stage scales belong to what is rebuilt?
// Format::kBytes: are operand words of int8 entries their bytes, four a word, instead of elements?
template <class Plan, class Format, int kLanes>
class FragmentRows {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = Format::config();
  static constexpr Element kElement = kConfig.element;
  static constexpr int kVectorSize = kFormat.vector_size;
  static constexpr bool kBytes = Format::kBytes;
  static constexpr int kOfWord = kBytes ? 4 : 2;               // elements of an operand word
  static constexpr int kChannels = kConfig.head_dim / kLanes;  // of a lane
  static constexpr int kSubVectors = kChannels / kVectorSize;
  static constexpr int kUnits = units_per_head(kFormat, kConfig.head_dim);
  static constexpr bool kWholeUnits = kChannels % kFormat.unit_elements == 0;  // of a lane
  // Products a word takes: one a stage, whose sums meet in the accumulators.
  static constexpr bool kScaledSums = Format::kScaled && kFormat.stage_scales;
  static constexpr int kPasses = kScaledSums ? 1 : kFormat.residuals;
  static constexpr int kWords = static_cast<int>(
      row_words(kConfig.head_dim, kVectorSize, kFormat.residuals, kFormat.index_bits));
  static constexpr int kTensorUnits = kFormat.per_head ? kConfig.kv_heads * kUnits : 1;
  using Book = Codebook<Format, kElement, kUnits, kConfig.threads>;
  using Share = LaneCodes<kWords, kSubVectors * kFormat.residuals * kFormat.index_bits, kLanes,
                          kConfig.code_words, kFormat.layout.rows, kFormat.layout.words>;
  // From a row to the next, were rows not in groups.
  static constexpr int kStoredWords = static_cast<int>(padded_words(kFormat.layout, kWords));
  static_assert(kChannels % kVectorSize == 0, "");

  // Binds the block's codebooks and begins to fetch them, with thread number `thread`;
  // book.finish_load(thread, ..) and a barrier must follow.
  VQ_DEVICE static typename Book::Begun bind(Book& book, int kv_head, int thread) {
    book.switch_to(kFormat.per_head ? i64{kv_head} * kUnits : i64{0});
    return book.begin_load(thread);
  }

  VQ_DEVICE static int unit_of(int channel) {
    if constexpr (kUnits == 1) return 0;
    return channel / kFormat.unit_elements;
  }

  // Sub-vector s of the share of lane `part`: the entry of stage `pass` or, where stages have
  // scales that belong to it, the scaled sum of all, rounded to 16 bits.
  VQ_DEVICE static void rebuild(u32* words, const Book& book, const u32* share, int part, int s,
                                int pass) {
    const auto code = [&](int stage) {
      return read_code<kFormat.index_bits>(share, s * kFormat.residuals + stage,
                                           [](const u32* word) { return *word; });
    };
    const int unit = unit_of(part * kChannels + s * kVectorSize);
    if constexpr (kScaledSums) {
      float value[kVectorSize];
      book.decode(value, unit, code);
      VQ_UNROLL
      for (int i = 0; i < kVectorSize; i += 2) {
        words[i / 2] = pack2<kElement>(value[i], value[i + 1]);
      }
    } else {
      const auto entry = operand(book, unit, part, pass, share, s, code);
      VQ_UNROLL
      for (int i = 0; i < kVectorSize / kOfWord; ++i) words[i] = word_of(entry, i);
    }
  }

 private:
  template <class Code>
  VQ_DEVICE static auto operand(const Book& book, int unit, int part, int pass, const u32* share,
                                int s, Code code) {
    if constexpr (kFormat.index_bits == 8) {
      // unit = first + u, u the same in all lanes.
      const int first = kWholeUnits ? unit_of(part * kChannels) : unit;
      const int u = kWholeUnits ? unit_of(s * kVectorSize) : 0;
      const int byte = s * kFormat.residuals + pass;
      if constexpr (kBytes) {
        return book.held_of_byte(first, u, pass, share[byte / 4], byte % 4);
      } else {
        return book.entry_of_byte(first, u, pass, share[byte / 4], byte % 4);
      }
    } else if constexpr (kBytes) {
      return book.held(unit, pass, code(pass));
    } else {
      return book.entry(unit, pass, code(pass));
    }
  }
};

}  // namespace vq
