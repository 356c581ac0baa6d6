// Pipeline of codes through shared memory for int8_mma attention: in a round each warp copies the
// rows of a step of tokens to one of pipeline_stages stages. Lanes share rows of 16, 32 and 64
// bytes, 16 bytes each; dense rows of other sizes they copy as one run of bytes. Codes in flight
// take no registers, warps do not wait for each other, and paged rows may be anywhere at the same
// cost.
//
//   wait     for the copies of the oldest round
//   refill   copies the round that takes the place of the one just read, and loads the page numbers
//            of the next one, which have a round to come
//
// One warp issues the first round for all while the others place entries; rounds after the second
// are issued later, so that the first arrives early.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/kernels/attention_int8_mma/plan.h>
#include <vq/codebook/entry.cuh>
#include <vq/ops/attention_work.cuh>

namespace vq {

template <class Plan>
class CodeRounds {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr AttentionInt8MmaShared kAt = bytes_layout(kConfig);
  static constexpr int kWarps = kConfig.threads / 32;
  static constexpr int kPlaces = kConfig.pipeline_stages;
  static constexpr int kTokens = kConfig.threads;  // tokens per round
  static constexpr int kKeyRow = key_row_bytes(kConfig);
  static constexpr int kValueRow = value_row_bytes(kConfig);
  static constexpr int kKeyStep = step_bytes(kConfig, false);
  static constexpr int kValueStep = step_bytes(kConfig, true);
  static constexpr int kKeyBytes = kWarps * kKeyStep;
  static constexpr int kRoundBytes = static_cast<int>(round_bytes(kConfig));
  static constexpr bool kPaged = kConfig.page_tokens > 0;
  static constexpr int kPage = kPaged ? kConfig.page_tokens : kBytesStep;
  static constexpr int kChunk = 16;
  static constexpr int kPiece = copy_bytes(kConfig);
  // Rows of kBytes: lanes that copy one together; copies per lane of a step, of rows kApart apart;
  // and pages of these rows. If a page has at least 8 rows per copy, all copies are in one page. Of
  // dense rows a lane copies pieces of any, and has all pages of a step.
  template <int kBytes>
  struct Copies {
    static constexpr bool kDense = dense_rows(kConfig, kBytes);
    static constexpr int kOfRow = copying_lanes(kBytes, kPiece);
    static constexpr int kStride = row_stride(kConfig, kBytes);
    static constexpr int kCopies = kDense ? kBytes / kPiece : kBytesStep * kOfRow / 32;
    static constexpr bool kInOnePage = !kDense && kPage < kBytesStep && kPage / kCopies % 8 == 0;
    static constexpr int kApart = kDense       ? (kPage < kBytesStep ? kPage : kBytesStep)
                                  : kInOnePage ? kPage / kCopies
                                               : 32 / kOfRow;
    static constexpr int kRowsOfPage = kApart < kPage ? kPage : kApart;  // or of several pages
    static constexpr int kPages = kInOnePage ? 1 : ceil_div(kBytesStep, kRowsOfPage);
    static_assert(32 % kOfRow == 0 && kBytes <= kStride, "");
    static_assert(kPage % kBytesStep == 0 || kApart % kPage == 0 || kPage % kApart == 0, "");

    // The first row of a step that this lane copies.
    VQ_DEVICE static int own_row() {
      if constexpr (kDense) return 0;
      const int row = lane() / kOfRow;
      return kInOnePage ? row / kApart * kPage + row % kApart : row;
    }
    // The place among a lane's pages of that of its copy `i`.
    VQ_HD static constexpr int page_of(int i) { return kPages == 1 ? 0 : i * kApart / kRowsOfPage; }
  };
  using KeyCopies = Copies<kKeyRow>;
  using ValueCopies = Copies<kValueRow>;
  // Page numbers of a lane's rows, of keys and then of values if it copies other rows of these.
  static constexpr bool kAlike = kKeyRow == kValueRow;
  static constexpr bool kSamePages =
      KeyCopies::kOfRow == ValueCopies::kOfRow && KeyCopies::kDense == ValueCopies::kDense;
  static constexpr int kValuePages = kSamePages ? 0 : KeyCopies::kPages;
  using Pages = u32[KeyCopies::kPages + (kSamePages ? 0 : ValueCopies::kPages)];

  // Bytes by which the pieces of 16 bytes of a token's row change places (xor), so that loads of
  // some codes of 8 tokens have no bank conflict. Where lanes read whole rows together none do.
  template <int kBytes>
  VQ_DEVICE static u32 turned(int token) {
    constexpr int kStride = row_stride(kConfig, kBytes);
    if constexpr (kInOneFormat || dense_rows(kConfig, kBytes)) return 0;
    if constexpr (kStride == 32) return static_cast<u32>(token / 4 % 2 * kChunk);
    if constexpr (kStride == 64) {
      const int half = token / 2 % 2 * (2 * kChunk);
      return static_cast<u32>(kBytes == 64 ? half : half + token / 4 % 2 * kChunk);
    }
    if constexpr (kStride == 128) return static_cast<u32>(token % 8 * kChunk);
    return 0;
  }
  static constexpr bool kInOneFormat =
      kConfig.key_parts.none() && kConfig.value_parts.none() && kKeyRow == 32 && kValueRow == 32;

  // Prefetches the first round to L2, within the sequence's capacity, before the wait for the
  // previous launch. It reads neither codes nor, reliably, the length, which that launch may still
  // write: a wrong guess prefetches other codes. All threads, after place_of_block().
  VQ_DEVICE static void prefetch(const AttentionDecodeArgs& args, const AttentionWork<Plan>& work) {
    constexpr int kSector = 32;
    const i64 first = work.begin_by_hint(args);
    const i64 room = args.capacity - first;
    const i64 tokens = room < kTokens ? room : kTokens;
    const u8* const keys = rows_of(args.keys, block_z(), work.kv_head) + first * kKeyRow;
    const u8* const values = rows_of(args.values, block_z(), work.kv_head) + first * kValueRow;
    const i64 bytes = tokens * most(kKeyRow, kValueRow);
    for (int offset = thread_index() * kSector; offset < bytes;
         offset += kConfig.threads * kSector) {
      if (kAlike || offset < tokens * kKeyRow) prefetch_global(keys + offset);
      if (kAlike || offset < tokens * kValueRow) prefetch_global(values + offset);
    }
  }

  // Starts at tokens [begin, end) of `work`'s sequence; `begin` is a multiple of a step.
  VQ_DEVICE void point_at(const AttentionDecodeArgs& args, const AttentionWork<Plan>& work) {
    keys_ = Rows<kKeyRow>(args.keys, work.batch, work.kv_head);
    values_ = Rows<kValueRow>(args.values, work.batch, work.kv_head);
    if constexpr (kPaged) table_ = args.keys.pages + work.batch * args.keys.page_columns;
    end_ = work.end;
    next_ = work.begin + warp() * kBytesStep;
  }
  // One warp: the first round of all warps.
  VQ_DEVICE void ask_for_first() const {
    const int begin = next_ - warp() * kBytesStep;
    Pages pages[kWarps];
    VQ_UNROLL
    for (int i = 0; i < kWarps; ++i) load_pages(pages[i], begin + i * kBytesStep);
    VQ_UNROLL
    for (int i = 0; i < kWarps; ++i) copy_step(0, i, begin + i * kBytesStep, pages[i]);
  }
  // All warps: this warp's part of the other rounds, whose page numbers are loaded before. Where
  // these are not few it is asked for behind a sync_block, so that the first round comes first.
  struct FirstPages {
    Pages stages[kPlaces - 1];
  };
  VQ_DEVICE FirstPages load_first_pages() {
    next_ += kTokens;
    FirstPages pages = {};
    VQ_UNROLL
    for (int i = 0; i < kPlaces - 1; ++i) load_pages(pages.stages[i], next_ + i * kTokens);
    return pages;
  }
  VQ_DEVICE bool others_are_few() const { return end_ - (next_ - warp() * kBytesStep) <= kTokens; }
  VQ_DEVICE void ask_for_others(const FirstPages& pages) {
    copy_async_commit();
    VQ_UNROLL
    for (int i = 0; i < kPlaces - 1; ++i) ask((i + 1) * kRoundBytes, pages.stages[i]);
    load_pages(ahead_, next_);
  }
  // The warp that has asked for the first round, before a sync_block.
  VQ_DEVICE static void await_first() { copy_async_wait<kPlaces - 1>(); }

  // Shared-memory addresses of this round's codes: of keys, and of values.
  VQ_DEVICE u32 keys() const {
    return shared_place(shared_memory()) + static_cast<u32>(kAt.rounds) + place_;
  }
  VQ_DEVICE u32 values() const { return keys() + kKeyBytes; }
  // And as pointers.
  VQ_DEVICE const u8* key_rows() const { return shared_part<u8>(kAt.rounds) + place_; }
  VQ_DEVICE const u8* value_rows() const { return key_rows() + kKeyBytes; }

  // Advances to the next round.
  VQ_DEVICE void go_on() { place_ = following(place_); }
  // Waits for this lane's copies of the round. All lanes of a warp with tokens of this round.
  VQ_DEVICE static void wait() {
    copy_async_wait<kPlaces - 2>();
    sync_warp();
  }
  // All lanes of a warp have read their part of the previous round and waited.
  VQ_DEVICE void refill() {
    ask(given_, ahead_);
    load_pages(ahead_, next_);
    given_ = following(given_);
  }

 private:
  VQ_DEVICE static const u8* rows_of(const QuantizedArgs& tensor, int batch, int kv_head) {
    return reinterpret_cast<const u8*>(tensor.codes + batch * tensor.batch_stride +
                                       kv_head * tensor.head_stride);
  }
  // The rows of keys or values of a head, from this lane's part of its own first one on.
  template <int kBytes>
  struct Rows {
    using Own = Copies<kBytes>;
    Rows() = default;
    VQ_DEVICE Rows(const QuantizedArgs& tensor, int batch, int kv_head)
        : page_bytes(static_cast<u32>(tensor.batch_stride) * 4u),
          row_bytes(kPaged ? static_cast<u32>(tensor.token_stride) * 4u : kBytes) {
      first =
          wide_step(rows_of(tensor, kPaged ? 0 : batch, kv_head) + lane() % Own::kOfRow * kChunk,
                    static_cast<u32>(Own::own_row() % kPage), row_bytes);
    }
    const u8* first;  // in page 0
    u32 page_bytes;
    u32 row_bytes;  // from a row to the next of a page
  };

  VQ_DEVICE static u32 following(u32 place) {
    return place < (kPlaces - 1) * kRoundBytes ? place + kRoundBytes : 0;
  }
  // Page numbers of this lane's rows of the step from token `first` on; past the sequence's last
  // that again. What has no tokens has no page.
  VQ_DEVICE void load_pages(Pages& pages, int first) const {
    if (!kPaged || first >= end_) return;
    const int last = (end_ - 1) / kPage;
    VQ_UNROLL
    for (int i = 0; i < static_cast<int>(sizeof(Pages) / 4); ++i) {
      const bool of_keys = i < KeyCopies::kPages;
      const int own = of_keys ? KeyCopies::own_row() : ValueCopies::own_row();
      const int apart = of_keys ? KeyCopies::kRowsOfPage : ValueCopies::kRowsOfPage;
      const int place = of_keys ? i : i - KeyCopies::kPages;
      const int token = kPage < kBytesStep ? first + own + place * apart : first;
      const auto number = static_cast<int>(static_cast<u32>(token) / kPage);
      pages[i] = static_cast<u32>(load_global(table_ + (number < last ? number : last)));
    }
  }

  // The warp's next step, whose pages these are; a group of copies, of none where there is no step.
  VQ_DEVICE void ask(u32 place, const Pages& pages) {
    copy_step(place, warp(), next_, pages);
    copy_async_commit();
    next_ += kTokens;
  }
  // Copies the rows of a warp's step from token `first` on, if there is one. A page has room for
  // rows past the sequence's last, which do not count; a cache without pages may not.
  VQ_DEVICE void copy_step(u32 place, int of_warp, int first, const Pages& pages) const {
    if (first >= end_) return;
    u8* const round = shared_part<u8>(kAt.rounds) + place;
    u8* const key_step = round + of_warp * kKeyStep;
    u8* const value_step = round + kKeyBytes + of_warp * kValueStep;
    if constexpr (kAlike && !KeyCopies::kDense) {  // rows of both at once share their addresses
      for_each_row<kKeyRow>(first, [&](int i, int to) {
        copy<kKeyRow>(key_step + to, to, row_at(keys_, first, i, pages[KeyCopies::page_of(i)]));
        copy<kKeyRow>(value_step + to, to, row_at(values_, first, i, pages[KeyCopies::page_of(i)]));
      });
    } else {
      copy_rows<0>(key_step, keys_, first, pages);
      copy_rows<kValuePages>(value_step, values_, first, pages);
    }
  }
  // Copies rows of one kind, whose pages begin with number kFirstPage.
  template <int kFirstPage, int kBytes>
  VQ_DEVICE void copy_rows(u8* step, const Rows<kBytes>& rows, int first,
                           const Pages& pages) const {
    using Own = Copies<kBytes>;
    if constexpr (!Own::kDense) {
      for_each_row<kBytes>(first, [&](int i, int to) {
        copy<kBytes>(step + to, to, row_at(rows, first, i, pages[kFirstPage + Own::page_of(i)]));
      });
      return;
    }
    VQ_UNROLL
    for (int i = 0; i < Own::kCopies; ++i) {
      const int byte = (i * 32 + lane()) * kPiece;
      if (!kPaged && byte >= (end_ - first) * kBytes) continue;
      copy_piece(step + byte, dense_at<kFirstPage>(rows, first, byte, pages));
    }
  }
  // Where byte `byte` of a step of dense rows comes from.
  template <int kFirstPage, int kBytes>
  VQ_DEVICE static const u8* dense_at(const Rows<kBytes>& rows, int first, int byte,
                                      const Pages& pages) {
    if constexpr (!kPaged) return rows.first + i64{first} * kBytes + byte;
    constexpr int kPages = Copies<kBytes>::kPages;
    static_assert(kPages <= 2, "a page of 16 tokens at least");
    const int row = byte / kBytes;
    const u32 page = pages[kFirstPage + (kPages == 2 && row >= kPage ? kPages - 1 : 0)];
    const u8* const of_page = wide_step(rows.first, page, rows.page_bytes);
    return wide_step(of_page, static_cast<u32>(first + row) % kPage, rows.row_bytes) +
           byte % kBytes;
  }
  // Calls each(i, to) for the rows that this lane copies of a step: number `i` goes to byte `to`.
  template <int kBytes, class Each>
  VQ_DEVICE void for_each_row(int first, Each each) const {
    using Own = Copies<kBytes>;
    const int own = Own::own_row() * Own::kStride + lane() % Own::kOfRow * kChunk;
    const int to = static_cast<int>(static_cast<u32>(own) ^ turned<kBytes>(Own::own_row()));
    VQ_UNROLL
    for (int i = 0; i < Own::kCopies; ++i) {
      if (!kPaged && first + Own::own_row() + i * Own::kApart >= end_) continue;
      each(i, to + i * (Own::kApart * Own::kStride));
    }
  }
  template <int kBytes>
  VQ_DEVICE static const u8* row_at(const Rows<kBytes>& rows, int first, int copy, u32 page) {
    constexpr int kApart = Copies<kBytes>::kApart;
    if constexpr (!kPaged) return rows.first + i64{first + copy * kApart} * kBytes;
    const u8* const of_page = wide_step(rows.first, page, rows.page_bytes);
    if constexpr (kPage < kBytesStep) {
      const int further = copy * kApart % kPage;
      return further == 0 ? of_page : wide_step(of_page, static_cast<u32>(further), rows.row_bytes);
    }
    const u8* const own = wide_step(of_page, static_cast<u32>(first) % kPage, rows.row_bytes);
    return copy == 0 ? own : wide_step(own, static_cast<u32>(copy * kApart), rows.row_bytes);
  }
  // Copies this lane's part of a row of kBytes to byte `place` of a step, at `to`; pieces of 16
  // bytes may be turned.
  template <int kBytes>
  VQ_DEVICE static void copy(u8* to, int place, const u8* from) {
    constexpr int kPieces = kBytes / Copies<kBytes>::kOfRow / kPiece;
    for_each_number<0, kPieces>([&](auto i) {
      constexpr int kFrom = i * kPiece;
      copy_piece(to + ((place ^ kFrom) - place), from + kFrom);
    });
  }
  VQ_DEVICE static void copy_piece(u8* to, const u8* from) {
    using Words = EntryWords<kPiece / 2>;
    copy_async(reinterpret_cast<Words*>(to), reinterpret_cast<const Words*>(from));
  }

  Rows<kKeyRow> keys_;
  Rows<kValueRow> values_;
  const i32* table_;
  int end_;
  int next_;                   // the first token of the warp's step that is asked for next
  u32 place_ = 0, given_ = 0;  // bytes to the place that is read, and to the one that is free
  Pages ahead_ = {};           // pages of the step that replaces it
};

}  // namespace vq
