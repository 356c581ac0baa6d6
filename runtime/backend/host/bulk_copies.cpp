// Bulk copies and the barriers that they and arrivals complete. A copy's bytes become NaN when it
// is asked for, and move as late as they may: when a thread waits for the phase, and all of it has
// been asked for. A thread that comes before that waits for the threads that ask and arrive.
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
    fail_barrier("no barrier stands there", site, "call bulk_barrier_begin before a sync_block");
  }
  return found->second;
}

// With so many bytes that are to come: 0 of an arrival alone.
void BlockRunner::arrive_bulk(const void* barrier, std::uint64_t bytes, Site site) {
  BulkBarrier& of = barrier_at(barrier, site);
  if (of.arrived == of.arrivals) {
    fail_barrier(bytes > 0 ? "bulk_barrier_expect in a phase that expects bytes already"
                           : "bulk_barrier_arrive in a phase that all have arrived in",
                 site, "let a thread wait for the phase first");
  }
  ++of.arrived;
  of.expected += bytes;
  if (races_ != nullptr) races_->release(thread, address_of(barrier));
  if (!of.waiting.empty() || of.expected == 0) land_bulk(of, barrier);
}

void BlockRunner::copy_bulk(const void* barrier, const Copy& copy, Site site) {
  BulkBarrier& of = barrier_at(barrier, site);
  std::memset(copy.shared, 0xff, copy.bytes);
  of.copies.push_back(copy);
  of.asked += copy.bytes;
  if (of.arrived == of.arrivals && of.asked > of.expected) {
    fail_barrier("copy_bulk of more bytes than its phase expects", site,
                 "expect the bytes of all copies of the phase");
  }
  if (!of.waiting.empty()) land_bulk(of, barrier);
}

// False where more is to be asked for.
bool BlockRunner::land_bulk(BulkBarrier& of, const void* barrier) {
  if (of.arrived != of.arrivals || of.asked != of.expected) return false;
  for (const Copy& copy : of.copies) {
    std::memcpy(copy.shared, copy.global, copy.bytes);
    if (races_ == nullptr) continue;
    races_->land_bulk(address_of(barrier), address_of(copy.shared) - address_of(shared),
                      copy.bytes);
  }
  for (const int each : of.waiting) {
    const auto i = static_cast<unsigned>(each);
    states_[i] = ThreadState::ready;
    warps_[i / kWarpLanes].ready |= 1u << i % kWarpLanes;
    ready_warps_ |= 1u << i / kWarpLanes;
  }
  of.copies.clear();
  of.waiting.clear();
  of.arrived = 0;
  of.expected = of.asked = 0;
  ++of.phase;
  return true;
}

void BlockRunner::wait_bulk(const void* barrier, unsigned parity, Site site) {
  BulkBarrier& of = barrier_at(barrier, site);
  if (of.phase % 2 == parity && !land_bulk(of, barrier)) {
    const auto i = static_cast<std::size_t>(thread);
    waits_[i] = {Collective::kBulkBarrierWait, site};
    states_[i] = ThreadState::waiting;
    of.waiting.push_back(thread);
    leave();
  }
  if (races_ != nullptr) races_->acquire(thread, address_of(barrier));
}

}  // namespace vqgen::host
