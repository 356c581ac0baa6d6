// The codes of a block's tokens by rounds, for dataflow attention_bytes: in a round each warp has a
// step of tokens, and all of it comes by two bulk copies, of keys and of values, to one of
// rounds_in_flight places in shared memory. Copies of that size read device memory faster than
// those of a warp do, and codes on their way take no registers.
//
//   wait        for a round, by its place's barrier, whose phases are the rounds that come there
//   give back   a warp that has read its part counts
//   refill      the last of a place's readers asks for the round that takes it next, a little
//               later, when its count has come back
//
// In a cache in pages, each lane of the asking warp copies the round's rows of one page. Where rows
// of a page do not follow each other, it copies single rows. A warp loads the page numbers of the
// next round that it may ask for when it gives a round back.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/kernels/attention_bytes/plan.h>
#include <vq/ops/attention_work.cuh>

namespace vq {

template <class Plan>
class CodeRounds {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr AttentionBytesShared kAt = bytes_layout(kConfig);
  static constexpr int kWarps = kConfig.threads / 32;
  static constexpr int kPlaces = kConfig.rounds_in_flight;
  static constexpr int kTokens = kConfig.threads;  // of a round
  static constexpr int kRowBytes = code_row_bytes(kConfig);
  static constexpr int kKeyBytes = kTokens * kRowBytes;
  static constexpr int kRoundBytes = static_cast<int>(round_bytes(kConfig));
  static constexpr bool kPaged = kConfig.page_tokens > 0;
  static constexpr int kPage = kPaged ? kConfig.page_tokens : kTokens;
  // The most pages that a round touches; it begins at a multiple of a step.
  static constexpr int kPages =
      ceil_div(kTokens + (kPage > kBytesStep ? kPage - kBytesStep : 0), kPage);
  static_assert(kPages <= 32, "");

  // One thread, before a sync_block for all others.
  VQ_DEVICE static void begin() {
    VQ_UNROLL
    for (int place = 0; place < kPlaces; ++place) {
      bulk_barrier_begin(barrier(place));
      store_shared(readers(place), 0u);
    }
  }

  // All threads, before the wait for the last launch, of a block whose tokens begin with the first:
  // brings a round to the second-level cache, as far as the sequence has room for one. Nothing is
  // read: the last launch may still write there.
  VQ_DEVICE static void prefetch(const AttentionDecodeArgs& args, int kv_head) {
    static_assert(kConfig.splits == 1, "");
    constexpr int kSector = 32;
    const i64 bytes = (args.capacity < kTokens ? args.capacity : kTokens) * kRowBytes;
    for (int at = thread_index() * kSector; at < bytes; at += kConfig.threads * kSector) {
      prefetch_global(rows_of(args.keys, block_z(), kv_head) + at);
      prefetch_global(rows_of(args.values, block_z(), kv_head) + at);
    }
  }

  // Of tokens [begin, end) of the sequence that `work` has.
  VQ_DEVICE void point_at(const AttentionDecodeArgs& args, const AttentionWork<Plan>& work) {
    if constexpr (kPaged) {
      key_rows_ = Rows(args.keys, work.kv_head);
      value_rows_ = Rows(args.values, work.kv_head);
      table_ = args.keys.pages + work.batch * args.keys.page_columns;
    } else {
      keys_ = rows_of(args.keys, work.batch, work.kv_head);
      values_ = rows_of(args.values, work.batch, work.kv_head);
    }
    end_ = work.end;
    begin_ = work.begin;
    rounds_ = work.begin < work.end ? (work.end - work.begin + kTokens - 1) / kTokens : 0;
  }
  // The warp of the thread that began, or any behind the barrier.
  VQ_DEVICE void ask_for_first() const {
    if constexpr (kPaged) {
      if (rounds_ == 0) return;  // such a sequence has no page
      u32 pages[kPlaces];
      VQ_UNROLL
      for (int round = 0; round < kPlaces; ++round) pages[round] = page_of_lane(round);
      VQ_UNROLL
      for (int round = 0; round < kPlaces; ++round) {
        if (round < rounds_) ask_in_pages(round, round, pages[round]);
      }
      return;
    }
    if (lane() != 0) return;
    VQ_UNROLL
    for (int round = 0; round < kPlaces; ++round) {
      if (round < rounds_) ask_for(round, round);
    }
  }

  // Where the codes of this round stand in shared memory: of keys, and of values.
  VQ_DEVICE u32 keys() const {
    return shared_place(shared_memory()) + static_cast<u32>(kAt.rounds) + offset_;
  }
  VQ_DEVICE u32 values() const { return keys() + kKeyBytes; }

  // All lanes of a warp, which has tokens of this round.
  VQ_DEVICE void wait() const { bulk_barrier_wait(barrier(place_), parity_); }
  VQ_DEVICE void go_on() {
    ++round_;
    ++place_;
    offset_ += kRoundBytes;
    if (place_ < kPlaces) return;
    place_ = 0;
    offset_ = 0;
    parity_ ^= 1u;
  }

  // All lanes of a warp that has read its part of the round before this one.
  VQ_DEVICE void give_back() {
    before_ = kNobody;
    next_ = round_ - 1 + kPlaces;
    if (next_ >= rounds_) return;
    if constexpr (kPaged) ahead_ = page_of_lane(next_);
    given_ = place_ == 0 ? kPlaces - 1 : place_ - 1;
    sync_warp();
    if (lane() == 0) before_ = count_shared(readers(given_), kWarps - 1);
  }
  // Likewise, later, when the count has come back. Where a round is left to ask for, the warp has a
  // step behind the one that it gave back.
  VQ_DEVICE void refill() const {
    if constexpr (kPaged) {
      if (shuffle(before_, 0) == kWarps - 1) ask_in_pages(next_, given_, ahead_);
      return;
    }
    if (before_ == kWarps - 1) ask_for(next_, given_);
  }

 private:
  VQ_DEVICE static u64* barrier(int place) { return shared_part<u64>(kAt.barriers) + place; }
  VQ_DEVICE static u32* readers(int place) { return shared_part<u32>(kAt.readers) + place; }
  VQ_DEVICE static const u8* rows_of(const QuantizedArgs& tensor, int batch, int kv_head) {
    return reinterpret_cast<const u8*>(tensor.codes + batch * tensor.batch_stride +
                                       kv_head * tensor.head_stride);
  }

  VQ_DEVICE void ask_for(int round, int place) const {
    const int first = begin_ + round * kTokens;
    const int tokens = end_ - first < kTokens ? end_ - first : kTokens;
    const u32 bytes = static_cast<u32>(tokens) * kRowBytes;
    const i64 skipped = i64{first} * kRowBytes;
    u8* const to = shared_part<u8>(kAt.rounds) + place * kRoundBytes;
    bulk_barrier_expect(barrier(place), 2 * bytes);
    copy_bulk(to, keys_ + skipped, bytes, barrier(place));
    copy_bulk(to + kKeyBytes, values_ + skipped, bytes, barrier(place));
  }

  // The rows of keys or values of a head, in pages.
  struct Rows {
    Rows() = default;
    VQ_DEVICE Rows(const QuantizedArgs& tensor, int kv_head)
        : first(reinterpret_cast<const u8*>(tensor.codes + kv_head * tensor.head_stride)),
          page_bytes(static_cast<u32>(tensor.batch_stride) * 4u),
          row_bytes(static_cast<i32>(tensor.token_stride) * 4) {}
    const u8* first;  // in page 0
    u32 page_bytes;
    i32 row_bytes;  // from a row to the next of a page
  };

  // Page number of the lane()-th page of the round; lanes past the last page repeat that one.
  VQ_DEVICE u32 page_of_lane(int round) const {
    const int number = (begin_ + round * kTokens) / kPage + lane();
    const int last = (end_ - 1) / kPage;
    return static_cast<u32>(load_global(table_ + (number < last ? number : last)));
  }
  // All lanes, each with the number of a page of the round.
  VQ_DEVICE void ask_in_pages(int round, int place, u32 page) const {
    const int first = begin_ + round * kTokens;
    const int tokens = end_ - first < kTokens ? end_ - first : kTokens;
    const int skipped = first % kPage;  // of the first page
    if (lane() == 0) {
      bulk_barrier_expect(barrier(place), 2 * static_cast<u32>(tokens) * kRowBytes);
    }
    sync_warp();
    if (key_rows_.row_bytes == kRowBytes && value_rows_.row_bytes == kRowBytes) {
      const int of_page = lane() * kPage - skipped;  // token of the round with which it begins
      const int begin = of_page > 0 ? of_page : 0;
      const int end = of_page + kPage < tokens ? of_page + kPage : tokens;
      if (begin < end) copy(place, page, begin - of_page, begin, end - begin);
      return;
    }
    for (int row = lane(); row < kTokens; row += 32) {
      const u32 own = shuffle(page, (skipped + row) / kPage);
      if (row < tokens) copy(place, own, (skipped + row) % kPage, row, 1);
    }
  }
  // So many rows that follow each other, from row `from` of a page to row `row` of the round.
  VQ_DEVICE void copy(int place, u32 page, int from, int row, int rows) const {
    u8* const to = shared_part<u8>(kAt.rounds) + place * kRoundBytes + row * kRowBytes;
    const u32 bytes = static_cast<u32>(rows) * kRowBytes;
    const auto at = [&](const Rows& of) {
      return wide_step(of.first, page, of.page_bytes) + i64{from} * of.row_bytes;
    };
    copy_bulk(to, at(key_rows_), bytes, barrier(place));
    copy_bulk(to + kKeyBytes, at(value_rows_), bytes, barrier(place));
  }

  const u8* keys_;
  const u8* values_;
  int begin_, end_, rounds_;
  int round_ = 0, place_ = 0;
  u32 offset_ = 0, parity_ = 0;
  // Of the place that was given back: the round that is to come there, and the warps before this
  // one that gave it back; in one lane, kNobody in others.
  static constexpr u32 kNobody = ~0u;
  int next_ = 0, given_ = 0;
  u32 before_ = kNobody;
  // Of a cache in pages.
  Rows key_rows_, value_rows_;
  const i32* table_;
  u32 ahead_ = 0;  // the lane's page of round next_
};

}  // namespace vq
