// The machine on the CPU: each thread of a block is a fiber, and everything beyond plain arithmetic
// is asked of the runner through vq::host::context. See ../../README.md for the contract.
// Defaulted __builtin_FILE / __builtin_LINE arguments are the caller's place, for reports.
#pragma once

#include <vq/annotations.h>
#include <vq/host_access.h>
#include <vq/host_api.h>
#include <vq/host_bulk.h>
#include <vq/host_element.h>
#include <vq/host_warp.h>
#include <vq/types.h>

#define VQ_KERNEL_OF(name, threads, cluster, Args, wait)                                       \
  static void name##_body(const Args& args);                                                   \
  extern "C" [[gnu::visibility("default")]] void name(const void* raw_args) {                  \
    wait;                                                                                      \
    name##_body(*static_cast<const Args*>(raw_args));                                          \
  }                                                                                            \
  extern "C" [[gnu::visibility("default")]] const vq::host::Entry vq_entry_##name;             \
  const vq::host::Entry vq_entry_##name = {vq::host::kApiVersion, threads, cluster,            \
                                           sizeof(Args),          &name,   &vq::host::context, \
                                           vq::host::kCheckRaces};                             \
  static void name##_body([[maybe_unused]] const Args& args)
#define VQ_KERNEL(name, threads, Args) VQ_KERNEL_OF(name, threads, 1, Args, vq::after_last_launch())
#define VQ_KERNEL_ENDS_FIRST(name, threads, Args) VQ_KERNEL(name, threads, Args)
#define VQ_KERNEL_AHEAD(name, threads, Args) VQ_KERNEL_OF(name, threads, 1, Args, (void)0)
#define VQ_KERNEL_AHEAD_CLUSTERS(name, threads, blocks, Args) \
  VQ_KERNEL_OF(name, threads, blocks, Args, (void)0)
#define VQ_KERNEL_AHEAD_RESIDENT(name, threads, blocks, Args) VQ_KERNEL_AHEAD(name, threads, Args)

namespace vq {

VQ_DEVICE int thread_index() { return host::context->thread; }
VQ_DEVICE int lane() { return thread_index() % 32; }
VQ_DEVICE int warp() { return thread_index() / 32; }
VQ_DEVICE int block_x() { return host::context->block[0]; }
VQ_DEVICE int block_y() { return host::context->block[1]; }
VQ_DEVICE int block_z() { return host::context->block[2]; }

VQ_DEVICE void after_last_launch() { host::context->waited[host::context->thread] = true; }

VQ_DEVICE void sync_block(VQ_SITE) {
  host::context->synchronize(host::context, host::Collective::kSyncBlock, {file, line});
}
VQ_DEVICE void sync_cluster(VQ_SITE) {
  host::context->synchronize(host::context, host::Collective::kSyncCluster, {file, line});
}
VQ_DEVICE void leave_cluster(VQ_SITE) {
  host::context->synchronize(host::context, host::Collective::kLeaveCluster, {file, line});
}
VQ_DEVICE void sync_warp(VQ_SITE) {
  host::context->synchronize(host::context, host::Collective::kSyncWarp, {file, line});
}
// Waits for the lanes of the warp, then has `exchange` read and write what each brought.
template <class Operands>
VQ_DEVICE void collect(host::Collective collective, Operands& mine, host::Exchange exchange,
                       host::Site site) {
  host::context->exchange(host::context, collective, &mine, exchange, site);
}

template <class T>
VQ_DEVICE T shuffle(T value, int source_lane, VQ_SITE) {
  static_assert(host::kOneOf<T, float, u32>, "shuffle moves float and u32");
  host::ShuffleOperands mine{host::bits<u32>(value), source_lane, 0};
  collect(host::Collective::kShuffle, mine, &host::shuffle, {file, line});
  return host::bits<T>(mine.taken);
}
template <class T>
VQ_DEVICE T shuffle_xor(T value, int lane_mask, VQ_SITE) {
  static_assert(host::kOneOf<T, float, u32>, "shuffle_xor moves float and u32");
  host::ShuffleOperands mine{host::bits<u32>(value), lane() ^ lane_mask, 0};
  collect(host::Collective::kShuffleXor, mine, &host::shuffle, {file, line});
  return host::bits<T>(mine.taken);
}

VQ_DEVICE bool any_of_warp(bool mine, VQ_SITE) {
  host::VoteOperands vote{mine, false};
  collect(host::Collective::kVote, vote, &host::of_whole_warp<host::any>, {file, line});
  return vote.any;
}

VQ_DEVICE u32 largest_of_warp(u32 mine, VQ_SITE) {
  host::LargestOperands lanes{mine, 0};
  collect(host::Collective::kLargest, lanes, &host::of_whole_warp<host::largest>, {file, line});
  return lanes.largest;
}

template <Element E>
constexpr bool kHasMma = true;
inline constexpr bool kHasMmaS8 = true;

template <Element E>
VQ_DEVICE void mma_m16n8k16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], VQ_SITE) {
  host::MmaOperands<float> mine{c, a, b};
  collect(host::Collective::kMma, mine, &host::of_whole_warp<host::mma_m16n8k16<E>>, {file, line});
}
VQ_DEVICE void mma_m16n8k32_s8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], VQ_SITE) {
  host::MmaOperands<i32> mine{c, a, b};
  collect(host::Collective::kMma, mine,
          &host::of_whole_warp<host::mma_m16n8k32<host::byte_of, host::byte_of>>, {file, line});
}
VQ_DEVICE void mma_m16n8k32_u8_s8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], VQ_SITE) {
  host::MmaOperands<i32> mine{c, a, b};
  collect(host::Collective::kMma, mine,
          &host::of_whole_warp<host::mma_m16n8k32<host::unsigned_byte_of, host::byte_of>>,
          {file, line});
}
VQ_DEVICE void mma_m16n8k32_s8_u8(i32 (&c)[4], const u32 (&a)[4], const u32 (&b)[2], VQ_SITE) {
  host::MmaOperands<i32> mine{c, a, b};
  collect(host::Collective::kMma, mine,
          &host::of_whole_warp<host::mma_m16n8k32<host::byte_of, host::unsigned_byte_of>>,
          {file, line});
}

// Each lane's row is checked as it comes; to the race checker each lane reads what it receives.
template <int kMatrices, bool kTransposed = false>
VQ_DEVICE void ldmatrix(u32 (&d)[kMatrices], const u32* row, host::Site site) {
  host::check_place_in_shared(host::Access::kLdmatrix, reinterpret_cast<const U32x4*>(row), site);
  host::LdmatrixOperands<kMatrices> mine{row, d, {}};
  collect(host::Collective::kLdmatrix, mine,
          &host::of_whole_warp<host::ldmatrix<kMatrices, kTransposed>>, site);
  for (const auto& halves : mine.from) {
    for (const u16* half : halves) host::track(host::Access::kLdmatrix, half, sizeof(u16), site);
  }
}
VQ_DEVICE void ldmatrix_x2(u32 (&d)[2], const u32* row, VQ_SITE) {
  ldmatrix<2>(d, row, {file, line});
}
VQ_DEVICE void ldmatrix_x4(u32 (&d)[4], const u32* row, VQ_SITE) {
  ldmatrix<4>(d, row, {file, line});
}
VQ_DEVICE void ldmatrix_x4_trans(u32 (&d)[4], const u32* row, VQ_SITE) {
  ldmatrix<4, true>(d, row, {file, line});
}
VQ_DEVICE u32 movmatrix_trans(u32 word, VQ_SITE) {
  host::ShuffleOperands mine{word, lane(), 0};
  collect(host::Collective::kMovmatrix, mine, &host::of_whole_warp<host::movmatrix_trans>,
          {file, line});
  return mine.taken;
}

inline constexpr bool kHasWarpgroupMma = true;

VQ_DEVICE u64 warpgroup_operand(const u8* shared, int octet_bytes, int rows_bytes) {
  return core_descriptor(static_cast<u32>(shared - host::context->shared), octet_bytes, rows_bytes);
}
namespace host {
// Each thread checks its share of the rows that the group reads, and it is the thread that reads
// them to the race checker.
template <int kColumns>
void check_operand(u64 b, Site site) {
  for (int i = thread_index() % kGroupThreads; i < 2 * kColumns; i += kGroupThreads) {
    const u8* row = context->shared + core_row(b, i / 2, i % 2);
    const auto* words = reinterpret_cast<const U32x4*>(row);
    check_shared(Access::kWarpgroupMma, words, site);
    if constexpr (kCheckRaces) {
      context->warpgroup_read(context, address_of(row), sizeof(U32x4), site);
    }
  }
}
}  // namespace host
template <Element E, int kColumns>
VQ_DEVICE void warpgroup_mma(float (&c)[kColumns / 2], const u32 (&a)[4], u64 b, VQ_SITE) {
  host::check_operand<kColumns>(b, {file, line});
  host::MmaOperands<float, u64> mine{c, a, b};
  collect(host::Collective::kWarpgroupMma, mine, &host::warpgroup_mma<E, kColumns>, {file, line});
}
template <int kColumns>
VQ_DEVICE void warpgroup_mma_s8(i32 (&c)[kColumns / 2], const u32 (&a)[4], u64 b, VQ_SITE) {
  host::check_operand<kColumns>(b, {file, line});
  host::MmaOperands<i32, u64> mine{c, a, b};
  collect(host::Collective::kWarpgroupMma, mine, &host::warpgroup_mma_s8<kColumns>, {file, line});
}
VQ_DEVICE void warpgroup_fence() {}
VQ_DEVICE void warpgroup_commit() { host::context->warpgroup_commit(host::context); }
template <int N>
VQ_DEVICE void warpgroup_wait() {
  host::context->warpgroup_wait(host::context, N);
}
VQ_DEVICE u32 warpgroup_copy(u32 word) { return word; }
template <class T, int kCount>
VQ_DEVICE void warpgroup_hold(T (&)[kCount]) {}
VQ_DEVICE void fence_shared() {}

VQ_DEVICE u8* shared_memory() { return host::context->shared; }

template <class T>
VQ_DEVICE T load_global(const T* p, VQ_SITE) {
  host::check_global(host::Access::kLoadGlobal, p, {file, line});
  return host::load(p);
}
template <class T>
VQ_DEVICE T load_constant(const T* p, VQ_SITE) {
  host::check_global(host::Access::kLoadConstant, p, {file, line});
  return host::load(p);
}
template <class T>
VQ_DEVICE T begin_constant(const T* p, VQ_SITE) {
  return load_constant(p, file, line);
}
template <class T>
VQ_DEVICE T stream_constant(const T* p, VQ_SITE) {
  return load_constant(p, file, line);
}
template <class T>
VQ_DEVICE void store_global(T* p, T value, VQ_SITE) {
  host::check_global(host::Access::kStoreGlobal, p, {file, line});
  host::store(p, value);
}
template <class T>
VQ_DEVICE const T* wide_step(const T* pointer, u32 count, u32 bytes) {
  return reinterpret_cast<const T*>(reinterpret_cast<u64>(pointer) + u64{count} * bytes);
}
VQ_DEVICE void prefetch_global(const void*) {}
VQ_DEVICE u32 zero_behind(u32) { return 0; }
template <class T>
VQ_DEVICE T load_global_coherent(const T* p, VQ_SITE) {
  host::check_global(host::Access::kLoadGlobalCoherent, p, {file, line});
  return host::load(p);
}
// Returns a different value than memory holds: a result that depends on it is wrong.
VQ_DEVICE i32 load_hint(const i32* p, VQ_SITE) {
  host::check_global(host::Access::kLoadConstant, p, {file, line});
  return host::load(p) ^ 0x55555555;
}
VQ_DEVICE u32 atomic_add_global(u32* p, u32 value, VQ_SITE) {
  host::check_global(host::Access::kAtomicAddGlobal, p, {file, line});
  return __atomic_fetch_add(p, value, __ATOMIC_ACQ_REL);
}
// The race checker takes it for a counter, which orders more than this does.
VQ_DEVICE void add_global(u64* p, u64 value, VQ_SITE) {
  host::check_global(host::Access::kAtomicAddGlobal, reinterpret_cast<const U32x2*>(p),
                     {file, line});
  __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}

template <class T>
VQ_DEVICE T load_shared(const T* p, VQ_SITE) {
  host::check_shared(host::Access::kLoadShared, p, {file, line});
  return host::load(p);
}
VQ_DEVICE void loads_first() {}
VQ_DEVICE u32 shared_place(const u8* p) { return static_cast<u32>(p - host::context->shared); }
template <class T>
VQ_DEVICE T load_shared_at(u32 place, VQ_SITE) {
  return load_shared(reinterpret_cast<const T*>(host::context->shared + place), file, line);
}
template <class T>
VQ_DEVICE void store_shared(T* p, T value, VQ_SITE) {
  host::check_shared(host::Access::kStoreShared, p, {file, line});
  host::store(p, value);
}
template <class T>
VQ_DEVICE T load_peer(const T* p, int block, VQ_SITE) {
  static_assert(host::kOneOf<T, float, U32x4>, "peers are read by float or U32x4");
  host::check_place_in_shared(host::Access::kLoadPeer, p, {file, line});
  return host::load(
      static_cast<const T*>(host::context->peer(host::context, p, sizeof(T), block, {file, line})));
}
VQ_DEVICE void add_shared(u32* p, u32 value, VQ_SITE) {
  host::check_shared(host::Access::kAddShared, p, {file, line});
  host::store(p, host::load(p) + value);
}

namespace host {
// `read` is how the global side is accessed.
template <class T>
void queue_copy(Access read, T* shared, const T* global, Site site) {
  static_assert(kOneOf<T, u32, U32x2, U32x4>, "copies are of u32, U32x2 or U32x4");
  check_shared(Access::kCopyAsync, shared, site);
  check_global(read, global, site);
  context->copy_async(context, shared, global, sizeof(T));
}
}  // namespace host
template <class T>
VQ_DEVICE void copy_async(T* shared, const T* global, VQ_SITE) {
  host::queue_copy(host::Access::kCopyAsync, shared, global, {file, line});
}
template <class T>
VQ_DEVICE void copy_constant_async(T* shared, const T* global, VQ_SITE) {
  host::queue_copy(host::Access::kLoadConstant, shared, global, {file, line});
}
VQ_DEVICE void copy_async_commit() { host::context->copy_async_commit(host::context); }
template <int N>
VQ_DEVICE void copy_async_wait() {
  static_assert(N >= 0, "copy_async_wait waits until at most N >= 0 groups are pending");
  host::context->copy_async_wait(host::context, N);
}

template <Element E>
VQ_DEVICE float to_float(u16 element) {
  return E == Element::f16 ? host::f16_to_float(element) : host::bf16_to_float(element);
}
template <Element E>
VQ_DEVICE u16 from_float(float value) {
  return E == Element::f16 ? host::f16_from_float(value) : host::bf16_from_float(value);
}

template <Element E>
VQ_DEVICE u32 pack2(float low, float high) {
  return static_cast<u32>(from_float<E>(high)) << 16 | from_float<E>(low);
}
// A float holds more than twice the digits of an element, so rounding twice rounds as once.
template <Element E>
VQ_DEVICE u32 add2(u32 a, u32 b) {
  const auto low = [](u32 pair) { return to_float<E>(static_cast<u16>(pair)); };
  return pack2<E>(low(a) + low(b), low(a >> 16) + low(b >> 16));
}
template <Element E>
VQ_DEVICE u32 fused2(u32 a, u32 b, u32 c) {
  const auto sum = [=](int half) {
    const auto element = [half](u32 pair) { return to_float<E>(static_cast<u16>(pair >> half)); };
    return host::fused_to_odd(element(a), element(b), element(c));
  };
  return pack2<E>(sum(0), sum(16));
}
VQ_DEVICE u32 masked_or(u32 a, u32 mask, u32 bits) { return (a & mask) | bits; }
VQ_DEVICE u32 add_scaled_byte(u32 bytes, int byte, u32 factor, u32 addend) {
  return addend + factor * (bytes >> 8 * byte & 0xffu);
}
VQ_DEVICE i32 dot2(u32 halves, u32 bytes, int pair, i32 addend) {
  const auto product = [&](int i) {
    return static_cast<i32>(static_cast<short>(halves >> 16 * i & 0xffffu)) *
           static_cast<i32>(static_cast<signed char>(bytes >> 8 * (2 * pair + i) & 0xffu));
  };
  return addend + product(0) + product(1);
}
VQ_DEVICE u32 byte_permute(u32 a, u32 b, u32 selector) {
  const u64 bytes = static_cast<u64>(b) << 32 | a;
  u32 out = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 chosen = selector >> 4 * i & 15u;
    u32 byte = static_cast<u32>(bytes >> 8 * (chosen & 7u)) & 0xffu;
    if ((chosen & 8u) != 0) byte = (byte & 0x80u) != 0 ? 0xffu : 0u;
    out |= byte << 8 * i;
  }
  return out;
}
VQ_DEVICE u32 larger_halves(u32 a, u32 b) {
  const u32 low = (a & 0xffffu) > (b & 0xffffu) ? a : b;
  const u32 high = a >> 16 > b >> 16 ? a : b;
  return (low & 0xffffu) | (high & 0xffff0000u);
}

VQ_DEVICE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
VQ_DEVICE float larger(float a, float b) { return __builtin_fmaxf(a, b); }
VQ_DEVICE float smaller(float a, float b) { return __builtin_fminf(a, b); }
VQ_DEVICE float ceiling(float value) { return __builtin_ceilf(value); }
VQ_DEVICE float reciprocal(float x) { return 1.0f / x; }
VQ_DEVICE float exp2_approx(float x) { return __builtin_exp2f(x); }
VQ_DEVICE float reciprocal_approx(float x) { return 1.0f / x; }
VQ_DEVICE float log2_approx(float x) { return __builtin_log2f(x); }
VQ_DEVICE u32 float_bits(float value) { return host::bits<u32>(value); }
VQ_DEVICE float float_from_bits(u32 bits) { return host::bits<float>(bits); }
VQ_DEVICE float infinity() { return __builtin_inff(); }

VQ_DEVICE int ones_of(u64 bits) { return __builtin_popcountll(bits); }

}  // namespace vq
