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

#include "runtime/backend/backend.h"
#include "runtime/cache/artifact_cache.h"
#include "runtime/library/buckets.h"

namespace vqgen::library {

// What the launch of one kernel asks of its arguments; alignments in bytes, as masks.
struct Demands {
  bool output_scales = false;                 // the products' format has them
  bool key_smooth = false;                    // the cache's keys have it
  bool scales = false, value_scales = false;  // of the stages: weights or keys; values
  bool window = false, sinks = false;
  std::uintptr_t codes_mask = 3;     // of codes, and of their strides in bytes
  std::uintptr_t elements_mask = 1;  // of raw tokens, and of x
};

struct Bucket : BucketPlan {
  std::unique_ptr<LoadedKernel> kernel = {};
  std::size_t entries = 0;
  std::size_t workspace_bytes = 0;  // that a launch must bring; a baseline's: its own or more
  std::size_t own_bytes = 0;        // of it, that these kernels use
  std::size_t score_bytes = 0;      // of them, partial scores
  Demands demands = {};
  std::vector<KernelResources> resources = {};
  bool from_disk = false;
};

struct Record {
  std::shared_ptr<Backend> backend;  // outlives the kernels
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

// Record::description, and one that was changed.
std::string describe(const Record& record, const Maker& maker);
std::string dump_description(const Json& json);

}  // namespace vqgen::library
