// Registry: the ops of one runtime. A known config is found by its text, under a shared lock,
// without parsing, disk or driver; another text of the same problem and plan by the spec key. If
// several threads ask for a new one, the first makes it and the others wait.
#pragma once

#include <vqgen/vqgen.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <shared_mutex>
#include <thread>

#include "runtime/library/record.h"

namespace vqgen::library {

enum class MissPolicy { compile, fail, fallback };
enum class Provenance { compiled, disk, memory, baseline };
enum class Refusal { none, frozen, miss, capturing };

// A record, or why there is none.
struct Outcome {
  std::shared_ptr<const Record> record;
  Provenance provenance = Provenance::memory;
  Refusal refusal = Refusal::none;
};

struct RegistryOptions {
  MissPolicy miss = MissPolicy::compile;
  int max_buckets = 16;                            // one for each size of a gemm of 256 rows
  int threads = 1;                                 // compile the buckets of one op
  std::optional<GpuSpec> gpu = {};                 // nullopt: the config's, else default_gpu()
  std::shared_ptr<const TunedTables> tables = {};  // null: no tables are asked
};

// Canonical problem, the plan's fixed fields, access_counts file, GPU and backend.
std::string spec_key(const Config& config, const GpuSpec& gpu, std::string_view backend);

// Thread-safe.
class Registry {
 public:
  Registry(std::shared_ptr<Backend> backend, std::unique_ptr<ArtifactCache> cache,
           RegistryOptions options);
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;
  ~Registry();  // waits for the kernel that is compiled in the background, and starts no other

  // `source` names the text in messages. A stream that is not null must not be capturing if the op
  // is new. `threads` compile its buckets; 0: as the options say. Throws Error.
  Outcome prepare(std::string_view text, const std::string& source, void* stream = nullptr,
                  int threads = 0) {
    return find_or_make(text, text, source, stream, threads);
  }
  // Reads a file and prepares its text.
  Outcome prepare_file(const std::string& path, void* stream);

  void freeze() { frozen_ = true; }
  bool frozen() const { return frozen_; }
  // Held while a kernel that is no op's is loaded, as those of ops are.
  std::unique_lock<std::mutex> loading() { return std::unique_lock(load_mutex_); }

  // The plans that sizes from `least` to `most` reach. Throws Error(bad_input) for an invalid
  // range.
  std::vector<BucketPlan> enumerate(std::string_view text, std::int64_t least,
                                    std::int64_t most) const;

  Backend& backend() { return *backend_; }
  ArtifactCache* cache() { return cache_.get(); }

  // Held during a training, since Backend::launch() must be called by one thread at a time.
  std::mutex one_training;

 private:
  using Making = std::shared_future<Outcome>;
  using Task = std::function<void(const std::stop_token&)>;
  template <class Value>
  using Map = std::map<std::string, Value, std::less<>>;

  Outcome find_or_make(std::string_view seen, std::string_view text, const std::string& source,
                       void* stream, int threads);
  static Outcome found(std::shared_ptr<const Record> record);
  void remember(std::string_view seen, const std::shared_ptr<const Record>& record);
  PlanOptions plan_options() const { return {.tables = options_.tables.get()}; }
  GpuSpec gpu_of(const Config& config) const;
  Outcome make(const Config& config, const std::string& key, int threads);
  Outcome make_baseline(const Config& config, Maker maker, const std::string& key,
                        std::vector<BucketPlan> wanted);
  void later(Task task);
  void work(const std::stop_token& stop);

  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<LaunchCounters> counters_;
  const std::unique_ptr<ArtifactCache> cache_;
  const RegistryOptions options_;
  std::atomic<bool> frozen_{false};
  std::mutex load_mutex_;

  mutable std::shared_mutex mutex_;  // guards the maps
  Map<std::shared_ptr<const Record>> by_text_;
  Map<Making> by_key_;

  std::mutex queue_mutex_;  // guards the queue
  std::condition_variable_any queued_;
  std::deque<Task> queue_;
  std::jthread worker_;  // started with the first task
};

// What a runtime is made of, from the program's options and the environment. Throws
// Error(bad_input) for invalid options and Error(device) if there is no such device.
std::unique_ptr<Registry> make_registry(const vqgen_options& options);

}  // namespace vqgen::library

// The contents of the opaque handles of vqgen.h.
struct vqgen_runtime {
  std::unique_ptr<vqgen::library::Registry> registry;
};

struct vqgen_op {
  std::shared_ptr<const vqgen::library::Record> record;
  vqgen::library::Provenance provenance;
};
