// Codebooks of keys and values with 256 entries of four bytes, for int8_mma attention: one copy of
// each entry per shared-memory bank, so that lookups have no bank conflicts.
//
//   row e of 256 bytes   key entry e for lanes 0 .. 31 | value entry e for lanes 0 .. 31
//
// A code is byte 1 of its entry's offset and the lane's column is byte 0: one byte permute makes an
// address from a code at any position in a word.
#pragma once

#include <vq/args/quantized.h>
#include <vq/kernels/attention_int8_mma/plan.h>
#include <vq/codebook/decoding.cuh>
#include <vq/loads.cuh>

namespace vq {

template <class Plan>
class EntryPairs {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr int kEntries = AttentionInt8Mma::kEntries;
  static constexpr int kHalfBytes = AttentionInt8Mma::kCopies * 4;
  static constexpr int kRowBytes = 2 * kHalfBytes;
  static_assert(kRowBytes == 256, "a code is byte 1 of an offset");

  // Loads the codebooks of a KV head with the first kThreads threads; a sync_block must follow. A
  // thread's entries are all in flight before it stores the first.
  template <int kThreads>
  VQ_DEVICE static void load(const QuantizedArgs& keys, const QuantizedArgs& values, int kv_head) {
    constexpr int kEach = ceil_div(2 * kEntries, kThreads);
    constexpr bool kKeysPerHead = kConfig.keys.per_head, kValuesPerHead = kConfig.values.per_head;
    U32x2 stored[kEach];
    VQ_UNROLL
    for (int n = 0; n < kEach; ++n) {
      const int i = n * kThreads + thread_index();
      const bool of_values = i % 2 == 1;
      const i64 unit = (of_values ? kValuesPerHead : kKeysPerHead) ? kv_head : 0;
      const auto* const entries =
          reinterpret_cast<const U32x2*>((of_values ? values : keys).codebooks) + unit * kEntries;
      if (i < 2 * kEntries) stored[n] = begin_constant(entries + i / 2);
    }
    VQ_UNROLL
    for (int n = 0; n < kEach; ++n) {
      const int i = n * kThreads + thread_index();
      if (i >= 2 * kEntries) continue;
      const u32 entry = Decoding<Decoder::table, kConfig.element, true>::held(stored[n]);
      const U32x4 copies{entry, entry, entry, entry};
      constexpr int kStores = kHalfBytes / 16;
      VQ_UNROLL
      for (int j = 0; j < kStores; ++j) {  // lanes begin in other banks
        const int place = i / 2 * kRowBytes + i % 2 * kHalfBytes + (j + lane()) % kStores * 16;
        store_shared(shared_part<U32x4>(bytes_layout(kConfig).entries + place), copies);
      }
    }
  }

  // What a lane adds to a row's offset, for keys and for values.
  VQ_DEVICE static u32 key_column() { return static_cast<u32>(lane() * 4); }
  VQ_DEVICE static u32 value_column() { return static_cast<u32>(lane() * 4 + kHalfBytes); }

  // The entry of the code that is byte `byte` of the word.
  VQ_DEVICE static u32 look_up(u32 codes, int byte, u32 column) {
    const u32 offset = byte_permute(codes, column, 0x5504u | static_cast<u32>(byte) << 4);
    return load_shared_at<u32>(offset + base());
  }

 private:
  VQ_DEVICE static u32 base() {
    return shared_place(shared_memory()) + static_cast<u32>(bytes_layout(kConfig).entries);
  }
};

}  // namespace vq
