// attention_decode by lanes: one query token against a quantized KV cache (VecInfer Alg. 1, entries
// looked up, online softmax in fp32, split over tokens).
//
// A block serves kHeads query heads of one KV head of one sequence over one split of its tokens,
// a tile at a time:
//   1. the tile's packed rows arrive in shared memory, asynchronously, the next tile's meanwhile;
//   2. kLanes threads a token decode its key once and score it for all heads;
//   3. a warp a head turns scores into probabilities and keeps maximum and sum;
//   4. a thread a (sub-vector, slice of tokens) decodes values and accumulates all heads.
// Tokens of the sinks and of the raw window go the same way, with raw elements for decoded ones.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/layout/attention_decode.h>
#include <vq/codebook/codebook.cuh>
#include <vq/codes.cuh>
#include <vq/ops/attention_query.cuh>
#include <vq/ops/attention_work.cuh>

namespace vq {

template <class Plan>
class AttentionLanes {
 public:
  using Work = AttentionWork<Plan>;
  static constexpr Element kElement = Plan::config().element;
  static constexpr int kHeadDim = Plan::config().head_dim;
  static constexpr int kThreads = Plan::config().threads;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kTile = Plan::config().tile_tokens;
  static constexpr int kSplits = Plan::config().splits;
  static constexpr int kHeads = Plan::config().heads_per_block;
  static constexpr int kLanes = Plan::config().lanes_per_token;
  static constexpr int kStages = Plan::config().stages;
  static constexpr bool kRaw = raw_slots(Plan::config()) > 0;

  VQ_HD static constexpr AttentionDecodeShared at() { return shared_layout(Plan::config()); }

  struct Keys {
    VQ_HD static constexpr FormatConfig config() { return Plan::config().keys; }
    VQ_HD static constexpr CodebookShared shared() { return at().keys; }
  };
  struct Values {
    VQ_HD static constexpr FormatConfig config() { return Plan::config().values; }
    VQ_HD static constexpr CodebookShared shared() { return at().values; }
  };
  template <class Format>
  struct Rows {
    static constexpr int kVectorSize = Format::config().vector_size;
    static constexpr int kBits = Format::config().index_bits;
    static constexpr int kResiduals = Format::config().residuals;
    static constexpr int kSubVectors = kHeadDim / kVectorSize;
    static constexpr int kWords =
        static_cast<int>(row_words(kHeadDim, kVectorSize, kResiduals, kBits));
    static constexpr int kUnitElements = Format::config().unit_elements;
    static constexpr int kUnits = kHeadDim / kUnitElements;
    using Book = Codebook<Format, kElement, kUnits, kThreads>;
  };
  using KeyRows = Rows<Keys>;
  using ValueRows = Rows<Values>;
  static constexpr int kTileWords = kTile * (KeyRows::kWords + ValueRows::kWords);
  static constexpr int kSlices = kThreads / ValueRows::kSubVectors;

  VQ_DEVICE explicit AttentionLanes(const AttentionDecodeArgs& args)
      : args_(args),
        work_(Work::of_block(args)),
        key_book_(args.keys, units<Keys>()),
        value_book_(args.values, units<Values>()) {}

  VQ_DEVICE void run() {
    key_book_.switch_to(first_unit<Keys>());
    value_book_.switch_to(first_unit<Values>());
    key_book_.load();
    value_book_.load();
    for (int h = thread_index(); h < kHeads; h += kThreads) {
      store_shared(maximum() + h, -infinity());
      store_shared(sum() + h, 0.0f);
    }
    load_query<Plan>(args_, work_, score_scale(args_), query(),
                     raw_query());  // ends with a barrier

    VQ_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      VQ_UNROLL
      for (int i = 0; i < ValueRows::kVectorSize; ++i) accumulator_[h][i] = 0.0f;
    }
    stage_tile(work_.begin, 0);
    int buffer = 0;
    for (int first = work_.begin; first < work_.end; first += kTile) {
      const int count = work_.end - first < kTile ? work_.end - first : kTile;
      if constexpr (kStages == 2) stage_tile(first + kTile, buffer ^ 1);
      copy_async_wait<kStages - 1>();
      sync_block();
      const u32* keys = codes() + buffer * kTileWords;
      score(first, count, keys);
      sync_block();
      softmax(count);
      sync_block();
      accumulate(first, count, keys + kTile * KeyRows::kWords);
      sync_block();
      if constexpr (kStages == 1) stage_tile(first + kTile, 0);
      if constexpr (kStages == 2) buffer ^= 1;
    }
    gather_output();
    work_.write(args_, output(), maximum(), sum());
  }

 private:
  // Shared memory by its part (layout/attention_decode.h); see codebook.cuh for why by function.
  template <class T>
  VQ_DEVICE static T* part(i64 offset) {
    return reinterpret_cast<T*>(shared_memory() + offset);
  }
  VQ_DEVICE static float* query() { return part<float>(at().query); }
  VQ_DEVICE static float* raw_query() { return part<float>(at().raw_query); }
  VQ_DEVICE static u32* codes() { return part<u32>(at().codes); }
  VQ_DEVICE static float* scores() { return part<float>(at().scores); }
  VQ_DEVICE static float* maximum() { return part<float>(at().running); }
  VQ_DEVICE static float* sum() { return maximum() + kHeads; }
  VQ_DEVICE static float* rescale() { return sum() + kHeads; }
  VQ_DEVICE static float* output() { return part<float>(at().output); }

  template <class Format>
  VQ_DEVICE static constexpr i64 units() {
    return Format::config().per_head ? i64{Plan::config().kv_heads} * Rows<Format>::kUnits : i64{1};
  }
  template <class Format>
  VQ_DEVICE i64 first_unit() const {
    return Format::config().per_head ? i64{work_.kv_head} * Rows<Format>::kUnits : i64{0};
  }

  // Queues the rows of tokens [first, first + kTile) within the split, and closes the group even
  // where there is none, so that the count of pending groups is the same for every tile.
  VQ_DEVICE void stage_tile(int first, int buffer) {
    const int left = work_.end - first;
    const int count = left < kTile ? left : kTile;
    u32* keys = codes() + buffer * kTileWords;
    stage_rows<KeyRows>(args_.keys, first, count, keys);
    stage_rows<ValueRows>(args_.values, first, count, keys + kTile * KeyRows::kWords);
    copy_async_commit();
  }

  template <class R>
  VQ_DEVICE void stage_rows(const QuantizedArgs& tensor, int first, int count, u32* to) {
    const u32* from = tensor.codes + work_.batch * tensor.batch_stride +
                      work_.kv_head * tensor.head_stride + i64{first} * R::kWords;
    for (int i = thread_index(); i < count * R::kWords; i += kThreads) copy_async(to + i, from + i);
  }

  // Decodes sub-vector s of a staged row.
  template <class R>
  VQ_DEVICE static void decode(const typename R::Book& book, const u32* row, int s,
                               float (&value)[R::kVectorSize]) {
    book.decode(value, s * R::kVectorSize / R::kUnitElements, [&](int stage) {
      return read_code<R::kBits>(row, s * R::kResiduals + stage,
                                 [](const u32* word) { return load_shared(word); });
    });
  }

  template <int kVectorSize>
  VQ_DEVICE static void load_raw(const u16* row, int s, float (&value)[kVectorSize]) {
    VQ_UNROLL
    for (int i = 0; i < kVectorSize; ++i) {
      value[i] = to_float<kElement>(load_global(row + s * kVectorSize + i));
    }
  }

  // scores[h][t] = q_h . k_t in units of log2, for the tile's tokens. kLanes threads share a token.
  VQ_DEVICE void score(int first, int count, const u32* keys) {
    constexpr int kTokens = kThreads / kLanes;
    const int lane = thread_index() % kLanes;
    for (int base = 0; base < count; base += kTokens) {  // whole warps: shuffles below
      const int token = base + thread_index() / kLanes;
      float total[kHeads];
      VQ_UNROLL
      for (int h = 0; h < kHeads; ++h) total[h] = 0.0f;
      if (token < count) {
        if (kRaw && work_.is_raw(first + token)) {
          const u16* row = args_.raw_keys + work_.raw_offset(args_, first + token);
          dot_rows(lane, raw_query(), total,
                   [&](int s, float(&value)[KeyRows::kVectorSize]) { load_raw(row, s, value); });
        } else {
          const u32* row = keys + token * KeyRows::kWords;
          dot_rows(lane, query(), total, [&](int s, float(&value)[KeyRows::kVectorSize]) {
            decode<KeyRows>(key_book_, row, s, value);
          });
        }
      }
      VQ_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        VQ_UNROLL
        for (int mask = kLanes / 2; mask > 0; mask /= 2) total[h] += shuffle_xor(total[h], mask);
        if (lane == 0 && token < count) store_shared(scores() + h * kTile + token, total[h]);
      }
    }
  }

  // total[h] += q_h . key over the sub-vectors of this lane; fetch(s, value) brings the key's.
  template <class Fetch>
  VQ_DEVICE static void dot_rows(int lane, const float* queries, float (&total)[kHeads],
                                 Fetch fetch) {
    for (int s = lane; s < KeyRows::kSubVectors; s += kLanes) {
      float value[KeyRows::kVectorSize];
      fetch(s, value);
      VQ_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        const float* q = queries + h * kHeadDim + s * KeyRows::kVectorSize;
        VQ_UNROLL
        for (int i = 0; i < KeyRows::kVectorSize; ++i) total[h] += load_shared(q + i) * value[i];
      }
    }
  }

  // A warp a head: scores become probabilities relative to the running maximum.
  VQ_DEVICE void softmax(int count) {
    for (int h = warp(); h < kHeads; h += kWarps) {
      float* row = scores() + h * kTile;
      const float before = load_shared(maximum() + h);
      float highest = before;
      for (int t = lane(); t < count; t += 32) {
        const float score = load_shared(row + t);
        highest = score > highest ? score : highest;
      }
      VQ_UNROLL
      for (int mask = 16; mask > 0; mask /= 2) {
        const float other = shuffle_xor(highest, mask);
        highest = other > highest ? other : highest;
      }
      float total = 0.0f;
      for (int t = lane(); t < count; t += 32) {
        const float probability = exp2_approx(load_shared(row + t) - highest);
        store_shared(row + t, probability);
        total += probability;
      }
      VQ_UNROLL
      for (int mask = 16; mask > 0; mask /= 2) total += shuffle_xor(total, mask);
      sync_warp();  // all lanes have read the maximum that lane 0 replaces
      if (lane() == 0) {
        const float factor = exp2_approx(before - highest);
        store_shared(rescale() + h, factor);
        store_shared(maximum() + h, highest);
        store_shared(sum() + h, load_shared(sum() + h) * factor + total);
      }
    }
  }

  VQ_DEVICE static int slice() { return thread_index() / ValueRows::kSubVectors; }
  VQ_DEVICE static int sub_vector() { return thread_index() % ValueRows::kSubVectors; }

  // accumulator[h] += p_h(t) v_t over this thread's sub-vector and slice of the tile's tokens.
  VQ_DEVICE void accumulate(int first, int count, const u32* values) {
    VQ_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      const float factor = load_shared(rescale() + h);
      VQ_UNROLL
      for (int i = 0; i < ValueRows::kVectorSize; ++i) accumulator_[h][i] *= factor;
    }
    if (slice() >= kSlices) return;
    for (int token = slice(); token < count; token += kSlices) {
      float value[ValueRows::kVectorSize];
      if (kRaw && work_.is_raw(first + token)) {
        load_raw(args_.raw_values + work_.raw_offset(args_, first + token), sub_vector(), value);
      } else {
        decode<ValueRows>(value_book_, values + token * ValueRows::kWords, sub_vector(), value);
      }
      VQ_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        const float probability = load_shared(scores() + h * kTile + token);
        VQ_UNROLL
        for (int i = 0; i < ValueRows::kVectorSize; ++i) {
          accumulator_[h][i] += probability * value[i];
        }
      }
    }
  }

  // output[h][:] = the slices' accumulators, summed in the order of the slices.
  VQ_DEVICE void gather_output() {
    for (int turn = 0; turn < kSlices; ++turn) {
      if (slice() == turn) {
        VQ_UNROLL
        for (int h = 0; h < kHeads; ++h) {
          VQ_UNROLL
          for (int i = 0; i < ValueRows::kVectorSize; ++i) {
            float* to = output() + h * kHeadDim + sub_vector() * ValueRows::kVectorSize + i;
            const float before = turn == 0 ? 0.0f : load_shared(to);
            store_shared(to, before + accumulator_[h][i]);
          }
        }
      }
      sync_block();
    }
  }

  const AttentionDecodeArgs& args_;
  const Work work_;
  typename KeyRows::Book key_book_;
  typename ValueRows::Book value_book_;
  float accumulator_[kHeads][ValueRows::kVectorSize];
};

template <class Plan>
VQ_DEVICE void attention_lanes(const AttentionDecodeArgs& args) {
  AttentionLanes<Plan>(args).run();
}

}  // namespace vq
