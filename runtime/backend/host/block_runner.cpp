#include "runtime/backend/host/block_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace vqgen::host {

namespace {

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

bool of_all_blocks(Collective collective) {
  return collective == Collective::kSyncCluster || collective == Collective::kLeaveCluster;
}

}  // namespace

BlockRunner::BlockRunner(LaneOrder order, std::uint64_t seed, RaceChecker* races)
    : Context{}, order_(order), seed_(seed), races_(races) {
  install_services();
}

void BlockRunner::begin(const Launch& launch, const vq::host::Entry& entry,
                        std::span<const std::unique_ptr<BlockRunner>> peers, unsigned number) {
  launch_ = &launch;
  entry_ = &entry;
  peers_ = peers;
  number_ = number;
  count_ = launch.shape->threads;
  const auto arena_bytes = static_cast<std::size_t>(launch.shape->shared_bytes);
  if (!arena_ || arena_->bytes() != arena_bytes) arena_.emplace(arena_bytes);
  shared = reinterpret_cast<vq::u8*>(arena_->data());
  shared_bytes = arena_bytes;
  range_begin = range_bytes = 0;
  waited = waited_.data();
  stacks_.reserve(count_);
  threads_.resize(count_);
  states_.resize(count_);
  waits_.resize(count_);
}

void BlockRunner::reset() {
  arena_->poison();
  fault_.reset();
  returned_ = 0;
  ready_warps_ = 0;
  waited_ = {};
  barriers_.clear();
  const unsigned warps = (count_ + kWarpLanes - 1) / kWarpLanes;
  of_block_ = of_cluster_ = {.warps = warps, .wanted = count_};
  for (unsigned warp = 0; warp < warps; ++warp) {
    const unsigned lanes = std::min(count_ - warp * kWarpLanes, kWarpLanes);
    warps_[warp].lanes = ~std::uint32_t{0} >> (kWarpLanes - lanes);
    of_warp_[warp] = {.first_warp = warp, .wanted = lanes};
    of_group_[warp / kGroupWarps] = {.first_warp = warp / kGroupWarps * kGroupWarps,
                                     .warps = kGroupWarps,
                                     .wanted = kGroupWarps * kWarpLanes};
    release(warp);
  }
  for (unsigned i = 0; i < count_; ++i) {
    Thread& each = threads_[i];
    each.runner = this;
    each.copies.clear();
    each.reads.clear();
    stacks_.prepare(i, each.fiber, &thread_main, &each);
  }
}

void BlockRunner::prepare(std::uint64_t index) {
  const Dim3& grid = launch_->shape->grid;
  block[0] = static_cast<int>(index % grid.x);
  block[1] = static_cast<int>(index / grid.x % grid.y);
  block[2] = static_cast<int>(index / grid.x / grid.y);
  random_state_ = mix(seed_ ^ mix(index));
  reset();
  progress_ = Progress::none;
  if (races_ != nullptr) races_->begin_block(number_, index);
}

void BlockRunner::run() {
  *entry_->context = this;
  if (races_ != nullptr) races_->give_turn(number_);
  if (progress_ == Progress::at_cluster_barrier) {
    for (unsigned warp = 0; warp < of_cluster_.warps; ++warp) release(warp);
  }
  progress_ = Progress::failed;  // unless it comes to one of the others
  thread = pick();
  switch_fiber(main_, current().fiber);
}

std::optional<std::string> BlockRunner::take_fault() {
  const std::optional<std::ptrdiff_t> stray =
      progress_ == Progress::ended ? arena_->take_damage() : std::nullopt;
  if (stray) {
    fault_ = fmt::format(
        "{}: a write without store_shared {} an arena of {} bytes; store through "
        "store_shared to learn where",
        where(), beside(*stray, arena_->bytes()), arena_->bytes());
  }
  return std::exchange(fault_, std::nullopt);
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
  if (++returned_ == count_) {
    progress_ = Progress::ended;
    end_fiber(last, main_);
  }
  if (ready_warps_ == 0) fail_stuck();
  thread = pick();
  end_fiber(last, current().fiber);
}

void BlockRunner::arrive(Collective collective, Exchange act, Site site) {
  const auto i = static_cast<std::size_t>(thread);
  Meeting& meeting = collective == Collective::kSyncBlock ? of_block_
                     : of_all_blocks(collective)          ? of_cluster_
                     : collective == Collective::kWarpgroupMma
                         ? of_group_[i / kWarpLanes / kGroupWarps]
                         : of_warp_[i / kWarpLanes];
  waits_[i] = {collective, site};
  states_[i] = ThreadState::waiting;
  if (meeting.arrived == 0) meeting.first = waits_[i];
  check_place(meeting.first);
  if (++meeting.arrived == meeting.wanted) {
    meeting.arrived = 0;
    if (of_all_blocks(collective)) return stand_still();
    if (act != nullptr) exchange_operands(meeting, act);
    if (collective == Collective::kSyncBlock && races_ != nullptr) races_->block_barrier();
    if (collective == Collective::kSyncWarp && races_ != nullptr)
      races_->warp_barrier(meeting.first_warp);
    for (unsigned warp = 0; warp < meeting.warps; ++warp) release(meeting.first_warp + warp);
  }
  leave();
}

// All threads wait here, so no other is ready.
void BlockRunner::stand_still() {
  progress_ = Progress::at_cluster_barrier;
  switch_fiber(current().fiber, main_);
}

void BlockRunner::leave() {
  if (ready_warps_ == 0) fail_stuck();
  Thread& from = current();
  thread = pick();
  if (&from != &current()) switch_fiber(from.fiber, current().fiber);
}

void BlockRunner::exchange_operands(const Meeting& meeting, Exchange act) {
  const std::size_t first = meeting.first_warp * kWarpLanes;
  std::array<void*, kWarpLanes * kGroupWarps> operands{};
  for (unsigned i = 0; i < meeting.warps * kWarpLanes; ++i) {
    const Warp& warp = warps_[meeting.first_warp + i / kWarpLanes];
    if ((warp.lanes >> i % kWarpLanes & 1u) != 0) operands[i] = threads_[first + i].operands;
  }
  const vq::host::Refusal refusal = act(operands.data());
  if (refusal.lane < 0) return;
  const Wait& wait = waits_[first + static_cast<std::size_t>(refusal.lane)];
  note(fmt::format("lane {} of {} asks for lane {}, which its warp does not have", refusal.lane,
                   name_of(wait), refusal.wanted),
       wait.site, "use simt of the warp, and whole warps for matrices");
  abandon();
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

void BlockRunner::install_services() {
  synchronize = [](Context* context, Collective collective, Site site) {
    self(context).arrive(collective, nullptr, site);
  };
  exchange = [](Context* context, Collective collective, void* operands, Exchange act, Site site) {
    self(context).current().operands = operands;
    self(context).arrive(collective, act, site);
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
    runner.current().reads.items.push_back({address, bytes, site});
    runner.races_->begin_read(runner.thread, address - address_of(runner.shared),
                              {Access::kWarpgroupMma, bytes, site});
  };
  warpgroup_commit = [](Context* context) { self(context).current().reads.commit(); };
  // The products of these groups read until now; only where races are checked are there any.
  warpgroup_wait = [](Context* context, int pending_groups) {
    BlockRunner& runner = self(context);
    runner.current().reads.wait(pending_groups, [&](const Read& read) {
      runner.races_->end_read(read.address - address_of(runner.shared), read.bytes);
      runner.track_access(Access::kWarpgroupMma, read.address, read.bytes, read.site);
    });
  };
  bulk_begin = [](Context* context, const vq::u64* barrier, vq::u32 arrivals) {
    self(context).barriers_[barrier] = {.arrivals = arrivals};
  };
  bulk_arrive = [](Context* context, const vq::u64* barrier, vq::u64 bytes, Site site) {
    self(context).arrive_bulk(barrier, bytes, site);
  };
  bulk_copy = [](Context* context, void* to, const void* from, vq::u64 bytes,
                 const vq::u64* barrier, Site site) {
    self(context).copy_bulk(barrier, {to, from, bytes}, site);
  };
  bulk_wait = [](Context* context, const vq::u64* barrier, vq::u32 parity, Site site) {
    self(context).wait_bulk(barrier, parity, site);
  };
  peer = [](Context* context, const void* in_own, vq::u64 bytes, int number, Site site) {
    return self(context).peer_place(in_own, bytes, number, site);
  };
  copy_async = [](Context* context, void* to, const void* from, vq::u64 bytes) {
    std::memset(to, 0xff, bytes);
    self(context).current().copies.items.push_back({to, from, bytes});
  };
  copy_async_commit = [](Context* context) { self(context).current().copies.commit(); };
  // The bytes move here and not at the issue, where the destination became NaN: a reader that comes
  // too early finds neither the old nor the new words.
  copy_async_wait = [](Context* context, int pending_groups) {
    BlockRunner& runner = self(context);
    runner.current().copies.wait(pending_groups, [&](const Copy& copy) {
      std::memcpy(copy.shared, copy.global, copy.bytes);
      if (runner.races_ == nullptr) return;
      runner.races_->land(runner.thread, address_of(copy.shared) - address_of(runner.shared),
                          copy.bytes);
    });
  };
}

}  // namespace vqgen::host
