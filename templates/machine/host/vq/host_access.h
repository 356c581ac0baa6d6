// Checks of one access: aligned, inside the arena or one allocation, and not before
// after_last_launch() unless it is of constants. Inline where all is well; the runner words the
// fault. Compiled with VQ_CHECK_RACES, a text tells the runner of each access too; without, it does
// not even ask.
#pragma once

#include <vq/host_api.h>

namespace vq::host {

static Context* context = nullptr;

#ifdef VQ_CHECK_RACES
inline constexpr bool kCheckRaces = true;
#else
inline constexpr bool kCheckRaces = false;
#endif

template <class T, class... Allowed>
inline constexpr bool kOneOf = (__is_same(T, Allowed) || ...);
template <class T>
inline constexpr bool kMovable = kOneOf<T, u8, u16, u32, i32, float, U32x2, U32x4>;

[[gnu::always_inline]] inline u64 address_of(const void* p) {
  return reinterpret_cast<__UINTPTR_TYPE__>(p);
}

// Does [address, address + bytes) leave [begin, begin + size), or is it not aligned to `bytes`?
[[gnu::always_inline]] inline bool strays(u64 address, u64 bytes, u64 begin, u64 size) {
  const u64 offset = address - begin;
  return (address & (bytes - 1)) != 0 || offset >= size || size - offset < bytes;
}

[[gnu::always_inline]] inline void track(Access access, const void* p, u64 bytes, Site site) {
  if constexpr (kCheckRaces) context->track(context, access, address_of(p), bytes, site);
}

template <class T>
[[gnu::always_inline]] inline void check_global(Access access, const T* p, Site site) {
  static_assert(kMovable<T>, "global memory moves u8, u16, u32, i32, float, U32x2 and U32x4");
  const u64 address = address_of(p);
  const bool early = access != Access::kLoadConstant && !context->waited[context->thread];
  if (__builtin_expect(
          early || strays(address, sizeof(T), context->range_begin, context->range_bytes), 0)) {
    context->check_global(context, access, address, sizeof(T), site);
  }
  track(access, p, sizeof(T), site);
}

template <class T>
[[gnu::always_inline]] inline void check_place_in_shared(Access access, const T* p, Site site) {
  static_assert(kMovable<T> && sizeof(T) > 1,
                "shared memory moves u16, u32, i32, float, U32x2 and U32x4");
  const u64 address = address_of(p);
  const u64 begin = address_of(context->shared);
  if (__builtin_expect(strays(address, sizeof(T), begin, context->shared_bytes), 0)) {
    context->fail_shared(context, access, address, sizeof(T), site);
  }
}

template <class T>
[[gnu::always_inline]] inline void check_shared(Access access, const T* p, Site site) {
  check_place_in_shared(access, p, site);
  track(access, p, sizeof(T), site);
}

// Accesses go by bytes, so that a word written as one type may be read as another, as on the GPU.
template <class T>
[[gnu::always_inline]] inline T load(const T* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof(T));
  return value;
}
template <class T>
[[gnu::always_inline]] inline void store(T* p, T value) {
  __builtin_memcpy(p, &value, sizeof(T));
}

}  // namespace vq::host
