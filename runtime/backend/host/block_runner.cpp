#include "runtime/backend/host/block_runner.h"

#include <algorithm>
#include <bit>

namespace vqgen::host {

using vq::host::Access;
using vq::host::Collective;
using vq::host::Context;
using vq::host::Exchange;
using vq::host::Site;

namespace {

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

BlockRunner::BlockRunner(LaneOrder order, std::uint64_t seed, bool check_races)
    : Context{}, order_(order), seed_(seed) {
  if (check_races) races_.emplace();
  install_services();
}

void BlockRunner::begin(const Launch& launch, const vq::host::Entry& entry) {
  launch_ = &launch;
  entry_ = &entry;
  *entry.context = this;
  count_ = launch.shape->threads;
  const auto arena_bytes = static_cast<std::size_t>(launch.shape->shared_bytes);
  if (!arena_ || arena_->bytes() != arena_bytes) arena_.emplace(arena_bytes);
  shared = reinterpret_cast<vq::u8*>(arena_->data());
  shared_bytes = arena_bytes;
  range_begin = range_bytes = 0;
  waited = waited_.data();
  if (races_) races_->begin_launch(arena_bytes);
  stacks_.reserve(count_);
  threads_.resize(count_);
  states_.resize(count_);
  waits_.resize(count_);
}

void BlockRunner::reset() {
  arena_->poison();
  fault_.reset();
  at_barrier_ = returned_ = 0;
  ready_warps_ = 0;
  for (Warp& each : warps_) each = {};
  at_group_ = {};
  waited_ = {};
  for (unsigned i = 0; i < count_; ++i) {
    Thread& each = threads_[i];
    each.runner = this;
    each.copies.clear();
    each.groups.clear();
    each.reads.clear();
    each.read_groups.clear();
    stacks_.prepare(i, each.fiber, &thread_main, &each);
    warps_[i / kWarpLanes].lanes |= 1u << (i % kWarpLanes);
  }
  for (unsigned i = 0; i * kWarpLanes < count_; ++i) release(i);
}

std::optional<std::string> BlockRunner::run(std::uint64_t index) {
  const Dim3& grid = launch_->shape->grid;
  block[0] = static_cast<int>(index % grid.x);
  block[1] = static_cast<int>(index / grid.x % grid.y);
  block[2] = static_cast<int>(index / grid.x / grid.y);
  random_state_ = mix(seed_ ^ mix(index));
  reset();
  if (races_) races_->begin_block(index);
  thread = pick();
  switch_fiber(main_, current().fiber);
  if (fault_) {
    stacks_.clean();
  } else if (const std::optional<std::ptrdiff_t> stray = arena_->take_damage()) {
    fault_ = where() + ": a write without store_shared " + beside(*stray, arena_->bytes()) +
             " an arena of " + std::to_string(arena_->bytes()) +
             " bytes; store through store_shared to learn where";
  }
  return std::move(fault_);
}

VQGEN_NO_ASAN void BlockRunner::thread_main(void* argument) {
  BlockRunner& runner = *static_cast<Thread*>(argument)->runner;
  runner.entry_->run(runner.launch_->args);
  runner.finish();
}

void BlockRunner::finish() {
  if (!waited_[static_cast<std::size_t>(thread)]) fail_unwaited();
  states_[static_cast<std::size_t>(thread)] = ThreadState::returned;
  Fiber& last = current().fiber;
  if (++returned_ == count_) end_fiber(last, main_);
  if (ready_warps_ == 0) fail_stuck();
  thread = pick();
  end_fiber(last, current().fiber);
}

void BlockRunner::arrive_block(Site site) {
  const auto i = static_cast<std::size_t>(thread);
  waits_[i] = {Collective::kSyncBlock, site};
  states_[i] = ThreadState::waiting;
  if (at_barrier_ == 0) barrier_ = waits_[i];
  check_place(barrier_);
  if (++at_barrier_ == count_) {
    at_barrier_ = 0;
    if (races_) races_->block_barrier();
    for (unsigned warp = 0; warp * kWarpLanes < count_; ++warp) release(warp);
  }
  wait();
}

void BlockRunner::arrive_warp(Collective collective, Exchange act, Site site) {
  const auto i = static_cast<std::size_t>(thread);
  const unsigned warp_index = static_cast<unsigned>(i) / kWarpLanes;
  Warp& warp = warps_[warp_index];
  waits_[i] = {collective, site};
  states_[i] = ThreadState::waiting;
  if (warp.arrived == 0) warp_collective_[warp_index] = waits_[i];
  check_place(warp_collective_[warp_index]);
  warp.arrived |= 1u << (i % kWarpLanes);
  if (warp.arrived == warp.lanes) {
    if (act != nullptr) exchange_operands(warp_index, 1, act);
    if (collective == Collective::kSyncWarp && races_) races_->warp_barrier(warp_index);
    warp.arrived = 0;
    release(warp_index);
  }
  wait();
}

// A group that lacks a thread waits for ever, and is reported so.
void BlockRunner::arrive_group(Collective collective, Exchange act, Site site) {
  const auto i = static_cast<std::size_t>(thread);
  const unsigned group = static_cast<unsigned>(i) / kWarpLanes / kGroupWarps;
  waits_[i] = {collective, site};
  states_[i] = ThreadState::waiting;
  if (at_group_[group] == 0) group_collective_[group] = waits_[i];
  check_place(group_collective_[group]);
  if (++at_group_[group] == kWarpLanes * kGroupWarps) {
    exchange_operands(group * kGroupWarps, kGroupWarps, act);
    at_group_[group] = 0;
    for (unsigned warp = 0; warp < kGroupWarps; ++warp) release(group * kGroupWarps + warp);
  }
  wait();
}

void BlockRunner::exchange_operands(unsigned warp_index, unsigned warps, Exchange act) {
  const std::size_t first = warp_index * kWarpLanes;
  std::array<void*, kWarpLanes * kGroupWarps> operands{};
  for (unsigned i = 0; i < warps * kWarpLanes; ++i) {
    const Warp& warp = warps_[warp_index + i / kWarpLanes];
    if ((warp.lanes >> i % kWarpLanes & 1u) != 0) operands[i] = threads_[first + i].operands;
  }
  const vq::host::Refusal refusal = act(operands.data());
  if (refusal.lane < 0) return;
  const Wait& wait = waits_[first + static_cast<std::size_t>(refusal.lane)];
  note("lane " + std::to_string(refusal.lane) + " of " + name_of(wait) + " asks for lane " +
           std::to_string(refusal.wanted) + ", which its warp does not have",
       wait.site, "use lanes of the warp, and whole warps for matrices");
  abandon();
}

void BlockRunner::wait() {
  if (ready_warps_ == 0) fail_stuck();
  Thread& from = current();
  thread = pick();
  if (&from != &current()) switch_fiber(from.fiber, current().fiber);
}

void BlockRunner::release(unsigned warp_index) {
  Warp& warp = warps_[warp_index];
  warp.ready = warp.lanes;
  ready_warps_ |= 1u << warp_index;
  const std::size_t first = warp_index * kWarpLanes;
  const std::size_t end = std::min<std::size_t>(first + kWarpLanes, count_);
  for (std::size_t i = first; i < end; ++i) states_[i] = ThreadState::ready;
}

unsigned BlockRunner::choose(std::uint32_t mask) {
  if (order_ == LaneOrder::forward) return static_cast<unsigned>(std::countr_zero(mask));
  if (order_ == LaneOrder::reverse) return 31u - static_cast<unsigned>(std::countl_zero(mask));
  random_state_ = random_state_ * 6364136223846793005u + 1442695040888963407u;
  const auto turn = static_cast<int>(random_state_ >> 59);
  return static_cast<unsigned>(std::countr_zero(std::rotr(mask, turn)) + turn) % 32u;
}

int BlockRunner::pick() {
  const unsigned warp_index = choose(ready_warps_);
  Warp& warp = warps_[warp_index];
  const unsigned lane = choose(warp.ready);
  warp.ready &= ~(1u << lane);
  if (warp.ready == 0) ready_warps_ &= ~(1u << warp_index);
  return static_cast<int>(warp_index * kWarpLanes + lane);
}

// The bytes move here and not at the issue, where the destination became NaN: a reader that comes
// too early finds neither the old nor the new words.
void BlockRunner::land(std::size_t pending_groups) {
  Thread& owner = current();
  if (owner.groups.size() <= pending_groups) return;
  const auto last_landing = owner.groups.end() - static_cast<std::ptrdiff_t>(pending_groups);
  std::ptrdiff_t landing = 0;
  for (auto group = owner.groups.begin(); group != last_landing; ++group) {
    landing += static_cast<std::ptrdiff_t>(*group);
  }
  const auto end = owner.copies.begin() + landing;
  for (auto copy = owner.copies.begin(); copy != end; ++copy) {
    *copy->shared = *copy->global;
    if (races_) {
      races_->land(thread, address_of(copy->shared) - address_of(shared), sizeof(*copy->shared));
    }
  }
  owner.copies.erase(owner.copies.begin(), end);
  owner.groups.erase(owner.groups.begin(), last_landing);
}

// The products of these groups read until now; only where races are checked are there any.
void BlockRunner::end_reads(std::size_t pending_groups) {
  Thread& owner = current();
  while (owner.read_groups.size() > pending_groups) {
    const auto end = owner.reads.begin() + static_cast<std::ptrdiff_t>(owner.read_groups.front());
    for (auto read = owner.reads.begin(); read != end; ++read) {
      races_->end_read(read->address - address_of(shared), read->bytes);
      track_access(Access::kWarpgroupMma, read->address, read->bytes, read->site);
    }
    owner.reads.erase(owner.reads.begin(), end);
    owner.read_groups.erase(owner.read_groups.begin());
  }
}

void BlockRunner::install_services() {
  synchronize = [](Context* context, Collective collective, Site site) {
    if (collective == Collective::kSyncBlock) {
      self(context).arrive_block(site);
    } else {
      self(context).arrive_warp(collective, nullptr, site);
    }
  };
  exchange = [](Context* context, Collective collective, void* operands, Exchange act, Site site) {
    self(context).current().operands = operands;
    if (collective == Collective::kWarpgroupMma) {
      self(context).arrive_group(collective, act, site);
    } else {
      self(context).arrive_warp(collective, act, site);
    }
  };
  check_global = [](Context* context, Access access, vq::u64 address, vq::u64 bytes, Site site) {
    self(context).check_allocation(access, address, bytes, site);
  };
  fail_shared = [](Context* context, Access access, vq::u64 address, vq::u64 bytes, Site site) {
    self(context).fail_arena(access, address, bytes, site);
  };
  track = [](Context* context, Access access, vq::u64 address, vq::u64 bytes, Site site) {
    self(context).track_access(access, address, bytes, site);
  };
  warpgroup_read = [](Context* context, vq::u64 address, vq::u64 bytes, Site site) {
    BlockRunner& runner = self(context);
    runner.current().reads.push_back({address, bytes, site});
    runner.races_->begin_read(runner.thread, address - address_of(runner.shared),
                              {Access::kWarpgroupMma, bytes, site});
  };
  warpgroup_commit = [](Context* context) {
    Thread& caller = self(context).current();
    std::size_t open = caller.reads.size();
    for (const std::size_t group : caller.read_groups) open -= group;
    caller.read_groups.push_back(open);
  };
  warpgroup_wait = [](Context* context, int pending_groups) {
    self(context).end_reads(static_cast<std::size_t>(pending_groups));
  };
  copy_async = [](Context* context, vq::u32* to, const vq::u32* from) {
    *to = ~vq::u32{0};
    self(context).current().copies.push_back({to, from});
  };
  copy_async_commit = [](Context* context) {
    Thread& caller = self(context).current();
    std::size_t open = caller.copies.size();
    for (const std::size_t group : caller.groups) open -= group;
    caller.groups.push_back(open);
  };
  copy_async_wait = [](Context* context, int pending_groups) {
    self(context).land(static_cast<std::size_t>(pending_groups));
  };
}

}  // namespace vqgen::host
