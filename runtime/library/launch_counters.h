// Counters of launches whose last block merges. They are in the library's memory, since the
// contents of a caller's workspace are never trusted. Launches that share a workspace do not
// overlap, and each leaves its counters at zero, so each workspace address has counters that are
// zeroed once.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/backend/backend.h"

namespace vqgen::library {

// Thread-safe. Launches that were given counters must finish before this is destroyed.
class LaunchCounters {
 public:
  explicit LaunchCounters(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {}
  LaunchCounters(const LaunchCounters&) = delete;
  LaunchCounters& operator=(const LaunchCounters&) = delete;

  // Makes room for the counters of a new workspace, of any plan. Throws Error(device).
  void reserve();

  // `bytes` of counters for launches with this workspace, at most vq::kCounterBytes. Only the first
  // call with a workspace takes a lock; it allocates if no room is left. Throws Error(device).
  void* of(const void* workspace, std::size_t bytes);

 private:
  struct Place {
    const void* workspace;
    std::size_t bytes;
    void* counters;
    const Place* next;
  };
  using List = std::atomic<const Place*>;

  static const Place* find(const List& list, const void* workspace, std::size_t bytes);
  List& list_of(const void* workspace);
  void add_room();

  const std::shared_ptr<Backend> backend_;
  std::array<List, 256> lists_{};  // by a hash of the workspace; places are added in front
  std::mutex mutex_;               // guards what follows
  std::deque<Place> places_;
  std::vector<DeviceBuffer> memory_;
  std::size_t used_ = 0;  // bytes of the last
};

}  // namespace vqgen::library
