#include "runtime/library/launch_counters.h"

#include <vq/layout/launch.h>

namespace vqgen::library {
namespace {

constexpr std::size_t kRoom = std::size_t{1} << 20;  // bytes that are allocated at once
constexpr std::size_t kMost = vq::kCounterBytes;
constexpr std::size_t kGranule = 256;  // so that workspaces share no sector of L2

}  // namespace

void LaunchCounters::add_room() {
  DeviceBuffer room(*backend_, kRoom);
  backend_->upload(room.data(), std::vector<std::byte>(kRoom));
  memory_.push_back(std::move(room));
  used_ = 0;
}

void LaunchCounters::reserve() {
  const std::lock_guard lock(mutex_);
  if (memory_.empty() || kRoom - used_ < kMost) add_room();
}

LaunchCounters::List& LaunchCounters::list_of(const void* workspace) {
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(workspace);
  return lists_[address * 0x9e3779b97f4a7c15u >> 56];
}

const LaunchCounters::Place* LaunchCounters::find(const List& list, const void* workspace,
                                                  std::size_t bytes) {
  const Place* place = list.load(std::memory_order_acquire);
  while (place != nullptr && (place->workspace != workspace || place->bytes < bytes)) {
    place = place->next;
  }
  return place;
}

void* LaunchCounters::of(const void* workspace, std::size_t bytes) {
  List& list = list_of(workspace);
  if (const Place* known = find(list, workspace, bytes)) return known->counters;
  const std::lock_guard lock(mutex_);
  if (const Place* known = find(list, workspace, bytes)) return known->counters;
  bytes = (bytes + kGranule - 1) / kGranule * kGranule;
  if (memory_.empty() || kRoom - used_ < bytes) add_room();
  void* const counters = static_cast<std::byte*>(memory_.back().data()) + used_;
  const Place& place =
      places_.emplace_back(workspace, bytes, counters, list.load(std::memory_order_relaxed));
  used_ += bytes;
  list.store(&place, std::memory_order_release);
  return counters;
}

}  // namespace vqgen::library
