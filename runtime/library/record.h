// Record: a prepared op, immutable once it is shared. It holds all that a launch needs: which
// kernel serves which size, its workspace, and what its pointers must be.
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

// An op whose rows or tokens vary gets kernels for a few sizes, which a launch finds by a scan.
// Tokens change only the plan: sizes grow fourfold, and attention sizes with one plan are one. Rows
// are part of the text: powers of two. Only the device knows an expert's rows: one size.

// The tokens of an attention or kv_dequantize, the rows of a GEMM over all experts, of an
// attention_merge or weight_dequantize, or the tokens that a kv_append's cache has room for. The
// last two change neither plan nor text, so those ops have one bucket.
std::int64_t size_of(const Problem& problem);

// The problem with another size, from 1 to its own. A gemm of one row is a gemv.
Problem resized(Problem problem, std::int64_t size);

struct BucketPlan {
  std::int64_t most = 0;  // tokens (for kv_append, the cache's room), or rows
  Config config;          // for that size
  Plan plan;
  PlanSource from = {};
};

// Plans for the `max_buckets` largest sizes, ascending; the last is the config's own. A size that
// the GPU cannot do with the config's fixed fields is left to the next larger one. `like` (buckets
// of the same problem) gives the sizes. Throws Error(infeasible) if the config's own size fails.
std::vector<BucketPlan> plan_buckets(const Config& config, const GpuSpec& gpu, int max_buckets,
                                     const PlanOptions& options = {},
                                     std::span<const BucketPlan> like = {});

// The index of the smallest bucket for `size` in ascending buckets; their count if none serves it.
template <class Buckets>
std::size_t bucket_index(const Buckets& buckets, std::int64_t size) {
  std::size_t index = 0;
  while (index < buckets.size() && buckets[index].most < size) ++index;
  return index;
}

// What the launch of one kernel requires of its arguments; alignments in bytes, as masks.
struct Demands {
  bool readable = false;          // device memory is the host's
  std::uintptr_t codes_mask = 3;  // codes, and their strides in bytes
  // Raw tokens, x, the outputs of kv_dequantize and weight_dequantize, and all tensors of
  // attention_merge.
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
  std::size_t workspace_bytes = 0;  // the largest of any bucket, of a later record too
  std::string description;          // JSON

  // For a baseline: the record of the wanted plan once it is made. `better` owns it; one thread
  // sets it.
  bool baseline = false;
  mutable std::atomic<const Record*> now{nullptr};
  mutable std::shared_ptr<const Record> better;
  // The description that says why there will be none; one thread sets it once.
  mutable std::atomic<const std::string*> failed{nullptr};
  mutable std::string without_better;

  // The record that a launch uses.
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
  int threads = 1;        // compile buckets at once
  PlanOptions plan = {};  // its tables may be null, and outlive it
  std::mutex* load = nullptr;
  std::stop_token stop = {};  // once requested, no further bucket is begun
};

// Compiles with `compiler`, the maker's backend or a stand-in, and loads. With `wanted` plans the
// record is their baseline: it requires the workspace and alignment that they will. Throws
// Error(device) if `stop` is requested, and what prepare() and load() throw.
std::shared_ptr<Record> make_record(const Maker& maker, const Backend& compiler, std::string key,
                                    std::span<const BucketPlan> plans,
                                    std::span<const BucketPlan> wanted = {});

// A changed description, as text.
std::string dump_description(const Json& json);

}  // namespace vqgen::library
