// The codes that a lane of mma attention reads, in steps of kTokens tokens: of keys, token g of
// each tile; of values, tokens 2c and 2c + 1. If the layout groups tokens, a lane's tokens of some
// tiles are contiguous (joined_tiles), and one access loads words of several.
//
// In a paged cache a step is aligned to its tokens, so that its rows lie in one page or in kPages
// whole ones. While a warp works on a step, the next one's codes load to registers, those after it
// to L2, one row per lane, and the page numbers of the third are loaded.
//
// If groups of keys have scales, a warp takes up to two steps of a group in turn, and the first
// loads the scales.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/kernels/attention_mma/fragment_rows.cuh>
#include <vq/ops/group_query.cuh>
#include <vq/ops/warp_softmax.cuh>

namespace vq {

template <class Plan, class KeyRows, class ValueRows, class Group>
class CacheCodes {
 public:
  using Softmax = WarpSoftmax<Plan>;
  using Keys = typename KeyRows::Stored;
  using Values = typename ValueRows::Stored;
  static constexpr auto kConfig = Plan::config();
  static constexpr bool kRing = false;
  static constexpr int kTokens = kConfig.step_tokens;
  static constexpr int kTiles = Softmax::kTiles;
  // Tokens whose codes one access loads, and tokens of the larger group, to which steps are
  // aligned.
  static constexpr int kJoined = joined_tiles(kConfig);
  static constexpr int kKeysAtOnce =
      kJoined % keys_together(kConfig) == 0 ? keys_together(kConfig) : 1;
  static constexpr int kValuesAtOnce =
      2 * kJoined % values_together(kConfig) == 0 ? values_together(kConfig) : 1;
  static constexpr int kKeyGroup = Keys::kLayout.rows;
  static constexpr int kValueGroup = Values::kLayout.rows;
  static constexpr bool kPaged = Keys::kPaged;
  static constexpr int kPageTokens = kPaged ? Keys::kPageTokens : kTokens;
  static constexpr int kPages = kTokens > kPageTokens ? kTokens / kPageTokens : 1;  // per step
  static constexpr int kTurn = turn_tokens(kConfig);  // tokens to a warp's next step
  static constexpr int kGroup = kPaged                    ? kTokens
                                : kKeyGroup > kValueGroup ? kKeyGroup
                                                          : kValueGroup;
  // Without splits blocks fill the GPU, and the instructions of a prefetch cost more than they
  // save.
  static constexpr bool kPrefetches = kConfig.splits > 1;
  static constexpr bool kGrouped = grouped_keys(kConfig);
  static constexpr int kSteps = steps_in_turn(kConfig);
  // Tokens with a multiple of which first steps begin.
  static constexpr int kAligned = kConfig.batch_invariant ? kTurn
                                  : kGrouped              ? kSteps * kTokens
                                                          : kGroup;

  using Step = StepCodes<KeyRows, ValueRows, kTiles>;  // in flight

  // This warp's first step begins with a group, maybe before tokens that count.
  VQ_DEVICE static int first_step(int begin) {
    return begin - begin % kAligned + warp() * (kSteps * kTokens);
  }
  // Tokens from step number kStep of a turn to the warp's next step.
  template <int kStep>
  VQ_DEVICE static constexpr int to_next() {
    return kStep + 1 < kSteps ? kTokens : kTurn - (kSteps - 1) * kTokens;
  }
  // The rows that a step reads begin here: the last step of a sequence moves back to where kTokens
  // rows exist, of whole groups, and tokens before `first` do not count. In pages it stays, and
  // where a token has its place by its number alone.
  VQ_DEVICE static int base_of(int first, int end) {
    if constexpr (kPaged || kConfig.batch_invariant || kGrouped) return first;  // groups are whole
    const int last = round_up(end, kGroup) - kTokens;
    return first <= last ? first : last > 0 ? last : 0;
  }

  // The sequence's rows, which are `end` at least. Call it before the others.
  VQ_DEVICE void point_at_rows(const AttentionDecodeArgs& args, const AttentionWork<Plan>& work,
                               int end) {
    last_key_ = (end - 1) / kKeysAtOnce * kKeysAtOnce;
    last_value_ = (end - 1) / kValuesAtOnce * kValuesAtOnce;
    if constexpr (kPaged) {
      args_ = &args;
      table_ = Keys::table(args.keys, work.batch);
      last_page_ = (end - 1) / kPageTokens;
      const u32* const keys = args.keys.codes + work.kv_head * args.keys.head_stride;
      const u32* const values = args.values.codes + work.kv_head * args.values.head_stride;
      const int row = lane() % kTokens % kPageTokens;
      keys_ = keys + Keys::word(KeyRows::Share::first_word(place_in_group())) +
              Keys::paged_row(args.keys, key_row(0) % kPageTokens);
      values_ = values + Values::word(ValueRows::Share::first_word(Softmax::share())) +
                Values::paged_row(args.values, value_row(0, 0) % kPageTokens);
      key_page_ = static_cast<u32>(args.keys.batch_stride) * 4u;
      value_page_ = static_cast<u32>(args.values.batch_stride) * 4u;
      key_ahead_ = keys + Keys::paged_row(args.keys, row);
      value_ahead_ = values + Values::paged_row(args.values, row);
      dense_ = args.keys.token_stride == Keys::kStoredWords &&
               args.values.token_stride == Values::kStoredWords;
      find_scales([&](int row) { return Keys::paged_row(args.keys, row); });
      return;
    }
    find_scales(row_words);
    keys_ = Keys::at(args.keys, work.batch, work.kv_head, key_row(0)) +
            Keys::word(KeyRows::Share::first_word(place_in_group()));
    values_ = Values::at(args.values, work.batch, work.kv_head, value_row(0, 0)) +
              Values::word(ValueRows::Share::first_word(Softmax::share()));
  }

  // Starts loading page numbers of a paged cache; call it before load_first().
  VQ_DEVICE void ask_pages(int first) {
    if constexpr (kPaged) {
      now_ = page_of_lane(first);
      ahead_ = page_of_lane(first + to_next<0>());
    }
  }

  // Loads the codes of the step from `first` on, number kStep of a turn, of a sequence of at least
  // kTokens rows. Tiles are a constant number of words apart.
  template <int kStep>
  VQ_DEVICE void load(Step& to, int first, int end) {
    if constexpr (kPaged) {
      const int next = first + to_next<kStep>();
      load_paged<kStep>(to, first, end);
      now_ = ahead_;
      if constexpr (kPrefetches) {
        prefetch<Keys>(args_->keys, key_page_, key_ahead_, next);
        prefetch<Values>(args_->values, value_page_, value_ahead_, next);
      }
      ahead_ = page_of_lane(next + to_next<(kStep + 1) % kSteps>());
      return;
    }
    copy_scales<kStep>(keys_, first, row_words);
    if (kConfig.batch_invariant && first + kTokens > end) {
      load_clipped(to, first, end);
      return;
    }
    const int base = base_of(first, end);
    const u32* keys = keys_ + static_cast<u32>(Keys::groups(base));
    const u32* values = values_ + static_cast<u32>(Values::groups(base));
    load_tiles(
        to,
        [&](int tile) {
          const int words = Keys::row(Softmax::token_of(0, tile, 0));
          if constexpr (kKeyGroup == kGroup) return keys + words;
          return held(keys_, Keys::groups(base) + words, key_words(last_key_));
        },
        [&](int tile, int i) {
          const int words = Values::row(Softmax::token_of(0, tile, i));
          if constexpr (kValueGroup == kGroup) return values + words;
          return held(values_, Values::groups(base) + words, value_words(last_value_));
        });
  }

  // load() for the first step of any sequence: rows past the last repeat the last.
  VQ_DEVICE void load_first(Step& to, int first, int end) {
    if constexpr (kPaged) {
      load<0>(to, first, end);
      return;
    }
    copy_scales<0>(keys_, first, row_words);
    load_clipped(to, first, end);
  }

 private:
  VQ_DEVICE void load_clipped(Step& to, int first, int end) const {
    const int base = base_of(first, end);
    const auto least = [](int row, int last) { return row < last ? row : last; };
    load_tiles(
        to, [&](int tile) { return keys_ + key_words(least(base + key_row(tile), last_key_)); },
        [&](int tile, int i) {
          return values_ + value_words(least(base + value_row(tile, i), last_value_));
        });
  }

  VQ_DEVICE static int row_words(int row) { return Keys::row(row); }
  // The scales of the group that the step from `first` on is of, in the rows that `keys` counts
  // from this lane's own; row(i): words to row i.
  template <int kStep, class Row>
  VQ_DEVICE void copy_scales(const u32* keys, int first, Row row) const {
    if constexpr (kGrouped && kStep == 0) {
      constexpr int kTogether = kConfig.keys.scale_tokens;
      const int begin = static_cast<int>(static_cast<u32>(first) / kTogether) * kTogether;
      Group::copy(keys + (to_scales_ + row(begin)), row);
    }
  }
  template <class Row>
  VQ_DEVICE void find_scales(Row row) {
    if constexpr (kGrouped) {
      const int own = row(key_row(0) % kPageTokens);
      to_scales_ = Group::first_place(row) -
                   (own + Keys::word(KeyRows::Share::first_word(place_in_group())));
    }
  }

  // The number of the page of this lane's row of the step from `first` on; past the sequence's last
  // page that one again.
  VQ_DEVICE u32 page_of_lane(int first) const {
    const int number = static_cast<int>(static_cast<u32>(first + lane() % kTokens) / kPageTokens);
    return static_cast<u32>(load_global(table_ + (number < last_page_ ? number : last_page_)));
  }
  // Prefetches that row of the step with pages `ahead_`; `rows` is its offset from page and step.
  template <class Rows>
  VQ_DEVICE void prefetch(const QuantizedArgs& tensor, u32 bytes, const u32* rows,
                          int first) const {
    constexpr int kSector = 8;  // words
    const u32* row = wide_step(rows, ahead_, bytes);
    if constexpr (kPages == 1) row += Rows::paged_row(tensor, row_in_page(first));
    VQ_UNROLL
    for (int word = 0; word < Rows::kStoredWords; word += kSector) prefetch_global(row + word);
  }
  VQ_DEVICE static int row_in_page(int token) {
    return static_cast<int>(static_cast<u32>(token) % kPageTokens);
  }
  // Loads the codes of a step with pages `now_`. Rows past the sequence's last repeat it, as memory
  // past it is not the sequence's.
  template <int kStep>
  VQ_DEVICE void load_paged(Step& to, int first, int end) const {
    u32 pages[kPages];
    VQ_UNROLL
    for (int i = 0; i < kPages; ++i) pages[i] = shuffle(now_, i * kPageTokens % 32);
    copy_scales<kStep>(wide_step(keys_, pages[0], key_page_), row_in_page(first),
                       [&](int row) { return Keys::paged_row(args_->keys, row); });
    if (dense_ && first + kTokens <= end) {
      load_whole<true>(to, pages, first);
      return;
    }
    if (first + kTokens <= end) {
      load_whole<false>(to, pages, first);
    } else {
      load_tiles(
          to,
          [&](int tile) {
            return clipped<Keys>(keys_, args_->keys, key_page_, pages, first, key_row(tile),
                                 key_row(0), last_key_);
          },
          [&](int tile, int i) {
            return clipped<Values>(values_, args_->values, value_page_, pages, first,
                                   value_row(tile, i), value_row(0, 0), last_value_);
          });
    }
    loads_first();  // else the compiler makes one of these loads and those above, and all are slow
  }

  // Whole pages, or a part of one. Where rows follow each other, tiles are constant words apart.
  template <bool kDense>
  VQ_DEVICE void load_whole(Step& to, const u32 (&pages)[kPages], int first) const {
    const u32* keys[kPages];
    const u32* values[kPages];
    VQ_UNROLL
    for (int i = 0; i < kPages; ++i) {
      keys[i] =
          wide_step(keys_, page_of(pages, kInOnePage ? i : key_row(0) / kPageTokens), key_page_);
      values[i] = wide_step(values_, page_of(pages, kInOnePage ? i : value_row(0, 0) / kPageTokens),
                            value_page_);
      if constexpr (kPages == 1) {
        keys[i] += offset_of<Keys, kDense>(args_->keys, row_in_page(first));
        values[i] += offset_of<Values, kDense>(args_->values, row_in_page(first));
      }
    }
    load_tiles(
        to,
        [&](int tile) {
          return keys[page_of_tile(tile)] + offset_of<Keys, kDense>(args_->keys, row_of_tile(tile));
        },
        [&](int tile, int i) {
          return values[page_of_tile(tile)] +
                 offset_of<Values, kDense>(args_->values, row_of_tile(tile) + i * kJoined);
        });
  }

  // Joined tiles lie in one page; longer ones have each lane's rows in one page.
  static constexpr int kJoint = 8 * kJoined;
  static constexpr bool kInOnePage = kJoint <= kPageTokens;
  VQ_DEVICE static int page_of_tile(int tile) {
    return kInOnePage ? tile / kJoined * kJoint / kPageTokens : 0;
  }
  VQ_DEVICE static int row_of_tile(int tile) {
    return tile / kJoined * kJoint % kPageTokens + tile % kJoined;
  }
  template <class Rows, bool kDense>
  VQ_DEVICE static int offset_of(const QuantizedArgs& tensor, int row) {
    if constexpr (kDense) return Rows::row(row);
    return Rows::paged_row(tensor, row);
  }

  // Address of row `row` of a step, or of token `last` if that is earlier; `codes` counts from row
  // `own` of a page of `bytes` bytes.
  template <class Rows>
  VQ_DEVICE static const u32* clipped(const u32* codes, const QuantizedArgs& tensor, u32 bytes,
                                      const u32 (&pages)[kPages], int first, int row, int own,
                                      int last) {
    const int token = first + row < last ? first + row : last;
    const u32 page = page_of(pages, (token - first + row_in_page(first)) / kPageTokens);
    return wide_step(codes, page, bytes) + Rows::paged_row(tensor, row_in_page(token)) -
           Rows::paged_row(tensor, own % kPageTokens);
  }
  // Number `i` of a step's pages; one that is not known at compile time would cost memory.
  VQ_DEVICE static u32 page_of(const u32 (&pages)[kPages], int i) {
    u32 page = pages[0];
    VQ_UNROLL
    for (int j = 1; j < kPages; ++j) page = i == j ? pages[j] : page;
    return page;
  }

  // key_at(tile) and value_at(tile, i) say where this lane reads.
  template <class KeyAt, class ValueAt>
  VQ_DEVICE static void load_tiles(Step& to, KeyAt key_at, ValueAt value_at) {
    VQ_UNROLL
    for (int tile = 0; tile < kTiles; tile += kJoined) {
      VQ_UNROLL
      for (int i = 0; i < kJoined; i += kKeysAtOnce) {
        KeyRows::Share::template load<kKeysAtOnce>(
            key_at(tile + i), place_in_group(),
            [&](int row) -> u32* { return to.keys[tile + i + row]; });
      }
      VQ_UNROLL
      for (int i = 0; i < 2 * kJoined; i += kValuesAtOnce) {
        ValueRows::Share::template load<kValuesAtOnce>(
            value_at(tile + i % kJoined, i / kJoined), Softmax::share(), [&](int row) -> u32* {
              return to.values[tile + (i + row) % kJoined][(i + row) / kJoined];
            });
      }
    }
  }

  // The row of a step that is this lane's.
  VQ_DEVICE static int key_row(int tile) { return Softmax::token_of(0, tile, lane_group()); }
  VQ_DEVICE static int value_row(int tile, int i) {
    return Softmax::token_of(0, tile, place_in_group() * 2 + i);
  }
  // Words to a row from this lane's first.
  VQ_DEVICE static int key_words(int row) { return Keys::row(row) - Keys::row(key_row(0)); }
  VQ_DEVICE static int value_words(int row) {
    return Values::row(row) - Values::row(value_row(0, 0));
  }
  // A tensor whose groups are smaller than those that steps begin with may lack the last rows of a
  // step, which do not count: then its last one again.
  VQ_DEVICE static const u32* held(const u32* rows, int words, int last) {
    return rows + (words < last ? words : last);
  }

  const u32* keys_;    // what this lane reads of the first row that is its own
  const u32* values_;  // values of this lane
  int to_scales_;      // words from there to what this lane copies of a first group's scales
  int last_key_;       // row of the sequence
  int last_value_;
  // Set for a paged cache.
  const AttentionDecodeArgs* args_;
  const i32* table_;
  int last_page_;
  bool dense_;            // rows of a page follow each other
  const u32* key_ahead_;  // the row that this lane prefetches, in page 0
  const u32* value_ahead_;
  u32 key_page_;  // bytes from page to page
  u32 value_page_;
  u32 now_;    // page of this lane's row in the step to load next
  u32 ahead_;  // page of this lane's row in the step after it
};

}  // namespace vq
