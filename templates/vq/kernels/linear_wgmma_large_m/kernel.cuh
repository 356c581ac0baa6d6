// GEMM with many rows on Hopper's tensor cores: y = x W^T, with W quantized and rebuilt in
// registers once for up to 256 rows (ops/warpgroup_products.cuh). x is in the MMA's layout:
// prepacked and streamed by bulk copies (ops/laid_out_x.cuh), or each block lays out its own
// columns (ops/laid_out_share.cuh).
#pragma once

#include <vq/kernels/linear_wgmma_large_m/plan.h>
#include <vq/ops/laid_out_share.cuh>
#include <vq/ops/laid_out_x.cuh>
#include <vq/ops/warpgroup_products.cuh>

namespace vq {

template <class Plan>
class LinearWgmmaLargeMBlock {
 public:
  using Work = LinearWork<Plan>;
  using Products = WarpgroupProducts<Plan, 0, StreamConstant>;
  using Codes = typename Products::Codes;
  using Share = LaidOutShare<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr int kRunColumns = run_columns(kConfig);
  static constexpr bool kBefore = kConfig.prepack_x == 1;

  VQ_DEVICE explicit LinearWgmmaLargeMBlock(const LinearArgs& args)
      : args_(args), products_(args), ring_(args, Products::group()) {}

  VQ_DEVICE void run() {
    if constexpr (kBefore) products_.clear();
    if (Work::begin() < Work::end()) {
      multiply_share();
    } else {
      after_last_launch();
      if constexpr (!kBefore) products_.clear();
    }
    products_.write();
  }

 private:
  // The codebook, and x or the ring that it comes through.
  VQ_DEVICE void prepare() {
    auto& entries = products_.entries();
    entries.switch_to(Work::bound_unit(Work::begin()));
    const auto begun = entries.begin_load();
    if constexpr (kBefore) {
      // A warp asks for x as soon as it is there; the others fill the codebook before.
      if (thread_index() == 0) ring_.begin();
      if (warp() == 0) after_last_launch();
      if (thread_index() == 0) ring_.ask_for_first();
      entries.finish_load(begun);
      if (warp() != 0) after_last_launch();
    } else {
      // A plan with a merge kernel starts its blocks late, and x arrives before the codebook.
      constexpr bool kLate = stores_partials(kConfig);
      if constexpr (!kLate) entries.finish_load(begun);
      after_last_launch();
      Share::make(args_, [&] {
        if constexpr (kLate) entries.finish_load(begun);
      });
      fence_shared();
      products_.clear();  // behind what takes its registers
    }
    sync_block();  // x or the pipeline's barriers, and the codebook are ready
  }

  // The columns of this block's split.
  VQ_DEVICE void multiply_share() {
    const i64 first_run = Work::begin() / kRunColumns;
    i64 run = first_run + Products::group();
    typename Codes::Run next{};
    products_.codes().load(next, run);
    prepare();
    auto& entries = products_.entries();
    for (i64 first = Work::begin(); first < Work::end(); first += kConfig.chunk_columns) {
      if constexpr (units_per_row(kConfig) > 1) {
        if (entries.switch_to(Work::bound_unit(first))) {
          sync_block();  // the last unit's entries have been read
          entries.load();
          sync_block();
        }
      }
      for (int turn = 0; turn < kConfig.chunk_columns / turn_columns(kConfig); ++turn) {
        const typename Codes::Run now = next;
        const i64 column = run * kRunColumns;
        const auto done = static_cast<int>(run - first_run) * run_steps(kConfig);
        run += kConfig.groups_along_columns;
        products_.multiply(
            now, first, column,
            [&](int step) {
              if constexpr (kBefore) {
                return ring_.step(step);
              } else {
                return Share::step(done + step);
              }
            },
            [&] { products_.codes().load(next, run); });
      }
    }
    warpgroup_wait<0>();
  }

  const LinearArgs& args_;
  Products products_;
  XRing<Plan> ring_;
};

template <class Plan>
VQ_DEVICE void linear_wgmma_large_m(const LinearArgs& args) {
  linear_block<Plan, LinearWgmmaLargeMBlock<Plan>>(args);
}

}  // namespace vq
