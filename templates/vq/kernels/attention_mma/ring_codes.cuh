// Codes of mma attention through shared memory, for long rows: registers hold too few of the next
// steps to keep memory busy with paged rows, and lanes' words of a row share sectors. Each warp has
// a pipeline whose stages are the key and value rows of one turn in the cache's layout, filled by
// bulk copies: one if rows are contiguous, else one per row. A stage is refilled once all of it is
// read.
//
// In a paged cache a stage's page numbers are loaded one stage before its copies are issued.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/kernels/attention_mma/plan.h>
#include <vq/kernels/attention_mma/fragment_rows.cuh>
#include <vq/ops/warp_softmax.cuh>

namespace vq {

template <class Plan, class KeyRows, class ValueRows, class Group>
class RingCodes {
 public:
  using Softmax = WarpSoftmax<Plan>;
  using Keys = typename KeyRows::Stored;
  using Values = typename ValueRows::Stored;
  static constexpr auto kConfig = Plan::config();
  static constexpr bool kRing = true;
  static constexpr int kTokens = kConfig.step_tokens;
  static constexpr int kTiles = Softmax::kTiles;
  static constexpr bool kPaged = Keys::kPaged;
  static constexpr bool kGrouped = grouped_keys(kConfig);
  static constexpr int kSteps = steps_in_turn(kConfig);
  static constexpr int kRows = token_tile(kConfig);  // rows per stage, of keys and of values
  static constexpr int kTurn = turn_tokens(kConfig);
  static constexpr int kStages = kConfig.code_stages;
  // Tokens with a multiple of which first steps begin.
  static constexpr int kAligned = kConfig.batch_invariant ? kTurn : kGrouped || kPaged ? kRows : 1;

  using Step = StepCodes<KeyRows, ValueRows, kTiles>;

  // This warp's first step, maybe before tokens that count.
  VQ_DEVICE static int first_step(int begin) { return begin - begin % kAligned + warp() * kRows; }
  VQ_DEVICE static int base_of(int first, int) { return first; }

  // Once, before the others and a sync_warp.
  VQ_DEVICE void begin() const {
    if (lane() == 0) {
      VQ_UNROLL
      for (int i = 0; i < kStages; ++i) bulk_barrier_begin(barrier(i));
      store_shared(counter(), 0u);
    }
  }

  // The sequence's rows, which are `end` at least, and whole groups.
  VQ_DEVICE void point_at_rows(const AttentionDecodeArgs& args, const AttentionWork<Plan>& work,
                               int end) {
    last_ = (kGrouped ? round_up(end, kRows) : end) - 1;
    if constexpr (kPaged) {
      dense_ = args.keys.token_stride == Keys::kWords && args.values.token_stride == Values::kWords;
      table_ = Keys::table(args.keys, work.batch);
      keys_ = Side(args.keys, args.keys.codes + work.kv_head * args.keys.head_stride);
      values_ = Side(args.values, args.values.codes + work.kv_head * args.values.head_stride);
    } else {
      keys_ = Side(args.keys, Keys::at(args.keys, work.batch, work.kv_head, 0));
      values_ = Side(args.values, Values::at(args.values, work.batch, work.kv_head, 0));
    }
  }

  // Starts loading page numbers of a paged cache; call it before load_first().
  VQ_DEVICE void ask_pages(int first) {
    if constexpr (kPaged) {
      VQ_UNROLL
      for (int i = 0; i < kStages; ++i) pages_[i] = page_of_lane(first + i * kTurn);
    }
  }

  // Asks for the first stages, of the turns from `first` on.
  VQ_DEVICE void load_first(Step&, int first, int end) {
    VQ_UNROLL
    for (int i = 0; i < kStages; ++i) ask(i, pages_[i], first + i * kTurn, end);
    if constexpr (kPaged) ahead_ = page_of_lane(first + kStages * kTurn);
  }

  // Waits for the next stage, and for all lanes to have done with the last one.
  VQ_DEVICE void await() const {
    bulk_barrier_wait(barrier(slot_), phase_);
    sync_warp();
  }

  // Step number kStep of the stage.
  template <int kStep>
  VQ_DEVICE void read(Step& to) const {
    const u32* const keys = slot(slot_) + KeyRows::Share::first_word(place_in_group());
    const u32* const values =
        slot(slot_) + kKeyWords + ValueRows::Share::first_word(Softmax::share());
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const int key = kStep * kTokens + Softmax::token_of(0, tile, lane_group());
      KeyRows::Share::template load<1>(
          keys + key * Keys::kWords, place_in_group(), [&](int) -> u32* { return to.keys[tile]; },
          LoadShared());
      VQ_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int value = kStep * kTokens + Softmax::token_of(0, tile, place_in_group() * 2 + i);
        ValueRows::Share::template load<1>(
            values + value * Values::kWords, Softmax::share(),
            [&](int) -> u32* { return to.values[tile][i]; }, LoadShared());
      }
    }
  }

  // The scales and zeros of an octet of channels, of the group of keys that the stage is.
  VQ_DEVICE void read_scales(u32 (&words)[8], int octet) const {
    constexpr int kOfRow = Group::kOfRow;
    constexpr int kWidth = kOfRow % 4 == 0 ? 4 : kOfRow % 2 == 0 ? 2 : 1;
    VQ_UNROLL
    for (int i = 0; i < 8; i += kWidth) {
      const int channel = octet * 8 + i;
      load_words<kWidth>(
          words + i,
          slot(slot_) + channel / kOfRow * Keys::kWords + Group::kFirstScale + channel % kOfRow,
          LoadShared());
    }
  }

  // Once the stage is read, of the turn from `first` on: asks for the one that takes its place.
  VQ_DEVICE void ask_next(int first, int end) {
    const int next = first + kStages * kTurn;
    ask(slot_, ahead_, next, end);
    if constexpr (kPaged) ahead_ = page_of_lane(next + kTurn);
    if (++slot_ < kStages) return;
    slot_ = 0;
    phase_ ^= 1u;
  }

 private:
  static constexpr int kKeyWords = kRows * Keys::kWords;
  static constexpr bool kInOnePage = kPaged && Keys::kPageTokens % kRows == 0;
  static_assert(kRows <= 32, "");

  // The rows of keys or values of a head.
  struct Side {
    Side() = default;
    VQ_DEVICE Side(const QuantizedArgs& tensor, const u32* rows)
        : rows(rows),
          page_bytes(static_cast<u32>(tensor.batch_stride) * 4u),
          token_words(static_cast<i32>(tensor.token_stride)) {}
    const u32* rows;  // the first, in page 0
    u32 page_bytes;
    i32 token_words;  // from a row to the next of a page
  };

  VQ_DEVICE static u32* slot(int number) {
    return shared_part<u32>(fragments_layout(kConfig).ring) +
           (warp() * kStages + number) * stage_words(kConfig);
  }
  VQ_DEVICE static u64* barrier(int number) { return beside() + number; }
  VQ_DEVICE static u32* counter() { return reinterpret_cast<u32*>(beside() + kStages); }
  VQ_DEVICE static u64* beside() {
    return shared_part<u64>(fragments_layout(kConfig).ring_barriers) + warp() * (kStages + 1);
  }

  // Begins to copy the rows of the turn from `first` on, where there is one. All lanes. What they
  // have read of the slot may still be on its way to them; the counter, always 0, comes behind it.
  VQ_DEVICE void ask(int number, u32 pages, int first, int end) const {
    if (first >= end) return;
    u32* const to = slot(number);
    const bool together = (!kPaged || (kInOnePage && dense_)) && first + kRows <= last_ + 1;
    if constexpr (!kGrouped) sync_warp();  // else take_group() has one behind the reads
    if (lane() == 0) {
      const u32 zero = count_shared(counter(), 0u);
      bulk_barrier_expect(barrier(number), static_cast<u32>(stage_words(kConfig) * 4) + zero);
    }
    if (!together) sync_warp();  // no lane copies before the counter has come
    if (together) {
      if (lane() != 0) return;
      copy<Keys>(to, row_at<Keys>(keys_, pages, first), kRows, number);
      copy<Values>(to + kKeyWords, row_at<Values>(values_, pages, first), kRows, number);
      return;
    }
    if (lane() >= kRows) return;
    const int token =
        first + lane() < last_ ? first + lane() : last_;  // rows past the last repeat it
    copy<Keys>(to + lane() * Keys::kWords, row_at<Keys>(keys_, pages, token), 1, number);
    copy<Values>(to + kKeyWords + lane() * Values::kWords, row_at<Values>(values_, pages, token), 1,
                 number);
  }
  template <class Rows>
  VQ_DEVICE static void copy(u32* to, const u32* from, int rows, int number) {
    copy_bulk(reinterpret_cast<u8*>(to), reinterpret_cast<const u8*>(from),
              static_cast<u32>(rows * Rows::kWords * 4), barrier(number));
  }

  // Address of a token's row in the page whose number this lane has.
  template <class Rows>
  VQ_DEVICE static const u32* row_at(const Side& side, u32 page, int token) {
    if constexpr (kPaged) {
      const auto in_page = static_cast<int>(static_cast<u32>(token) % Keys::kPageTokens);
      return wide_step(side.rows, page, side.page_bytes) + in_page * side.token_words;
    } else {
      return side.rows + static_cast<u32>(Rows::groups(token));
    }
  }

  // Page number of row lane() of a turn; rows past the last repeat it.
  VQ_DEVICE u32 page_of_lane(int first) const {
    const int token = first + lane() % kRows < last_ ? first + lane() % kRows : last_;
    return static_cast<u32>(load_global(table_ + static_cast<u32>(token) / Keys::kPageTokens));
  }

  Side keys_;
  Side values_;
  int last_;       // row of the sequence that is read
  int slot_ = 0;   // stage that is read
  u32 phase_ = 0;  // phase of its barrier
  // Set for a paged cache.
  bool dense_ = false;  // rows of a page follow each other
  const i32* table_;
  u32 pages_[kStages] = {};  // pages of this lane's row in the first stages
  u32 ahead_ = 0;            // and of the one that is asked for next
};

}  // namespace vq
