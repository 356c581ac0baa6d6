// Rows of keys and values in a block: positions of its channels' codes, staged in shared memory,
// and the codebooks that serve them.
//
// A share is the channels of a head that the block serves: all, or in dataflow channels one of
// several. Sub-vectors of more than 8 channels are read in pieces of 8, numbered through the share.
// A share may begin in the middle of a word.
#pragma once

#include <vq/layout/attention.h>
#include <vq/codebook/codebook.cuh>
#include <vq/codes.cuh>
#include <vq/tokens/cached_rows.cuh>

namespace vq {

// `Format` is what Codebook asks for (codebook.cuh), and says kShare, the channels of a share.
template <class Plan, class Format>
struct CacheRows {
  static constexpr FormatConfig kFormat = Format::config();
  static constexpr int kHeadDim = kFormat.part.channels;  // channels of a part
  static constexpr int kThreads = Plan::config().threads;
  static constexpr int kVectorSize = piece_elements(kFormat);
  static constexpr int kPieces = entry_pieces(kFormat);
  static constexpr int kBits = kFormat.index_bits;
  static constexpr int kResiduals = kFormat.num_codebooks;
  static constexpr int kChannels = Format::kShare;
  static constexpr int kSubVectors = kChannels / kVectorSize;
  static constexpr int kShareBits = kSubVectors / kPieces * kResiduals * kBits;
  using Stored = CodeRows<Format, Plan>;
  static constexpr int kWords = share_words(kFormat, kChannels, kHeadDim);  // staged, a token
  static constexpr int kCodeWords = static_cast<int>(code_words(kFormat, kHeadDim));
  static constexpr bool kWholeWords = kChannels == kHeadDim || kShareBits % 32 == 0;
  static constexpr int kUnits = units_of(kFormat, kChannels);
  static constexpr int kUnitsPerHead = units_per_head(kFormat, kHeadDim);
  using Book = Codebook<Format, Plan::config().element, kUnits, kThreads>;

  // Units of the tensor, and the first of this share's.
  VQ_DEVICE static constexpr i64 units() { return cache_units(kFormat, Plan::config().kv_heads); }
  VQ_DEVICE static i64 first_unit(int kv_head, int share) {
    return kFormat.per_head
               ? i64{kv_head} * kUnitsPerHead + share * kChannels / kFormat.unit_elements
               : i64{0};
  }

  // Queues copies of the share's words of tokens [first, first + count) of work.batch and
  // work.kv_head as rows of kWords. In a group of tokens that share scales only coded tokens are
  // copied. All threads.
  template <class Work>
  VQ_DEVICE static void stage(const QuantizedArgs& tensor, const Work& work, int share, int first,
                              int count, u32* to) {
    if constexpr (kFormat.scale_tokens > 0) {
      stage_groups(tensor, work, first, count, to);
      return;
    }
    const int begin = share * kShareBits / 32;
    const int left = Stored::kWords - begin;  // the last share's rows end sooner
    if constexpr (Stored::kPaged) {
      for (int i = thread_index(); i < count * kWords; i += kThreads) {
        const int word = i % kWords;
        if (word >= left) continue;
        copy_async(to + i, Stored::at(tensor, work.batch, work.kv_head, first + i / kWords) +
                               Stored::word(begin + word));
      }
      return;
    }
    // Offsets of the first token in its group and of the first word in its run.
    const int in_group = first % Stored::kLayout.rows;
    const int in_run = begin % Stored::kLayout.words;
    const u32* from = Stored::at(tensor, work.batch, work.kv_head, i64{first} - in_group) +
                      Stored::word(begin - in_run);
    for (int i = thread_index(); i < count * kWords; i += kThreads) {
      const int word = i % kWords;
      if (word < left) {
        copy_async(to + i, from + Stored::row(in_group + i / kWords) + Stored::word(in_run + word));
      }
    }
  }

  // The code of sub-vector s of the share and a stage, from its staged row.
  VQ_DEVICE static u32 code(const u32* row, int share, int s, int stage) {
    const int begin = kWholeWords ? 0 : share * kShareBits % 32;
    return read_code_at<kBits>(row, begin + (s / kPieces * kResiduals + stage) * kBits,
                               [](const u32* word) { return load_shared(word); });
  }

  // Decodes sub-vector s of the share.
  VQ_DEVICE static void decode(const Book& book, const u32* row, int share, int s,
                               float (&value)[kVectorSize]) {
    book.decode(
        value, unit_of(s), [&](int stage) { return code(row, share, s, stage); }, s % kPieces);
    if constexpr (scale_words(kFormat, kHeadDim) > 0) {
      static_assert(kChannels == kHeadDim, "");
      VQ_UNROLL
      for (int i = 0; i < kVectorSize; ++i) {
        const int word = kFormat.scale_tokens > 0 ? s * kVectorSize + i
                                                  : s * kVectorSize / kFormat.scale_channels;
        const auto scale = token_scale<kFormat.decoder, Plan::config().element>(
            load_shared(row + kCodeWords + word));
        value[i] *= scale.scale;
        if constexpr (kFormat.decoder == Decoder::affine) value[i] += scale.zero;
      }
    }
  }
  // The codebook set within the share.
  VQ_DEVICE static constexpr int unit_of(int s) { return s * kVectorSize / kFormat.unit_elements; }

  // Elements of sub-vector s of the share from a raw row.
  VQ_DEVICE static void load_raw(const u16* row, int share, int s, float (&value)[kVectorSize]) {
    VQ_UNROLL
    for (int i = 0; i < kVectorSize; ++i) {
      value[i] = to_float<Plan::config().element>(
          load_global(row + share * kChannels + s * kVectorSize + i));
    }
  }

 private:
  // stage() for rows with group scales: a row is its codes and its group's scales, stored after all
  // codes of the group.
  template <class Work>
  VQ_DEVICE static void stage_groups(const QuantizedArgs& tensor, const Work& work, int first,
                                     int count, u32* to) {
    constexpr int kOfRow = static_cast<int>(scale_words(kFormat, kHeadDim));
    for (int i = thread_index(); i < count * kWords; i += kThreads) {
      const int token = first + i / kWords;
      if (token >= work.raw.recent_tokens) return;
      const int channel = i % kWords - kCodeWords;
      const int row = channel < 0 ? token : token - token % kFormat.scale_tokens + channel / kOfRow;
      const int word = channel < 0 ? i % kWords : kCodeWords + channel % kOfRow;
      copy_async(to + i,
                 Stored::at(tensor, work.batch, work.kv_head, i64{row}) + Stored::word(word));
    }
  }
};

}  // namespace vq
