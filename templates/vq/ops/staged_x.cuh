// x as bytes for dataflow bytegroups: made once by a kernel of its own, in the workspace. Order and
// scales: linear_int8_wgmma/plan.h.
#pragma once

#include <vq/args/linear.h>
#include <vq/kernels/linear_int8_wgmma/plan.h>
#include <vq/ops/linear_work.cuh>
#include <vq/ops/split_bytes.cuh>
#include <vq/ops/step_octets.cuh>

namespace vq {

// A block turns a row to bytes. Each thread holds its columns from the one load of them on.
template <class Plan>
class StagedRow {
 public:
  using Work = LinearWork<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr int kRows = kConfig.rows_per_block;
  static constexpr int kThreads = staging_threads(kConfig);
  static constexpr int kAllSteps = static_cast<int>(staged_steps(kConfig));
  static constexpr int kSteps = ceil_div(kAllSteps, kThreads);  // per thread, the last maybe empty

  VQ_DEVICE StagedRow(const LinearArgs& args, int row) : args_(args), row_(row) {}

  VQ_DEVICE void run() {
    load();
    const float peak = peak_of_row();
    if (thread_index() == 0) {
      store_global(reinterpret_cast<float*>(args_.staged + staged_scales(kConfig)) + row_,
                   SplitBytes::scale_of(peak));
    }
    const float to_peak = SplitBytes::factor_of(peak);
    VQ_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      if (step_of(i) < kAllSteps) store(step_of(i), octets_[i], to_peak);
    }
  }

 private:
  static constexpr int kOctets = 4;  // octets per step: those that an MMA's four lanes look up

  VQ_DEVICE static int step_of(int i) { return thread_index() + i * kThreads; }

  VQ_DEVICE void load() {
    VQ_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      VQ_UNROLL
      for (int c = 0; c < kOctets; ++c) {
        octets_[i][c] = step_octet<Plan>(args_, row_, step_of(i), c);  // past the last zeros
      }
    }
  }

  VQ_DEVICE float peak_of_row() const {
    constexpr int kWarps = kThreads / 32;
    u32* const peaks = shared_part<u32>(0);
    u32 peak = 0;
    VQ_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      VQ_UNROLL
      for (int c = 0; c < kOctets; ++c) peak = SplitBytes::peak_bits(peak, octets_[i][c]);
    }
    peak = SplitBytes::peak_of_warp(peak);
    if (lane() == 0) store_shared(peaks + warp(), peak);
    sync_block();
    peak = lane() < kWarps ? load_shared(peaks + lane()) : 0;
    return SplitBytes::peak<kConfig.element>(SplitBytes::peak_of_warp(peak));
  }

  VQ_DEVICE void store(int step, const U32x4 (&octets)[kOctets], float to_peak) const {
    U32x4 high[2], low[2];
    VQ_UNROLL
    for (int c = 0; c < kOctets; ++c) {
      u32 h[2], l[2];
      SplitBytes::split<kConfig.element>(h, l, octets[c], to_peak);
      VQ_UNROLL
      for (int k = 0; k < 2; ++k) {
        set_word(high[k], c, h[k]);
        set_word(low[k], c, l[k]);
      }
    }
    u8* const to = args_.staged + row_ / kRows * staged_row_bytes(kConfig) +
                   i64{step} * step_bytes(kConfig) + row_ % kRows * kCoreRowBytes;
    VQ_UNROLL
    for (int k = 0; k < 2; ++k) {
      u8* const octet = to + k * k_octet_bytes(kConfig);
      store_global(reinterpret_cast<U32x4*>(octet), high[k]);
      store_global(reinterpret_cast<U32x4*>(octet + kRows * kCoreRowBytes), low[k]);
    }
  }
  VQ_DEVICE static void set_word(U32x4& words, int i, u32 word) {
    (i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w) = word;
  }

  const LinearArgs& args_;
  int row_;
  U32x4 octets_[kSteps][kOctets];
};

template <class Plan>
VQ_DEVICE void linear_int8_mma_of_x(const LinearArgs& args) {
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
