// Record: a prepared op, immutable once it is shared. All that a launch needs was worked out when
// it was made: which kernel serves which size, its workspace, and what its pointers must be.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/library/launch_counters.h"
#include "runtime/prepare.h"

namespace vqgen::library {

// Rows or tokens that change within an op: the few sizes that kernels are made for, so that a
// launch finds its own by a scan. Tokens only change the plan, never what it does: sizes grow
// fourfold, and of an attention those with one plan are one; the grid of a kv_dequantize grows with
// them. Rows are part of the text: powers of two. How many an expert has is the device's to know,
// so that grouped products have one size.

// Tokens of an attention or a kv_dequantize, rows of a product, of all experts together, tokens
// that the cache of a kv_append has room for: which change neither its plan nor its text, so that
// it has one bucket; rows of an attention_merge, which has one likewise.
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
// Error(infeasible) where the config's own cannot be done. With buckets of another config of the
// same problem, `like`, those sizes are taken by the same rules.
std::vector<BucketPlan> plan_buckets(const Config& config, const GpuSpec& gpu, int max_buckets,
                                     const PlanOptions& options = {},
                                     std::span<const BucketPlan> like = {});

// The index of the least bucket for `size` in ascending buckets; their number where none is.
template <class Buckets>
std::size_t bucket_index(const Buckets& buckets, std::int64_t size) {
  std::size_t index = 0;
  while (index < buckets.size() && buckets[index].most < size) ++index;
  return index;
}

// What the launch of one kernel asks of its arguments; alignments in bytes, as masks.
struct Demands {
  bool readable = false;          // device memory is the host's
  std::uintptr_t codes_mask = 3;  // of codes, and of their strides in bytes
  // Of raw tokens, of x, of what kv_dequantize writes, and of what attention_merge reads and
  // writes.
  std::uintptr_t elements_mask = 1;
};

struct Bucket : BucketPlan {
  std::unique_ptr<LoadedKernel> kernel = {};
  std::size_t entries = 0;
  std::size_t workspace_bytes = 0;  // that a launch must bring; a baseline's: its own or more
  std::size_t own_bytes = 0;        // of it, that these kernels use
  std::size_t basis_bytes = 0;      // of them, rows in the basis of the cache
  std::size_t handed_bytes = 0;     // of them, what a kernel hands to the next
  std::size_t counter_bytes = 0;    // of the library's counters; 0 where the plan does not count
  Demands demands = {};
  std::vector<KernelResources> resources = {};
  bool from_disk = false;
};

struct Record {
  std::shared_ptr<Backend> backend;  // outlives the kernels
  std::shared_ptr<LaunchCounters> counters;
  std::string key;
  std::vector<Bucket> buckets;      // ascending
  std::size_t workspace_bytes = 0;  // the most of any, of a later record too
  std::string description;          // JSON

  // Of a baseline: the wanted plan once it is there, owned by `better`, which one thread sets once.
  bool baseline = false;
  mutable std::atomic<const Record*> now{nullptr};
  mutable std::shared_ptr<const Record> better;
  // The description with why there will be none, set once and likewise.
  mutable std::atomic<const std::string*> failed{nullptr};
  mutable std::string without_better;

  // What a launch takes.
  const Record& current() const {
    const Record* const other = now.load(std::memory_order_acquire);
    return other != nullptr ? *other : *this;
  }
  const char* told() const;  // the current one's description
  bool from_disk() const;
};

// What makes records. `load` is held while kernels are loaded.
struct Maker {
  std::shared_ptr<Backend> backend;
  std::shared_ptr<LaunchCounters> counters;
  ArtifactCache* cache = nullptr;  // may be null
  GpuSpec gpu;
  int threads = 1;        // that compile buckets at once
  PlanOptions plan = {};  // its tables may be null, and outlive it
  std::mutex* load = nullptr;
  std::stop_token stop = {};  // after which no further bucket is begun
};

// Compiles with `compiler`, which is the maker's backend or stands for it, and loads. With plans
// that are `wanted` in its stead the record is their baseline: it asks for the workspace and
// alignment that they will. Error(device) once it is to stop. Throws what prepare() and load()
// throw.
std::shared_ptr<Record> make_record(const Maker& maker, const Backend& compiler, std::string key,
                                    std::span<const BucketPlan> plans,
                                    std::span<const BucketPlan> wanted = {});

// A description that was changed, as text.
std::string dump_description(const Json& json);

}  // namespace vqgen::library
