// Rows or tokens that change within an op: the few sizes that kernels are made for, so that a
// launch finds its own by a scan. Tokens only change the plan, never the text: sizes grow fourfold,
// and those with one plan are one. Rows are part of the text: powers of two.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/gpu/gpu_spec.h"
#include "core/problem/config.h"
#include "runtime/prepare.h"

namespace vqgen::library {

// Tokens of an attention, rows of a product, tokens that the cache of a kv_append has room for:
// which change neither its plan nor its text, so that it has one bucket.
std::int64_t size_of(const Problem& problem);

// The problem with another size, 1 or more and no more than its own. A gemm of one row is a gemv.
Problem resized(Problem problem, std::int64_t size);

struct BucketPlan {
  std::int64_t most = 0;  // tokens, of kv_append those that the cache has room for, or rows
  Config config;          // of that size
  Plan plan;
  PlanSource from = {};
};

// The `max_buckets` largest sizes with their plans, ascending; the last is the config's own. Sizes
// that the GPU cannot do with the fields that the config fixes are left to the next larger one.
// Error(infeasible) where the config's own cannot be done.
std::vector<BucketPlan> plan_buckets(const Config& config, const GpuSpec& gpu, int max_buckets,
                                     const PlanOptions& options = {});

// Those of another config of the same problem for the sizes of `like`, by the same rules.
std::vector<BucketPlan> plan_same_buckets(const Config& config, std::span<const BucketPlan> like,
                                          const GpuSpec& gpu, const PlanOptions& options);

// The index of the least bucket for `size` in ascending buckets; their number where none is.
template <class Buckets>
std::size_t bucket_index(const Buckets& buckets, std::int64_t size) {
  std::size_t index = 0;
  while (index < buckets.size() && buckets[index].most < size) ++index;
  return index;
}

}  // namespace vqgen::library
