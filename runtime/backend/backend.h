// Backend: the outside world behind one interface. `cuda` drives a GPU through the driver API and
// NVRTC, `host` runs the same text on the CPU. Not thread-safe unless a function says so.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/gpu/gpu_spec.h"
#include "core/json/fields.h"
#include "core/plan/kernel_source.h"

namespace vqgen {

// The compiler's figures of one entry.
struct KernelResources {
  std::string name;
  int registers = 0;
  int static_shared_bytes = 0;
  int spill_bytes = 0;  // stores plus loads
  static constexpr auto fields() {
    using R = KernelResources;
    return std::make_tuple(field("name", &R::name, required(), "extern \"C\" name"),
                           field("registers", &R::registers, required(), "32-bit, a thread"),
                           field("static_shared_bytes", &R::static_shared_bytes, required(),
                                 "beside the launch's dynamic share"),
                           field("spill_bytes", &R::spill_bytes, required(),
                                 "local memory traffic of spills, stores plus loads"));
  }
  bool operator==(const KernelResources&) const = default;
};

// A compiled text: a cubin or a shared library, as bytes. What the cache stores.
struct Artifact {
  std::vector<std::byte> binary;
  std::vector<KernelResources> kernels;  // one per entry, in order
  double compile_ms = 0;                 // of the compilation that made it
};

// Everything beside the text that decides what the compiler makes; part of the cache key.
struct CompilerIdentity {
  std::string name;                  // "nvrtc 13.0.88 build-id ..." or "g++ 12.2.0 ..."
  std::vector<std::string> options;  // as passed to the compiler
};

// A loaded artifact. Destroying it unloads; no launch of it may be in flight.
class LoadedKernel {
 public:
  virtual ~LoadedKernel() = default;

  // Queues entry number `entry` with `args` on the caller's stream (a CUstream; null is the current
  // context's default stream). load() has done all other work: on a GPU this is one driver call
  // without allocation, lock or attribute, fit for stream capture. Thread-safe. Error(device).
  virtual void enqueue(std::size_t entry, std::span<const std::byte> args, void* stream) const = 0;
};

// One entry of a loaded kernel with its arguments, which must live until the call that takes it
// returns.
struct Launch {
  LoadedKernel* kernel = nullptr;
  const KernelSource* source = nullptr;
  std::size_t entry = 0;
  std::span<const std::byte> args;
};

template <class... Args>
Error device_error(fmt::format_string<Args...> text, Args&&... args) {
  return {ErrorKind::device, fmt::format(text, std::forward<Args>(args)...)};
}

// The line of a compiler's log that says what went wrong first; of a log without such a line the
// first.
inline std::string first_error(std::string_view log) {
  const std::size_t mark = std::min(log.find("error"), log.find("fatal"));
  const std::size_t begin = mark == log.npos ? 0 : log.rfind('\n', mark) + 1;
  return std::string(log.substr(begin, log.find('\n', begin) - begin));
}

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;
  virtual Machine machine() const = 0;

  // The device that launches run on; nullopt where there is none (compiling still works).
  virtual std::optional<GpuSpec> device() const = 0;

  // Name and version of what drives the device; "none" without one.
  virtual std::string driver() const { return "none"; }

  // Identity of the compiler, which may be read from its file; after compile() it is that of what
  // compiled. Thread-safe. Error(device) with the searched places if it is missing.
  virtual CompilerIdentity compiler(const KernelSource& source) const = 0;

  // compiler() after opening it, if compiler() reads only its file. Thread-safe. Error(device) as
  // compile().
  virtual CompilerIdentity opened_compiler(const KernelSource& source) const {
    return compiler(source);
  }

  // False where compile() always refuses: then nobody waits for others to compile.
  virtual bool may_compile() const { return true; }

  // Thread-safe. Error(device) with the compiler's first error line; the whole log and the text are
  // kept in a file that the message names.
  virtual Artifact compile(const KernelSource& source) const = 0;

  virtual std::unique_ptr<LoadedKernel> load(const Artifact& artifact,
                                             const KernelSource& source) = 0;

  // Allocates device memory of exactly `bytes`, uninitialized, 256-byte aligned. Error(device) when
  // full. These four functions are thread-safe; copies wait until they are done.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* pointer) noexcept = 0;
  virtual void upload(void* destination, std::span<const std::byte> source) = 0;
  virtual void download(std::span<std::byte> destination, const void* source) = 0;

  // Memory of the caller that kernels may touch until it is given back, where only what was
  // allocated may be touched otherwise. Does nothing on a device, which finds what it can reach.
  virtual void lend(const void* /*pointer*/, std::size_t /*bytes*/) {}
  virtual void give_back(const void* /*pointer*/, std::size_t /*bytes*/) noexcept {}

  // Why kernels may not touch these bytes, "across the end of an allocation of 8 bytes"; nullopt if
  // they may, and on a device, where it is unknown. Thread-safe.
  virtual std::optional<std::string> out_of_reach(const void* /*pointer*/,
                                                  std::size_t /*bytes*/) const {
    return std::nullopt;
  }

  // Blocks of entry number `entry`, in the shape that `source` gives it, that an SM holds at once
  // by the driver's count; nullopt if there is none.
  virtual std::optional<int> resident_blocks(LoadedKernel& /*kernel*/,
                                             const KernelSource& /*source*/,
                                             std::size_t /*entry*/) const {
    return std::nullopt;
  }

  // Queues entry number `entry` with `args` (the op's argument struct, by value).
  virtual void launch(LoadedKernel& kernel, const KernelSource& source, std::size_t entry,
                      std::span<const std::byte> args) = 0;

  // Waits for all launches. Error(device) names the fault of any of them.
  virtual void synchronize() = 0;

  // For a stream as enqueue() takes: true if it is being captured to a graph; waits for it.
  // Backends that run at once have none. Thread-safe. Error(device).
  virtual bool capturing(void* /*stream*/) const { return false; }
  virtual void wait_for(void* /*stream*/) {}

  // Queues zeros for `bytes` of device memory on the caller's stream, as enqueue() queues a kernel;
  // may be captured. What runs at once is done when it returns. Thread-safe. Error(device).
  virtual void zero(void* destination, std::size_t bytes, void* stream) = 0;

  // Makes the context that kernels are loaded into current for the calling thread; nothing where
  // there is none. Thread-safe. Error(device).
  virtual void make_current() {}

  // Times up to `replays` runs (timed_runs()) of all launches in order, microseconds each, after
  // `warm_up_ms`, which settles the clock. On a GPU a run is one replay of a graph with the
  // launches, which hides the host's share, and at least one precedes.
  virtual std::vector<double> time_us(std::span<const Launch> launches, int replays,
                                      double warm_up_ms) = 0;
};

// Owns device memory. Move-only; must not outlive its backend.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Backend& backend, std::size_t bytes)
      : memory_(backend.allocate(bytes), {&backend}), bytes_(bytes) {}
  void* data() const { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Release {
    Backend* backend;
    void operator()(void* pointer) const { backend->release(pointer); }
  };
  std::unique_ptr<void, Release> memory_;
  std::size_t bytes_ = 0;
};

constexpr int kLeastTimedRuns = 3;
constexpr double kEnoughTimedUs = 50'000;

// Calls run() up to `replays` times and returns its results, in microseconds. After kLeastTimedRuns
// no run starts once the sum reaches kEnoughTimedUs: a search would spend most of its time on slow
// plans.
template <class Run>
std::vector<double> timed_runs(int replays, const Run& run) {
  std::vector<double> times;
  double spent = 0;
  for (int i = 0; i < replays && (i < kLeastTimedRuns || spent < kEnoughTimedUs); ++i) {
    times.push_back(run());
    spent += times.back();
  }
  return times;
}

// A backend without a device, for what compiles, or looks kernels up, and runs none: what drives a
// device does nothing here. Memory is null, and a load gives no kernel.
class NoDevice : public Backend {
 public:
  std::optional<GpuSpec> device() const override { return std::nullopt; }
  std::unique_ptr<LoadedKernel> load(const Artifact&, const KernelSource&) override { return {}; }
  void* allocate(std::size_t) override { return nullptr; }
  void release(void*) noexcept override {}
  void upload(void*, std::span<const std::byte>) override {}
  void download(std::span<std::byte>, const void*) override {}
  void zero(void*, std::size_t, void*) override {}
  void launch(LoadedKernel&, const KernelSource&, std::size_t,
              std::span<const std::byte>) override {}
  void synchronize() override {}
  std::vector<double> time_us(std::span<const Launch>, int, double) override { return {}; }
};

}  // namespace vqgen
