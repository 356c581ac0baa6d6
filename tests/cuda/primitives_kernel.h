// A kernel that uses every primitive of the machine layer, as text, with its argument struct and
// the layout of its output. One block of 128 threads; the host checks each section.
#pragma once

#include <cstdint>
#include <string_view>

namespace vqgen::test {

// Twin of PrimitivesArgs in the text below.
struct PrimitivesArgs {
  const std::uint16_t* halves;  // [65536] every bit pattern
  const float* floats;          // [float_count]
  const std::uint32_t* words;   // [512]
  float* widened;               // [2][65536] f16, bf16
  std::uint16_t* narrowed;      // [2][float_count]
  std::uint32_t* moved;         // [kMovedWords]
  std::uint32_t* sums;          // [5][kWords] add2 and fused2 of words, f16, bf16; masked_or
  float* math;                  // [4][128] exp2 of -lane*8, log2 of index, infinity, shuffled sum
  std::int32_t float_count;
};

inline constexpr int kPrimitiveThreads = 128;
inline constexpr int kWords = 512;
// words copied by copy_async in two groups, by u32 and wider; by U32x4; by U32x2; then index, lane,
// warp, block x/y/z
inline constexpr int kMovedWords = 3 * kWords + 6 * kPrimitiveThreads + kPrimitiveThreads;
inline constexpr std::int64_t kPrimitiveSharedBytes = 4 * kWords;

inline constexpr std::string_view kPrimitivesKernel = R"(
namespace vq {
struct PrimitivesArgs {
  const u16* halves;
  const float* floats;
  const u32* words;
  float* widened;
  u16* narrowed;
  u32* moved;
  u32* sums;
  float* math;
  i32 float_count;
};

VQ_DEVICE void move_words(const PrimitivesArgs& args) {
  u8* const raw = shared_memory();
  u32* const words = reinterpret_cast<u32*>(raw);
  const int t = thread_index();
  VQ_UNROLL
  for (int i = 0; i < 2; ++i) copy_async(words + 128 * i + t, args.words + 128 * i + t);
  copy_async_commit();
  if (t < 64) {
    copy_async(reinterpret_cast<U32x2*>(words + 256) + t,
               reinterpret_cast<const U32x2*>(args.words + 256) + t);
  }
  if (t < 32) {
    copy_constant_async(reinterpret_cast<U32x4*>(words + 384) + t,
                        reinterpret_cast<const U32x4*>(args.words + 384) + t);
  }
  copy_async_commit();
  copy_async_wait<1>();
  sync_block();
  // The first group has landed; a neighbour's word shows that others see it.
  const int other = (t + 33) % 128;
  store_global(args.moved + other, load_shared(words + other));
  store_global(args.moved + 128 + other, load_shared(words + 128 + other));
  copy_async_wait<0>();
  sync_block();
  store_global(args.moved + 256 + other, load_shared(words + 256 + other));
  store_global(args.moved + 384 + other, load_shared(words + 384 + other));
  sync_block();

  U32x4* const quads = reinterpret_cast<U32x4*>(raw);
  store_shared(quads + t, load_global(reinterpret_cast<const U32x4*>(args.words) + t));
  sync_block();
  store_global(reinterpret_cast<U32x4*>(args.moved + 512) + other, load_shared(quads + other));
  sync_block();

  U32x2* const pairs = reinterpret_cast<U32x2*>(raw);
  VQ_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int at = 128 * i + t;
    store_shared(pairs + at, load_global(reinterpret_cast<const U32x2*>(args.words) + at));
  }
  sync_block();
  VQ_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int at = 128 * i + other;
    const u32 place = shared_place(raw) + static_cast<u32>(at) * 8u;
    store_global(reinterpret_cast<U32x2*>(args.moved + 1024) + at, load_shared_at<U32x2>(place));
  }
  sync_block();
}

VQ_DEVICE void place_and_shuffle(const PrimitivesArgs& args) {
  const int t = thread_index();
  u32* const out = args.moved + 1536 + t;
  store_global(out, static_cast<u32>(t));
  store_global(out + 128, static_cast<u32>(lane()));
  store_global(out + 256, static_cast<u32>(warp()));
  store_global(out + 384, static_cast<u32>(block_x()));
  store_global(out + 512, static_cast<u32>(block_y()));
  store_global(out + 640, static_cast<u32>(block_z()));
  // i32 and float through shared memory within a warp.
  i32* const ints = reinterpret_cast<i32*>(shared_memory());
  float* const floats = reinterpret_cast<float*>(shared_memory() + 512);
  u16* const halves = reinterpret_cast<u16*>(shared_memory() + 1024);
  store_shared(ints + t, load_global(reinterpret_cast<const i32*>(args.words) + t));
  store_shared(floats + t, static_cast<float>(t));
  store_shared(halves + t, static_cast<u16>(t));
  sync_warp();
  const int neighbour = t ^ 1;
  const u32 word = static_cast<u32>(load_shared(ints + neighbour));
  store_global(out + 768, shuffle_xor(word, 1) + load_shared(halves + neighbour));
  float sum = load_shared(floats + neighbour);
  VQ_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  store_global(args.math + 384 + t, sum);
}
}  // namespace vq

VQ_KERNEL(vq_primitives, 128, vq::PrimitivesArgs) {
  using namespace vq;
  const int t = thread_index();
  for (int i = t; i < 65536; i += 128) {
    const u16 bits = load_global(args.halves + i);
    store_global(args.widened + i, to_float<Element::f16>(bits));
    store_global(args.widened + 65536 + i, to_float<Element::bf16>(bits));
  }
  for (int i = t; i < args.float_count; i += 128) {
    const float value = load_global(args.floats + i);
    store_global(args.narrowed + i, from_float<Element::f16>(value));
    store_global(args.narrowed + args.float_count + i, from_float<Element::bf16>(value));
  }
  for (int i = t; i < 512; i += 128) {
    const u32 pair = load_global(args.words + i);
    const u32 other = load_global(args.words + (i + 7) % 512);
    store_global(args.sums + i, add2<Element::f16>(pair, other));
    store_global(args.sums + 512 + i, add2<Element::bf16>(pair, other));
    const u32 third = load_global(args.words + (i + 11) % 512);
    store_global(args.sums + 1024 + i, fused2<Element::f16>(pair, other, third));
    store_global(args.sums + 1536 + i, fused2<Element::bf16>(pair, other, third));
    store_global(args.sums + 2048 + i, masked_or(pair, 0x00f000f0u, 0x64006400u));
  }
  move_words(args);
  place_and_shuffle(args);
  store_global(args.math + t, t == 127 ? exp2_approx(-infinity()) : exp2_approx(-0.5f * t));
  store_global(args.math + 128 + t, log2_approx(static_cast<float>(t)));
  store_global(args.math + 256 + t, infinity());
}
)";

}  // namespace vqgen::test
