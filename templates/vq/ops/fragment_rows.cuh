// The rows of one tensor of the cache as attention_fragments.cuh reads them: which codes a lane
// loads, and the operand words that they stand for.
#pragma once

#include <vq/layout/attention.h>
#include <vq/codebook/rebuild.cuh>
#include <vq/ops/lane_codes.cuh>
#include <vq/tokens/cached_rows.cuh>

namespace vq {

// `Format` says config() and shared() as for a Codebook, and kRebuilt: what operand words hold. A
// row is shared evenly by kLanes lanes.
template <class Plan, class Format, int kLanes>
class FragmentRows {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = Format::config();
  static constexpr Element kElement = kConfig.element;
  static constexpr int kVectorSize = kFormat.vector_size;
  static constexpr Rebuilt kRebuilt = Format::kRebuilt;
  static constexpr int kOfWord = kRebuilt == Rebuilt::kHeld ? 4 : 2;  // elements of an operand word
  static constexpr int kChannels = kConfig.head_dim / kLanes;         // of a lane
  static constexpr int kSubVectors = kChannels / kVectorSize;
  static constexpr int kUnits = units_per_head(kFormat, kConfig.head_dim);
  // Products a word takes: one a stage, whose sums meet in the accumulators.
  static constexpr int kPasses = kRebuilt == Rebuilt::kSum ? 1 : kFormat.residuals;
  // Where lanes have whole units, the number within them is the same in all lanes: a lookup by a
  // byte makes a constant of it (codebook.cuh).
  static constexpr bool kUnitsByByte = kFormat.index_bits == 8 && kRebuilt != Rebuilt::kSum &&
                                       kChannels % kFormat.unit_elements == 0;
  static constexpr int kTensorUnits = kFormat.per_head ? kConfig.kv_heads * kUnits : 1;
  using Book = Codebook<Format, kElement, kUnits, kConfig.threads>;
  using Stored = CodeRows<Format, kConfig.head_dim>;
  using Share = LaneCodes<Stored::kWords, kSubVectors * kFormat.residuals * kFormat.index_bits,
                          kLanes, kConfig.code_words, kFormat.layout.rows, kFormat.layout.words>;
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

  // Sub-vector s of the share of lane `part`, in operand words: of stage `pass`, or the sum of all.
  VQ_DEVICE static void look_up(u32* words, const Book& book, const u32* share, int part, int s,
                                int pass) {
    const int first = unit_of(part * kChannels + (kUnitsByByte ? 0 : s * kVectorSize));
    const int u = kUnitsByByte ? unit_of(s * kVectorSize) : 0;
    rebuild<kRebuilt, kElement>(words, book, first, u, pass, [&](int stage) {
      return code_in<kFormat.index_bits>(share, s * kFormat.residuals + stage);
    });
  }
};

}  // namespace vq
