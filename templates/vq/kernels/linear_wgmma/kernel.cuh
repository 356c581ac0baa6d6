// GEMM on Hopper's tensor cores: y = x W^T, with W quantized and rebuilt in registers
// (ops/warpgroup_products.cuh). Threads load the x of the next chunk while this one is multiplied
// (ops/warpgroup_x.cuh).
#pragma once

#include <vq/kernels/linear_wgmma/plan.h>
#include <vq/ops/warpgroup_products.cuh>
#include <vq/ops/warpgroup_x.cuh>

namespace vq {

template <class Plan>
class LinearWgmmaBlock {
 public:
  using Work = LinearWork<Plan>;
  using X = WarpgroupX<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr int kSteps = run_steps(kConfig);
  static constexpr int kRunColumns = run_columns(kConfig);
  // When the next run and chunk are fetched: half-way where sums leave few registers for them.
  static constexpr int kFetchStep = kConfig.rows_per_block >= 64 ? kSteps / 2 : 0;
  using Products = WarpgroupProducts<Plan, kFetchStep>;
  using Codes = typename Products::Codes;

  VQ_DEVICE explicit LinearWgmmaBlock(const LinearArgs& args) : products_(args), x_(args) {}

  VQ_DEVICE void run() {
    products_.clear();
    if (Work::begin() < Work::end()) {
      multiply_share();
    } else {
      after_last_launch();
    }
    products_.write();
  }

 private:
  // The columns of this block's split.
  VQ_DEVICE void multiply_share() {
    typename Codes::Run next{};
    products_.codes().load(next, Work::begin() / kRunColumns);
    auto& entries = products_.entries();
    const bool switched = entries.switch_to(Work::bound_unit(Work::begin()));
    typename Products::Entries::Begun begun{};
    if (switched) begun = entries.begin_load();
    after_last_launch();
    x_.fetch(Work::begin());
    if (switched) entries.finish_load(begun);
    stage(0);
    int buffer = 0;
    for (i64 first = Work::begin(); first < Work::end(); first += kConfig.chunk_columns) {
      if (entries.switch_to(Work::bound_unit(first))) {
        sync_block();  // the last unit's entries have been read
        entries.load();
      }
      sync_block();
      // The last chunk fetches itself again: a branch around loads would be one that they wait at.
      const i64 following = first + kConfig.chunk_columns;
      const u64 x = X::operand(buffer);
      for (int run = 0; run < kConfig.chunk_columns / kRunColumns; ++run) {
        const typename Codes::Run now = next;
        const u64 of_run = advanced(x, run * kSteps * step_bytes(kConfig));
        products_.multiply(
            now, first, first + run * kRunColumns,
            [&](int step) { return advanced(of_run, step * step_bytes(kConfig)); },
            [&] {
              products_.codes().load(next, first / kRunColumns + run + 1);
              if (run == 0) x_.fetch(following < Work::end() ? following : first);
            });
      }
      buffer = (buffer + 1) % kChunkBuffers;
      stage(buffer);
    }
    warpgroup_wait<0>();
  }

  // The fetched x, for products past the next barrier.
  VQ_DEVICE void stage(int buffer) {
    x_.store(buffer);
    fence_shared();
  }

  Products products_;
  X x_;
};

template <class Plan>
VQ_DEVICE void linear_wgmma(const LinearArgs& args) {
  linear_block<Plan, LinearWgmmaBlock<Plan>>(args);
}

}  // namespace vq
