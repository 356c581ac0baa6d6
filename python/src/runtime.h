// What the Python types hold: a runtime with its workspaces, and an op that launches by arrays.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "python/src/arguments.h"

namespace vqgen::python {

// Thread-safe, as its methods do not call Python.
class RuntimeState {
 public:
  explicit RuntimeState(const vqgen_options& options);
  RuntimeState(const RuntimeState&) = delete;
  RuntimeState& operator=(const RuntimeState&) = delete;
  ~RuntimeState();

  const Runtime& runtime() const { return *runtime_; }
  bool on_host() const { return on_host_; }
  DLDevice device() const { return device_; }
  // StatusError in a process that was forked since: contexts and threads do not survive that.
  void require_same_process() const;
  // The runtime's context for this thread, the first time that the thread comes.
  void make_current() const;

  // Sees to it that workspace() finds as many bytes without allocating for two new streams: one
  // that ops are called on, and one that is captured.
  void reserve(std::size_t bytes);
  // The stream's own, of at least as many bytes; null for none. What is outgrown is kept, since a
  // captured graph may use it.
  void* workspace(std::size_t bytes, void* stream);

  // Held over a launch on the host, where ops would otherwise share one workspace at once.
  std::mutex one_launch;

 private:
  using Memory = DeviceArray<char>;
  std::unique_ptr<Memory> make_workspace(std::size_t bytes) const;

  std::unique_ptr<Runtime> runtime_;
  bool on_host_;
  DLDevice device_;
  int process_;
  std::uint64_t number_;  // from 1, of all that this process made
  std::mutex mutex_;      // guards what follows
  std::size_t largest_ = 0;
  std::vector<std::unique_ptr<Memory>> spare_;           // of `largest_` bytes
  std::map<void*, std::pair<std::size_t, void*>> used_;  // by stream
  std::vector<std::unique_ptr<Memory>> memory_;
};

// The op's launch, by arrays in the order of slots_of(). `count` is the tokens; nothing where the
// arrays say it. Lets go of the GIL while a kernel runs on the host.
void launch(RuntimeState& state, const Op& op, const Signature& signature,
            const Arguments& arguments, std::optional<std::int64_t> count, float softmax_scale,
            void* stream);

}  // namespace vqgen::python
