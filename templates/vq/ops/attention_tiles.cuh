// The loop of attention_decode over a split of tokens, a tile at a time:
//   1. the tile's packed rows arrive in shared memory, asynchronously, the next tile's meanwhile;
//   2. `Scores` scores its tokens for all heads of the block;
//   3. scores become probabilities (AttentionSoftmax);
//   4. values are decoded and accumulated (AttentionValues).
// Tokens of the sinks and of the raw window go the same way, with raw elements for decoded ones.
//
// Scores is a dataflow's own part:
//   kPart, kWords                 of the op; words of a token's keys to stage
//   Scores(args, work)
//   prepare()                     query and codebooks
//   stage(first, count, to)       queues the tokens' words
//   score(first, count, keys, scores)   scores[h][t] = q_h . k_t in units of log2; begins with a
//                                 barrier where it reads what stage() queued, or prepare() stored
#pragma once

#include <vq/ops/attention_rows.cuh>

namespace vq {

// The online softmax of a block of attention_decode, in fp32 and units of log2: one warp per head
// turns a tile's scores into probabilities relative to the highest score so far, and keeps maximum
// and sum (FlashAttention's recurrence).
template <class Plan, AttentionPart kPart>
struct AttentionSoftmax {
  static constexpr int kThreads = Plan::config().threads;
  static constexpr int kTile = Plan::config().tile_tokens;
  static constexpr int kHeads = Plan::config().heads_per_block;
  static constexpr bool kTree = Plan::config().tree_mask;
  VQ_HD static constexpr AttentionTilesShared at() { return shared_layout(Plan::config(), kPart); }

  // Scores, then probabilities, [kHeads][kTile]; the rest [kHeads].
  VQ_DEVICE static float* scores() { return shared_part<float>(at().scores); }
  VQ_DEVICE static float* maximum() { return shared_part<float>(at().running); }
  VQ_DEVICE static float* sum() { return maximum() + kHeads; }
  VQ_DEVICE static float* rescale() { return sum() + kHeads; }

  // Call it before the first tile; a barrier must follow.
  VQ_DEVICE static void reset() {
    for (int h = thread_index(); h < kHeads; h += kThreads) {
      store_shared(maximum() + h, -infinity());
      store_shared(sum() + h, 0.0f);
    }
  }

  // Updates the softmax with the scores of `count` >= 1 tokens, of which the first `unseen`, fewer
  // than all, do not count; nor do any in a tree of drafts of which hides(number) is true. Barriers
  // must precede and follow.
  template <class Hides>
  VQ_DEVICE static void tile(const AttentionDecodeArgs& args, int count, int unseen, Hides hides) {
    for (int h = warp(); h < kHeads; h += kThreads / 32) {
      float* row = scores() + h * kTile;
      const float before = load_shared(maximum() + h);
      float highest = before;
      for (int t = lane(); t < count; t += 32) {
        if (Plan::config().softcaps) {
          store_shared(row + t, soft_capped<Plan>(args, load_shared(row + t)));
        }
        float score = t < unseen ? -infinity() : load_shared(row + t);
        if constexpr (kTree) score = hides(t) ? -infinity() : score;
        highest = score > highest ? score : highest;
      }
      VQ_UNROLL
      for (int mask = 16; mask > 0; mask /= 2) {
        const float other = shuffle_xor(highest, mask);
        highest = other > highest ? other : highest;
      }
      float base = highest;
      if constexpr (kTree) base = highest == -infinity() ? 0.0f : highest;  // no token so far
      float total = 0.0f;
      for (int t = lane(); t < count; t += 32) {
        float probability = t < unseen ? 0.0f : exp2_approx(load_shared(row + t) - base);
        if constexpr (kTree) probability = hides(t) ? 0.0f : probability;
        store_shared(row + t, probability);
        total += probability;
      }
      VQ_UNROLL
      for (int mask = 16; mask > 0; mask /= 2) total += shuffle_xor(total, mask);
      sync_warp();  // all lanes have read the maximum that lane 0 replaces
      if (lane() == 0) {
        const float factor = exp2_approx(before - base);
        store_shared(rescale() + h, factor);
        store_shared(maximum() + h, highest);
        store_shared(sum() + h, load_shared(sum() + h) * factor + total);
      }
    }
  }
};

// Values times probabilities, in one of the values' formats: a thread per (sub-vector, slice of
// tokens) decodes values and accumulates all heads of the block; slices are summed in order at the
// end.
template <class Plan, AttentionPart kPart, int kNumber>
class ValuesOfFormat {
 public:
  using Work = AttentionWork<Plan>;
  using Softmax = AttentionSoftmax<Plan, kPart>;
  using Format = CacheFormat<Plan, kPart, false, kNumber>;
  using Rows = CacheRows<Plan, Format>;
  static constexpr int kHeads = Plan::config().heads_per_block;
  static constexpr int kVectorSize = Rows::kVectorSize;
  static constexpr int kSlices = Plan::config().threads / Rows::kSubVectors;
  static constexpr int kWords = Rows::kWords;

  // `share` of the channels.
  VQ_DEVICE ValuesOfFormat(const AttentionDecodeArgs& args, const Work& work, int share)
      : args_(args),
        work_(work),
        share_(share),
        book_(part_tensor<Format>(args.values), Rows::units()) {}

  // Loads the near codebook entries to shared memory; a barrier must follow.
  VQ_DEVICE void load() {
    book_.switch_to(Rows::first_unit(work_.kv_head, share_));
    book_.load();
  }
  VQ_DEVICE void stage(int first, int count, u32* to) const {
    Rows::stage(args_.values, work_, share_, first, count, to);
  }

  // accumulator[h] += p_h(t) v_t over this thread's sub-vector and slice of the tile's tokens.
  VQ_DEVICE void accumulate(int first, int count, const u32* codes) {
    VQ_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      const float factor = load_shared(Softmax::rescale() + h);
      VQ_UNROLL
      for (int i = 0; i < kVectorSize; ++i) accumulator_[h][i] *= factor;
    }
    if (slice() >= kSlices) return;
    for (int token = slice(); token < count; token += kSlices) {
      if (Work::kSeesPart && first + token < work_.start) continue;  // may hold anything
      if (!work_.is_on_path(0, first + token)) continue;
      float value[kVectorSize];
      if (reads_raw(Plan::config()) && work_.is_raw(first + token)) {
        load_raw(work_.raw_value(args_, first + token), value);
      } else {
        Rows::decode(book_, codes + token * kWords, share_, sub_vector(), value);
      }
      VQ_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        const float probability = load_shared(Softmax::scores() + h * Softmax::kTile + token);
        VQ_UNROLL
        for (int i = 0; i < kVectorSize; ++i) accumulator_[h][i] += probability * value[i];
      }
    }
  }

  // output[h][:] = the slices' accumulators, summed in the order of the slices.
  VQ_DEVICE void gather(float* output) const {
    for (int turn = 0; turn < kSlices; ++turn) {
      if (slice() == turn) {
        VQ_UNROLL
        for (int h = 0; h < kHeads; ++h) {
          VQ_UNROLL
          for (int i = 0; i < kVectorSize; ++i) {
            float* to = output + h * value_channels(Plan::config()) +
                        channel_of<Format, Plan>(sub_vector() * kVectorSize + i);
            const float before = turn == 0 ? 0.0f : load_shared(to);
            store_shared(to, before + accumulator_[h][i]);
          }
        }
      }
      sync_block();
    }
  }

 private:
  VQ_DEVICE static int slice() { return thread_index() / Rows::kSubVectors; }
  VQ_DEVICE static int sub_vector() { return thread_index() % Rows::kSubVectors; }
  VQ_DEVICE void load_raw(const u16* row, float (&value)[kVectorSize]) const {
    if constexpr (!Rows::kFormat.part.in_parts) {
      Rows::load_raw(row, share_, sub_vector(), value);
    } else {
      VQ_UNROLL
      for (int i = 0; i < kVectorSize; ++i) {
        value[i] = to_float<Plan::config().element>(
            load_global(row + channel_of<Format, Plan>(sub_vector() * kVectorSize + i)));
      }
    }
  }

  const AttentionDecodeArgs& args_;
  const Work work_;
  const int share_;
  typename Rows::Book book_;
  float accumulator_[kHeads][kVectorSize] = {};
};

// Values times probabilities in all formats from kNumber on. The staged rows of a tile are
// contiguous per format.
template <class Plan, AttentionPart kPart, int kNumber = 0>
class ValuesFrom {
 public:
  using Work = AttentionWork<Plan>;
  using First = ValuesOfFormat<Plan, kPart, kNumber>;
  static constexpr int kTileWords = Plan::config().tile_tokens * First::kWords;

  VQ_DEVICE ValuesFrom(const AttentionDecodeArgs& args, const Work& work, int share)
      : first_(args, work, share), rest_(args, work, share) {}
  VQ_DEVICE void load() {
    first_.load();
    rest_.load();
  }
  VQ_DEVICE void stage(int first, int count, u32* to) const {
    first_.stage(first, count, to);
    rest_.stage(first, count, to + kTileWords);
  }
  VQ_DEVICE void accumulate(int first, int count, const u32* codes) {
    first_.accumulate(first, count, codes);
    rest_.accumulate(first, count, codes + kTileWords);
  }
  VQ_DEVICE void gather(float* output) const {
    first_.gather(output);
    rest_.gather(output);
  }

 private:
  struct Nothing {
    VQ_DEVICE Nothing(const AttentionDecodeArgs&, const Work&, int) {}
    VQ_DEVICE void load() {}
    VQ_DEVICE void stage(int, int, u32*) const {}
    VQ_DEVICE void accumulate(int, int, const u32*) {}
    VQ_DEVICE void gather(float*) const {}
  };
  template <class P, int kNext, bool kIsOne>
  struct Rest {
    using Type = ValuesFrom<P, kPart, kNext>;
  };
  template <class P, int kNext>
  struct Rest<P, kNext, false> {
    using Type = Nothing;
  };

  First first_;
  typename Rest<Plan, kNumber + 1, (kNumber + 1 < value_formats(Plan::config()))>::Type rest_;
};

template <class Plan, AttentionPart kPart>
class AttentionValues : public ValuesFrom<Plan, kPart> {
 public:
  using Work = AttentionWork<Plan>;
  using Softmax = AttentionSoftmax<Plan, kPart>;
  static constexpr int kChannels = value_channels(Plan::config());
  static constexpr int kWords =
      staged_words(Plan::config().values, kChannels, Plan::config().value_dim);

  VQ_DEVICE AttentionValues(const AttentionDecodeArgs& args, const Work& work, int share)
      : ValuesFrom<Plan, kPart>(args, work, share), args_(args), work_(work), share_(share) {}

  // The split's result: gathered, and written where it belongs. All threads, after a barrier.
  VQ_DEVICE void write() const {
    float* const output = shared_part<float>(Softmax::at().output);
    this->gather(output);
    work_.template write<kChannels>(args_, share_, output, Softmax::maximum(), Softmax::sum());
  }

 private:
  const AttentionDecodeArgs& args_;
  const Work work_;
  const int share_;
};

// Calls use(first, count, buffer) for each tile of tokens [begin, end) once this thread's copies of
// stage(first, count, buffer) have landed; with two buffers the next tile is in flight. use()
// begins with a barrier if it reads others' copies; a barrier follows it. All threads.
template <int kTile, int kStages, class Work, class Stage, class Use>
VQ_DEVICE void for_each_tile(const Work& work, Stage stage, Use use) {
  // Closes the group even where there is no tile, so that the count of pending groups is the same
  // for every tile.
  const auto queue = [&](int first, int buffer) {
    const int left = work.end - first;
    stage(first, work.cached(first, left < kTile ? left : kTile), buffer);
    copy_async_commit();
  };
  int buffer = 0;
  queue(work.begin, buffer);
  for (int first = work.begin; first < work.end; first += kTile) {
    const int count = work.end - first < kTile ? work.end - first : kTile;
    if constexpr (kStages == 2) queue(first + kTile, buffer ^ 1);
    copy_async_wait<kStages - 1>();
    use(first, count, buffer);
    sync_block();
    if constexpr (kStages == 1) queue(first + kTile, 0);
    if constexpr (kStages == 2) buffer ^= 1;
  }
}

template <class Plan, class Scores>
class AttentionTiles {
 public:
  using Work = AttentionWork<Plan>;
  using Softmax = AttentionSoftmax<Plan, Scores::kPart>;
  using Values = AttentionValues<Plan, Scores::kPart>;
  static constexpr int kTile = Plan::config().tile_tokens;
  static constexpr int kTileWords = kTile * (Scores::kWords + Values::kWords);

  // `share` of the channels of the values.
  VQ_DEVICE AttentionTiles(const AttentionDecodeArgs& args, const Work& work, int share)
      : args_(args), work_(work), scores_(args, work), values_(args, work, share) {}

  VQ_DEVICE void run() {
    values_.load();
    Softmax::reset();
    scores_.prepare();
    for_each_tile<kTile, Plan::config().tiles_in_flight>(
        work_,
        [this](int first, int count, int buffer) {
          u32* const keys = codes(buffer);
          scores_.stage(first, count, keys);
          values_.stage(first, count, keys + kTile * Scores::kWords);
        },
        [this](int first, int count, int buffer) {
          const u32* const keys = codes(buffer);
          scores_.score(first, count, keys, Softmax::scores());
          sync_block();
          const int before = work_.start - first;
          Softmax::tile(args_, count, Work::kSeesPart && before > 0 ? before : 0,
                        [&](int t) { return !work_.is_on_path(0, first + t); });
          sync_block();
          values_.accumulate(first, count, keys + kTile * Scores::kWords);
        });
    values_.write();
  }

 private:
  VQ_DEVICE static u32* codes(int buffer) {
    return shared_part<u32>(Softmax::at().codes) + buffer * kTileWords;
  }

  const AttentionDecodeArgs& args_;
  const Work work_;
  Scores scores_;
  Values values_;
};

}  // namespace vq
