// Bulk copies and the barriers that they complete. A copy's bytes become NaN when it is issued and
// move as late as allowed: once a thread waits for the phase and all of it has been issued. A
// thread that waits earlier blocks until others have issued and arrived.
#include <cstring>

#include "runtime/backend/host/block_runner.h"

namespace vqgen::host {

void BlockRunner::fail_barrier(const char* what, Site site, const char* remedy) {
  note(what, site, remedy);
  abandon();
}

BlockRunner::BulkBarrier& BlockRunner::barrier_at(const void* barrier, Site site) {
  const auto found = barriers_.find(barrier);
  if (found == barriers_.end()) {
    fail_barrier("no barrier is there", site, "call bulk_barrier_begin before a sync_block");
  }
  return found->second;
}

// An arrival that expects `bytes` more bytes; 0 for a plain arrival.
void BlockRunner::arrive_bulk(const void* barrier, std::uint64_t bytes, Site site) {
  BulkBarrier& state = barrier_at(barrier, site);
  if (state.arrived == state.arrivals) {
    fail_barrier(bytes > 0 ? "bulk_barrier_expect in a phase that expects bytes already"
                           : "bulk_barrier_arrive in a phase that all have arrived in",
                 site, "let a thread wait for the phase first");
  }
  ++state.arrived;
  state.expected += bytes;
  if (races_ != nullptr) races_->release(thread, address_of(barrier));
  if (!state.waiting.empty() || state.expected == 0) land_bulk(state, barrier);
}

void BlockRunner::copy_bulk(const void* barrier, const Copy& copy, Site site) {
  BulkBarrier& state = barrier_at(barrier, site);
  std::memset(copy.shared, 0xff, copy.bytes);
  state.copies.push_back(copy);
  state.asked += copy.bytes;
  if (state.arrived == state.arrivals && state.asked > state.expected) {
    fail_barrier("copy_bulk of more bytes than its phase expects", site,
                 "expect the bytes of all copies of the phase");
  }
  if (!state.waiting.empty()) land_bulk(state, barrier);
}

// False where more is to be asked for.
bool BlockRunner::land_bulk(BulkBarrier& state, const void* barrier) {
  if (state.arrived != state.arrivals || state.asked != state.expected) return false;
  for (const Copy& copy : state.copies) {
    std::memcpy(copy.shared, copy.global, copy.bytes);
    if (races_ == nullptr) continue;
    races_->land_bulk(address_of(barrier), address_of(copy.shared) - address_of(shared),
                      copy.bytes);
  }
  for (const int each : state.waiting) {
    const auto i = static_cast<unsigned>(each);
    states_[i] = ThreadState::ready;
    warps_[i / kWarpLanes].ready |= 1u << i % kWarpLanes;
    ready_warps_ |= 1u << i / kWarpLanes;
  }
  state.copies.clear();
  state.waiting.clear();
  state.arrived = 0;
  state.expected = state.asked = 0;
  ++state.phase;
  return true;
}

void BlockRunner::wait_bulk(const void* barrier, unsigned parity, Site site) {
  BulkBarrier& state = barrier_at(barrier, site);
  if (state.phase % 2 == parity && !land_bulk(state, barrier)) {
    const auto i = static_cast<std::size_t>(thread);
    waits_[i] = {Collective::kBulkBarrierWait, site};
    states_[i] = ThreadState::waiting;
    state.waiting.push_back(thread);
    leave();
  }
  if (races_ != nullptr) races_->acquire(thread, address_of(barrier));
}

}  // namespace vqgen::host
