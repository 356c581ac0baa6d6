// gemm of many rows on the tensor cores of Hopper: y = x W^T, W quantized and rebuilt in registers
// (ops/warpgroup_products.cuh), once for up to 256 rows. x comes as products read it, laid out by a
// kernel before, through a ring of bulk copies (ops/laid_out_x.cuh).
#pragma once

#include <vq/kernels/linear_rowgroups/plan.h>
#include <vq/ops/laid_out_x.cuh>
#include <vq/ops/warpgroup_products.cuh>

namespace vq {

template <class Plan>
class LinearRowgroupsBlock {
 public:
  using Work = LinearWork<Plan>;
  using Products = WarpgroupProducts<Plan, 0, StreamConstant>;
  using Codes = typename Products::Codes;
  static constexpr auto kConfig = Plan::config();
  static constexpr int kRunColumns = run_columns(kConfig);

  VQ_DEVICE explicit LinearRowgroupsBlock(const LinearArgs& args) : products_(args), ring_(args) {}

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
    if (entries.switch_to(Work::bound_unit(Work::begin()))) entries.load();
    if (thread_index() == 0) ring_.begin();
    after_last_launch();
    if (thread_index() == 0) ring_.ask_for_first();
    sync_block();  // the ring's barriers and the codebook stand
    for (i64 first = Work::begin(); first < Work::end(); first += kConfig.chunk_columns) {
      if (entries.switch_to(Work::bound_unit(first))) {
        sync_block();  // the last unit's entries have been read
        entries.load();
        sync_block();
      }
      for (int run = 0; run < kConfig.chunk_columns / kRunColumns; ++run) {
        const typename Codes::Run now = next;
        products_.multiply(
            now, first, first + run * kRunColumns, [&](int step) { return ring_.step(step); },
            [&] { products_.codes().load(next, first / kRunColumns + run + 1); });
      }
    }
    warpgroup_wait<0>();
  }

  Products products_;
  XRing<Plan> ring_;
};

template <class Plan>
VQ_DEVICE void linear_rowgroups(const LinearArgs& args) {
  linear_block<Plan, LinearRowgroupsBlock<Plan>>(args);
}

}  // namespace vq
