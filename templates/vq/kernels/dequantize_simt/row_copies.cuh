// Copies rows of codes to shared memory with all threads, a step of tokens of one sequence and head
// at a time. A thread copies the same piece of each step's rows, which avoids divisions; a piece is
// 16 bytes if rows are whole aligned pieces. In a paged cache page numbers are loaded a step ahead
// of the codes.
#pragma once

#include <vq/ops/cache_rows.cuh>

namespace vq {

// `Rows` is CacheRows of a share that is the head.
template <class Rows, int kStep>
class RowCopies {
 public:
  using Stored = typename Rows::Stored;
  static constexpr int kWords = Rows::kWords;

  // Copies tokens [first, first + count) of a sequence; starts loading the first step's page
  // numbers.
  VQ_DEVICE RowCopies(const QuantizedArgs& tensor, int batch, int kv_head, int first, int count)
      : tensor_(tensor), first_(first), count_(count), work_{batch, kv_head, {first + count}} {
    if constexpr (Rows::kFormat.scale_tokens > 0) return;
    const int row = thread_index() / kAcross;
    row_ = row < kAtOnce ? row : kStep;
    piece_ = thread_index() % kAcross;
    if constexpr (Stored::kPaged) {
      table_ = Stored::table(tensor, batch);
      from_ = tensor.codes + kv_head * tensor.head_stride + Stored::word(Stored::kFirstWord);
    } else {
      from_ = Stored::at(tensor, batch, kv_head, i64{0});
    }
    const auto words = reinterpret_cast<u64>(tensor.codes) / 4 |
                       static_cast<u64>(tensor.batch_stride) |
                       static_cast<u64>(tensor.head_stride) | static_cast<u64>(tensor.token_stride);
    whole_ = words % kPiece == 0;
    if constexpr (Rows::kFormat.part.in_parts) {
      whole_ = whole_ && (Stored::kFirstWord | Stored::kStoredWords) % kPiece == 0;
    }
    ask(0);
  }

  // Queues the rows of tokens first + [begin, begin + kStep), those that exist, to rows of kWords
  // from `to` on. Step after step, the first one being 0.
  VQ_DEVICE void stage(int begin, u32* to) {
    if constexpr (Rows::kFormat.scale_tokens > 0) {
      const int left = count_ - begin;
      Rows::stage(tensor_, work_, 0, first_ + begin, left < kStep ? left : kStep, to);
      return;
    }
    VQ_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      if (!copies(begin, turn)) continue;
      const u32* const from = row_at(begin, turn);
      u32* const row = to + (row_ + turn * kAtOnce) * kWords;
      VQ_UNROLL
      for (int piece = 0; piece < kPieces; piece += kAcross) {
        const int word = (piece_ + piece) * kPiece;
        if (kPieces % kAcross == 0 || word < kWords) copy(row + word, from + Stored::word(word));
      }
    }
    ask(begin + kStep);
  }

 private:
  static constexpr CodeLayout kLayout = Stored::kLayout;
  // Words that follow each other: of a row, or of its run in a group of rows.
  static constexpr int kRun = kLayout.rows == 1 ? 4 : kLayout.words;
  static constexpr int kPiece = kWords % 4 == 0 && kRun == 4  ? 4
                                : kWords % 2 == 0 && kRun > 1 ? 2
                                                              : 1;
  using Piece = EntryWords<2 * kPiece>;  // u32, U32x2 or U32x4
  static constexpr int kPieces = kWords / kPiece;
  // Threads side by side on a row, rows at once, and how often for a step.
  static constexpr int kAcross = kPieces < Rows::kThreads ? kPieces : Rows::kThreads;
  static constexpr int kAtOnce = Rows::kThreads / kAcross;
  static constexpr int kTurns = ceil_div(kStep, kAtOnce);

  // Has this thread a row of the step from `begin` on?
  VQ_DEVICE bool copies(int begin, int turn) const {
    const int row = row_ + turn * kAtOnce;
    return row < kStep && begin + row < count_;
  }
  VQ_DEVICE u32 token(int begin, int turn) const {
    return static_cast<u32>(first_ + begin + row_ + turn * kAtOnce);
  }
  VQ_DEVICE void ask(int begin) {
    if constexpr (Stored::kPaged) {
      VQ_UNROLL
      for (int turn = 0; turn < kTurns; ++turn) {
        if (!copies(begin, turn)) continue;
        pages_[turn] = load_global(table_ + token(begin, turn) / Stored::kPageTokens);
      }
    }
  }
  VQ_DEVICE const u32* row_at(int begin, int turn) const {
    const u32 number = token(begin, turn);
    if constexpr (Stored::kPaged) {
      return from_ + Stored::page_words(tensor_, pages_[turn]) +
             Stored::paged_row(tensor_, static_cast<int>(number % Stored::kPageTokens));
    } else {
      return from_ + Stored::row(i64{number});
    }
  }
  VQ_DEVICE void copy(u32* to, const u32* from) const {
    if (whole_) {
      copy_async(reinterpret_cast<Piece*>(to), reinterpret_cast<const Piece*>(from));
      return;
    }
    VQ_UNROLL
    for (int i = 0; i < kPiece; ++i) copy_async(to + i, from + i);
  }

  const QuantizedArgs& tensor_;
  const u32* from_;   // rows of the head
  const i32* table_;  // page table of a paged cache
  int first_;
  int count_;
  struct {
    int batch, kv_head;
    struct {
      int recent_tokens;
    } raw;
  } work_;     // Rows' interface, for coded tokens alone
  int row_;    // this thread's first of a step, kStep where it has none
  int piece_;  // piece within its row
  bool whole_;
  i32 pages_[kTurns] = {};
};

}  // namespace vq
