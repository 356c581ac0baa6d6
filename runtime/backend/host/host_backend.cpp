#include "runtime/backend/host/host_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <new>
#include <numeric>
#include <random>
#include <thread>

#include <vq/layout/launch.h>

#include "core/error.h"
#include "runtime/backend/host/cluster_runner.h"
#include "runtime/backend/host/compiler.h"
#include "runtime/backend/host/host_memory.h"

namespace vqgen {
namespace {

class HostBackend;

// A copy a worker.
struct HostKernel : LoadedKernel {
  HostKernel(HostBackend& owner, const KernelSource& loaded) : backend(owner), source(loaded) {
    source.text.clear();
  }
  void enqueue(std::size_t entry, std::span<const std::byte> args, void*) const override;

  HostBackend& backend;
  KernelSource source;  // all but its text
  std::vector<host::Library> copies;
};

// The shape of a current GPU, so that plans made for one are feasible here. Speeds are a CPU's.
GpuSpec host_spec() {
  return {.name = "host",
          .arch = "host",
          .sms = 4,
          .registers_per_sm = 65536,
          .max_threads_per_sm = 2048,
          .max_blocks_per_sm = 32,
          .shared_bytes_per_sm = 233472,
          .shared_bytes_per_block = 232448,
          .shared_bytes_reserved = 1024,
          .l2_bytes = std::int64_t{32} << 20,
          .memory_bytes = std::int64_t{8} << 30,
          .memory_gbps = 20,
          .sm_clock_mhz = 2000,
          .warpgroup_products = true,
          .sources = {}};
}

// Limits of every CUDA GPU since sm_75, which a launch there would refuse too.
void check_shape(const KernelEntry& shape, const GpuSpec& spec) {
  constexpr unsigned kMostRows = 65535;
  const Dim3& grid = shape.grid;
  const bool ok = grid.x >= 1 && grid.x <= 0x7fffffffu && grid.y >= 1 && grid.y <= kMostRows &&
                  grid.z >= 1 && grid.z <= kMostRows && shape.threads >= 1 &&
                  shape.threads <= host::kMostThreads && shape.shared_bytes >= 0 &&
                  shape.shared_bytes <= spec.shared_bytes_per_block;
  if (ok) return;
  throw device_error(
      "cannot launch {}: grid {}x{}x{}, {} threads, {} shared bytes is beyond what a GPU takes; "
      "choose a smaller plan",
      shape.name, grid.x, grid.y, grid.z, shape.threads, shape.shared_bytes);
}

// Blocks come one by one, or as the clusters that their kernel has.
void check_clusters(const KernelEntry& shape, int blocks) {
  if (blocks >= 1 && blocks <= vq::kMostClusterBlocks &&
      shape.grid.z % static_cast<unsigned>(blocks) == 0) {
    return;
  }
  throw device_error(
      "cannot launch {}: {} blocks of z are no whole clusters of {}, or a GPU has no such "
      "clusters; use clusters of 1 to {}",
      shape.name, shape.grid.z, blocks, vq::kMostClusterBlocks);
}

std::vector<std::uint32_t> cluster_order(const HostOptions& options, std::uint64_t clusters) {
  std::vector<std::uint32_t> order(clusters);
  std::iota(order.begin(), order.end(), 0u);
  if (options.order == LaneOrder::reverse) std::reverse(order.begin(), order.end());
  if (options.order == LaneOrder::random) {
    std::shuffle(order.begin(), order.end(), std::mt19937_64(options.seed));
  }
  return order;
}

class HostBackend : public Backend {
 public:
  explicit HostBackend(HostOptions options)
      : options_(std::move(options)),
        compiler_(options_.compiler, options_.scratch, options_.check_races, options_.optimize) {
    const unsigned workers = options_.check_races ? 1 : std::max(options_.threads, 1u);
    for (unsigned i = 0; i < workers; ++i) {
      runners_.push_back(std::make_unique<host::ClusterRunner>(options_.order, options_.seed,
                                                               options_.check_races));
    }
  }

  std::string_view name() const override { return "host"; }
  Machine machine() const override { return Machine::host; }
  std::optional<GpuSpec> device() const override { return spec_; }
  CompilerIdentity compiler(const KernelSource&) const override { return compiler_.identity(); }
  Artifact compile(const KernelSource& source) const override { return compiler_.compile(source); }

  std::unique_ptr<LoadedKernel> load(const Artifact& artifact,
                                     const KernelSource& source) override {
    auto kernel = std::make_unique<HostKernel>(*this, source);
    for (std::size_t i = 0; i < runners_.size(); ++i) {
      kernel->copies.emplace_back(artifact.binary, source, options_.check_races, options_.scratch);
    }
    return kernel;
  }

  void* allocate(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    return memory_.allocate(bytes);
  }
  void release(void* pointer) noexcept override {
    const std::lock_guard lock(mutex_);
    memory_.release(pointer);
  }

  void lend(const void* pointer, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    memory_.lend(pointer, bytes);
  }
  void give_back(const void* pointer, std::size_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    memory_.give_back(pointer, bytes);
  }

  std::optional<std::string> out_of_reach(const void* pointer, std::size_t bytes) const override {
    const std::lock_guard lock(mutex_);
    const std::uint64_t address = reinterpret_cast<std::uintptr_t>(pointer);
    if (memory_.find(address, bytes)) return std::nullopt;
    return memory_.locate(address);
  }

  void upload(void* destination, std::span<const std::byte> source) override {
    const std::lock_guard lock(mutex_);
    check_copy("upload", destination, source.size());
    if (!source.empty()) std::memcpy(destination, source.data(), source.size());
  }
  void download(std::span<std::byte> destination, const void* source) override {
    const std::lock_guard lock(mutex_);
    check_copy("download", source, destination.size());
    if (!destination.empty()) std::memcpy(destination.data(), source, destination.size());
  }

  void zero(void* destination, std::size_t bytes, void*) override {
    const std::lock_guard lock(mutex_);
    check_copy("zeroing", destination, bytes);
    if (bytes > 0) std::memset(destination, 0, bytes);
  }

  void launch(LoadedKernel& kernel, const KernelSource& source, std::size_t entry,
              std::span<const std::byte> args) override {
    run(dynamic_cast<const HostKernel&>(kernel), source, entry, args);
  }
  void run(const HostKernel& loaded, const KernelSource& source, std::size_t entry,
           std::span<const std::byte> args);

  void synchronize() override {}  // launch() returns when all is done

  std::vector<double> time_us(std::span<const Launch> launches, int replays,
                              double warm_up_ms) override {
    const auto run = [&] {
      const auto begin = std::chrono::steady_clock::now();
      for (const Launch& each : launches) launch(*each.kernel, *each.source, each.entry, each.args);
      const std::chrono::duration<double, std::micro> spent =
          std::chrono::steady_clock::now() - begin;
      return spent.count();
    };
    for (double warm = 0; warm < 1e3 * warm_up_ms;) warm += run();
    return timed_runs(replays, run);
  }

 private:
  void check_copy(const char* what, const void* device, std::size_t bytes) const {
    const std::uint64_t address = reinterpret_cast<std::uintptr_t>(device);
    if (bytes == 0 || memory_.find(address, bytes)) return;
    throw device_error("{} of {} bytes {}; copy within one allocation", what, bytes,
                       memory_.locate(address));
  }

  HostOptions options_;
  GpuSpec spec_ = host_spec();
  host::Compiler compiler_;
  mutable std::mutex mutex_;  // guards what follows
  host::HostMemory memory_;
  std::vector<std::unique_ptr<host::ClusterRunner>> runners_;
};

void HostKernel::enqueue(std::size_t entry, std::span<const std::byte> args, void*) const {
  backend.run(*this, source, entry, args);
}

void HostBackend::run(const HostKernel& loaded, const KernelSource& source, std::size_t entry,
                      std::span<const std::byte> args) {
  const std::lock_guard one_grid(mutex_);
  const KernelEntry& shape = source.entries.at(entry);
  check_shape(shape, spec_);
  if (args.size() != static_cast<std::size_t>(source.args_bytes)) {
    throw device_error(
        "cannot launch {}: {} bytes of arguments, it takes {}; pass the op's argument struct",
        shape.name, args.size(), source.args_bytes);
  }
  host::GuardedBlock own_args(args.size());
  if (!args.empty()) std::memcpy(own_args.data(), args.data(), args.size());
  const host::Launch launch{&shape, own_args.data(), &memory_};

  const int cluster = loaded.copies.front().entry(entry).cluster;
  check_clusters(shape, cluster);

  // Blocks are handed out in order and those before a faulty one all run, so that the fault that is
  // reported, the first in that order, does not depend on the number of workers.
  const std::vector<std::uint32_t> order =
      cluster_order(options_, std::uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z /
                                  static_cast<unsigned>(cluster));
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::size_t fault_position = order.size();
  std::string fault;
  const auto work = [&](std::size_t worker) {
    for (std::size_t at = next++; at < order.size(); at = next++) {
      std::optional<std::string> found = runners_[worker]->run(order[at]);
      if (!found) continue;
      next = order.size();
      const std::lock_guard lock(mutex);
      if (at < fault_position) {
        fault_position = at;
        fault = std::move(*found);
      }
    }
  };
  const std::size_t workers = std::min(runners_.size(), order.size());
  try {
    for (std::size_t i = 0; i < workers; ++i) {
      runners_[i]->begin(launch, loaded.copies[i].entry(entry));
    }
  } catch (const std::bad_alloc&) {
    throw device_error("no host memory to run {}; free some", shape.name);
  }
  std::vector<std::jthread> helpers;
  for (std::size_t i = 1; i < workers; ++i) helpers.emplace_back(work, i);
  work(0);
  helpers.clear();

  const std::optional<std::string> damage = memory_.take_damage();
  if (!fault.empty()) throw Error(ErrorKind::device, fault);
  if (damage) {
    throw device_error(
        "kernel {}: a write without store_global {}; store through store_global to learn where",
        shape.name, *damage);
  }
}

}  // namespace

std::unique_ptr<Backend> make_host_backend(HostOptions options) {
  return std::make_unique<HostBackend>(std::move(options));
}

}  // namespace vqgen
