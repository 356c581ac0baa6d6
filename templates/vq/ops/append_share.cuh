// What a block of kv_append has of one tensor: a share of the sub-vectors of some new tokens' rows,
// where these stand in shared memory, and the codebooks that they are compared with.
#pragma once

#include <vq/args/kv_append.h>
#include <vq/kernels/append_lanes/layout.h>
#include <vq/ops/nearest.cuh>
#include <vq/shared_part.cuh>

namespace vq {

// The new tokens of a sequence that a block encodes, and where they go. `head` is the KV head;
// `count` tokens from number `first` of the call on, of `all` that are appended.
struct AppendWork {
  int batch, head;
  int position;  // of the call's token 0
  int first, count, all;
};

// `Operand` says which tensor: FormatConfig config().
template <class Plan, class Operand>
struct AppendShare {
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = Operand::config();
  static constexpr AppendLanesShared kShared = shared_layout(kConfig, kFormat);
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr int kThreads = kConfig.threads;
  static constexpr int kVectorSize = kFormat.vector_size;
  static constexpr int kResiduals = kFormat.residuals;
  static constexpr int kEntries = entries(kFormat);
  static constexpr int kVectors = share_sub_vectors(kConfig, kFormat);  // at most
  using Words = typename EntryWords<kVectorSize>::type;
  using Candidates = Nearest<kFormat.decoder, kVectorSize>;
  using Vector = float[kVectorSize];

  EncodedArgs to;
  AppendWork work;
  int begin;    // the first sub-vector of the head
  int vectors;  // and how many there are

  VQ_DEVICE static AppendShare of_block(const EncodedArgs& to, const AppendWork& work, int share) {
    const int begin = share * kVectors;
    const int left = sub_vectors(kConfig, kFormat) - begin;
    return {to, work, begin, left < kVectors ? left : kVectors};
  }

  // The codebook of a sub-vector of the head and a stage, counted through all of the tensor.
  VQ_DEVICE i64 book_of(int vector, int stage) const {
    constexpr int kUnits = kHeadDim / kFormat.unit_elements;
    const int in_head = vector * kVectorSize / kFormat.unit_elements;
    return (kFormat.per_head ? i64{work.head} * kUnits + in_head : i64{0}) * kResiduals + stage;
  }
  VQ_DEVICE float scale_of(i64 book) const {
    if constexpr (kFormat.stage_scales) return load_global(to.scales + book);
    return 1.0f;
  }
  VQ_DEVICE Words entry(i64 book, int number) const {
    return load_global(reinterpret_cast<const Words*>(to.codebooks) + book * kEntries + number);
  }

  // A sub-vector of row t, as candidates are compared with it.
  VQ_DEVICE static void load_vector(Vector& x, int t, int vector, float scale) {
    VQ_UNROLL
    for (int d = 0; d < kVectorSize; ++d) {
      x[d] = load_shared(rows() + t * kHeadDim + vector * kVectorSize + d);
    }
    Candidates::scaled(x, scale);
  }

  // Parts of shared memory (kernels/append_lanes/layout.h).
  VQ_DEVICE static float* rows() { return shared_part<float>(kShared.rows); }
  VQ_DEVICE static float* distances() { return shared_part<float>(kShared.distances); }
  VQ_DEVICE static u32* nearest() { return shared_part<u32>(kShared.nearest); }
  VQ_DEVICE static u32* codes() { return shared_part<u32>(kShared.codes); }
};

}  // namespace vq
