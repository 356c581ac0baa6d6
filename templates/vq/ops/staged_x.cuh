// x as bytes for dataflow bytegroups: made once by a kernel of its own, in the workspace. Order and
// scales: linear_bytegroups/plan.h.
#pragma once

#include <vq/args/linear.h>
#include <vq/kernels/linear_bytegroups/plan.h>
#include <vq/ops/linear_work.cuh>
#include <vq/ops/split_bytes.cuh>
#include <vq/ops/step_octets.cuh>

namespace vq {

// A block turns a row to bytes; a thread takes the 32 columns of a step at a time.
template <class Plan>
class StagedRow {
 public:
  using Work = LinearWork<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr int kRows = kConfig.rows_per_block;
  static constexpr int kAllSteps = static_cast<int>(chunks(kConfig)) * kConfig.chunk_columns / 32;

  VQ_DEVICE StagedRow(const LinearArgs& args, int row) : args_(args), row_(row) {}

  VQ_DEVICE void run() const {
    const float peak = peak_of_row();
    u8* const block = args_.staged + row_ / kRows * staged_row_bytes(kConfig);
    if (thread_index() == 0) {
      store_global(reinterpret_cast<float*>(args_.staged + staged_scales(kConfig)) + row_,
                   SplitBytes::scale_of(peak));
    }
    const float to_peak = SplitBytes::factor_of(peak);
    for (int step = thread_index(); step < kAllSteps; step += kStagingThreads) {
      U32x4 high[2], low[2];
      load(step, [&](int c, const U32x4& octet) {
        u32 h[2], l[2];
        SplitBytes::split<kConfig.element>(h, l, octet, to_peak);
        VQ_UNROLL
        for (int k = 0; k < 2; ++k) {
          set_word(high[k], c, h[k]);
          set_word(low[k], c, l[k]);
        }
      });
      u8* const to = block + i64{step} * step_bytes(kConfig) + row_ % kRows * kCoreRowBytes;
      VQ_UNROLL
      for (int k = 0; k < 2; ++k) {
        u8* const octet = to + k * k_octet_bytes(kConfig);
        store_global(reinterpret_cast<U32x4*>(octet), high[k]);
        store_global(reinterpret_cast<U32x4*>(octet + kRows * kCoreRowBytes), low[k]);
      }
    }
  }

 private:
  VQ_DEVICE float peak_of_row() const {
    constexpr int kWarps = kStagingThreads / 32;
    u32* const peaks = shared_part<u32>(0);
    u32 peak = 0;
    for (int step = thread_index(); step < kAllSteps; step += kStagingThreads) {
      load(step, [&](int, const U32x4& octet) { peak = SplitBytes::peak_bits(peak, octet); });
    }
    peak = SplitBytes::peak_of_warp(peak);
    if (lane() == 0) store_shared(peaks + warp(), peak);
    sync_block();
    VQ_UNROLL
    for (int w = 0; w < kWarps; ++w) peak = larger_halves(peak, load_shared(peaks + w));
    return SplitBytes::peak<kConfig.element>(peak);
  }

  // use(c, the octet of x that lane c of a product's four looks up in the step).
  template <class Use>
  VQ_DEVICE void load(int step, Use use) const {
    VQ_UNROLL
    for (int c = 0; c < 4; ++c) use(c, step_octet<Plan>(args_, row_, step, c));
  }
  VQ_DEVICE static void set_word(U32x4& words, int i, u32 word) {
    (i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w) = word;
  }

  const LinearArgs& args_;
  int row_;
};

template <class Plan>
VQ_DEVICE void linear_bytes_of_x(const LinearArgs& args) {
  for_expert<Plan>(args, block_z(), [](const LinearArgs& own) {
    const int row = block_x();
    if (row < LinearWork<Plan>::rows(own)) StagedRow<Plan>(own, row).run();
  });
}

// The scale of a row of x.
template <class Plan>
VQ_DEVICE float staged_scale(const LinearArgs& args, int row) {
  constexpr i64 kAt = staged_scales(Plan::config());
  return load_global(reinterpret_cast<const float*>(args.staged + kAt) + row);
}

}  // namespace vq
