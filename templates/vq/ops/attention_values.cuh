// Values times probabilities: a thread a (sub-vector, slice of tokens) decodes values and
// accumulates all heads of the block; slices are summed in their order at the end.
#pragma once

#include <vq/ops/attention_rows.cuh>
#include <vq/ops/attention_softmax.cuh>

namespace vq {

template <class Plan, AttentionPart kPart>
class AttentionValues {
 public:
  using Work = AttentionWork<Plan>;
  using Softmax = AttentionSoftmax<Plan, kPart>;
  using Rows = CacheRows<Plan, ValueFormat<Plan, kPart>>;
  static constexpr int kThreads = Plan::config().threads;
  static constexpr int kTile = Plan::config().tile_tokens;
  static constexpr int kHeads = Plan::config().heads_per_block;
  static constexpr int kVectorSize = Rows::kVectorSize;
  static constexpr int kSlices = kThreads / Rows::kSubVectors;
  static constexpr int kWords = Rows::kWords;
  static constexpr bool kRaw = raw_slots(Plan::config()) > 0;

  // `share` of the channels.
  VQ_DEVICE AttentionValues(const AttentionDecodeArgs& args, const Work& work, int share)
      : args_(args), work_(work), share_(share), book_(args.values, Rows::units()) {}

  // Fetches what stands near of the codebooks; a barrier has to follow.
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
      float value[kVectorSize];
      if (kRaw && work_.is_raw(first + token)) {
        Rows::load_raw(args_.raw_values + work_.raw_row(args_, first + token), share_, sub_vector(),
                       value);
      } else {
        Rows::decode(book_, codes + token * kWords, share_, sub_vector(), value);
      }
      VQ_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        const float probability = load_shared(Softmax::scores() + h * kTile + token);
        VQ_UNROLL
        for (int i = 0; i < kVectorSize; ++i) accumulator_[h][i] += probability * value[i];
      }
    }
  }

  // The split's result: gathered, and written where it belongs. All threads, after a barrier.
  VQ_DEVICE void write() const {
    gather();
    work_.template write<Rows::kChannels>(args_, share_, output(), Softmax::maximum(),
                                          Softmax::sum());
  }

 private:
  VQ_DEVICE static float* output() { return shared_part<float>(Softmax::at().output); }
  VQ_DEVICE static int slice() { return thread_index() / Rows::kSubVectors; }
  VQ_DEVICE static int sub_vector() { return thread_index() % Rows::kSubVectors; }

  // output[h][:] = the slices' accumulators, summed in the order of the slices.
  VQ_DEVICE void gather() const {
    for (int turn = 0; turn < kSlices; ++turn) {
      if (slice() == turn) {
        VQ_UNROLL
        for (int h = 0; h < kHeads; ++h) {
          VQ_UNROLL
          for (int i = 0; i < kVectorSize; ++i) {
            float* to = output() + h * Rows::kChannels + sub_vector() * kVectorSize + i;
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
  const int share_;
  typename Rows::Book book_;
  float accumulator_[kHeads][kVectorSize] = {};
};

}  // namespace vq
