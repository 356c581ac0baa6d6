// Scores of keys in parts (layout/parts.h) by CUDA cores: as KeyLanes (attention_key_lanes.cuh),
// but each part has its own codes, codebooks and sub-vectors. Each part's query channels are
// contiguous; raw keys are compared with a query in the head's order.
#pragma once

#include <vq/ops/attention_key_lanes.cuh>

namespace vq {

// Parts from kPart on. The staged rows of a tile are contiguous per part.
template <class Plan, int kPart, bool kIsPart = (kPart < Plan::config().key_parts.count)>
class KeyPartsFrom {
 public:
  using Format = CacheFormat<Plan, AttentionPart::kWhole, true, kPart>;
  using Rows = CacheRows<Plan, Format>;
  static constexpr int kHeads = Plan::config().heads_per_block;
  static constexpr int kVectorSize = Rows::kVectorSize;
  static constexpr int kTileWords = Plan::config().tile_tokens * Rows::kWords;

  VQ_DEVICE explicit KeyPartsFrom(const QuantizedArgs& keys)
      : book_(part_tensor<Format>(keys), Rows::units()), rest_(keys) {}

  VQ_DEVICE void prepare(int kv_head) {
    book_.switch_to(Rows::first_unit(kv_head, 0));
    book_.load();
    rest_.prepare(kv_head);
  }

  template <class Work>
  VQ_DEVICE void stage(const QuantizedArgs& keys, const Work& work, int first, int count,
                       u32* to) const {
    Rows::stage(keys, work, 0, first, count, to);
    rest_.stage(keys, work, first, count, to + kTileWords);
  }

  // total[h] += q_h . key over this lane's sub-vectors, or pieces of wide ones, of a staged token.
  VQ_DEVICE void dot(int lane, int token, const u32* staged, const float* queries,
                     float (&total)[kHeads]) const {
    const u32* const row = staged + token * Rows::kWords;
    for (int s = lane; s < Rows::kSubVectors; s += Plan::config().lanes_per_token) {
      float value[kVectorSize];
      Rows::decode(book_, row, 0, s, value);
      VQ_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        const float* q = queries + h * Plan::config().head_dim + Rows::kFormat.part.first_channel +
                         s * kVectorSize;
        VQ_UNROLL
        for (int i = 0; i < kVectorSize; ++i) total[h] += load_shared(q + i) * value[i];
      }
    }
    rest_.dot(lane, token, staged + kTileWords, queries, total);
  }

 private:
  typename Rows::Book book_;
  KeyPartsFrom<Plan, kPart + 1> rest_;
};

template <class Plan, int kPart>
class KeyPartsFrom<Plan, kPart, false> {
 public:
  VQ_DEVICE explicit KeyPartsFrom(const QuantizedArgs&) {}
  VQ_DEVICE void prepare(int) {}
  template <class Work>
  VQ_DEVICE void stage(const QuantizedArgs&, const Work&, int, int, u32*) const {}
  template <int kHeads>
  VQ_DEVICE void dot(int, int, const u32*, const float*, float (&)[kHeads]) const {}
};

// KeyLanes' interface over all parts.
template <class Plan>
class KeyPartLanes {
 public:
  using Work = AttentionWork<Plan>;
  static constexpr AttentionPart kPart = AttentionPart::kWhole;
  static constexpr int kHeads = Plan::config().heads_per_block;
  static constexpr int kHeadDim = Plan::config().head_dim;
  static constexpr int kWords = Plan::config().keys.part.row_words;

  VQ_DEVICE KeyPartLanes(const AttentionDecodeArgs& args, const Work& work, int)
      : args_(args), work_(work), parts_(args.keys) {}

  VQ_DEVICE void prepare() {
    parts_.prepare(work_.kv_head);
    QueryRows<Plan>(args_, work_).store(score_scale(args_), query(), raw_query());
  }
  VQ_DEVICE void stage(int first, int count, u32* to) const {
    parts_.stage(args_.keys, work_, first, count, to);
  }

  template <class Put>
  VQ_DEVICE void score(int first, int count, const u32* keys, Put put) const {
    const auto of_token = [&](int token, int lane, float(&total)[kHeads]) {
      if (reads_raw(Plan::config()) && work_.is_raw(first + token)) {
        raw_dot(lane, work_.raw_key(args_, first + token), total);
      } else {
        parts_.dot(lane, token, keys, query(), total);
      }
    };
    score_by_lanes<Plan>(count, of_token, put);
  }

 private:
  VQ_HD static constexpr AttentionTilesShared at() { return shared_layout(Plan::config(), kPart); }
  VQ_DEVICE static float* query() { return shared_part<float>(at().query); }
  VQ_DEVICE static float* raw_query() { return shared_part<float>(at().raw_query); }

  VQ_DEVICE static void raw_dot(int lane, const u16* row, float (&total)[kHeads]) {
    for (int i = lane; i < kHeadDim; i += Plan::config().lanes_per_token) {
      const float value = to_float<Plan::config().element>(load_global(row + i));
      VQ_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        total[h] += load_shared(raw_query() + h * kHeadDim + i) * value;
      }
    }
  }

  const AttentionDecodeArgs& args_;
  const Work work_;
  KeyPartsFrom<Plan, 0> parts_;
};

}  // namespace vq
