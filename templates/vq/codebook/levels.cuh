// The levels that hold entries near the threads: registers and shared memory.
#pragma once

#include <vq/layout/format.h>
#include <vq/codebook/entry.cuh>
#include <vq/codes.cuh>

namespace vq {

// The register level: every thread keeps the hottest entries in registers. Register arrays cannot
// be indexed at run time, so an access compares with each place and selects.
VQ_DEVICE u32 select_words(bool take, u32 a, u32 b) { return take ? a : b; }
VQ_DEVICE U32x2 select_words(bool take, U32x2 a, U32x2 b) {
  return {take ? a.x : b.x, take ? a.y : b.y};
}
VQ_DEVICE U32x4 select_words(bool take, U32x4 a, U32x4 b) {
  return {take ? a.x : b.x, take ? a.y : b.y, take ? a.z : b.z, take ? a.w : b.w};
}

// Entries [0, kCount) of the codebooks (unit, stage). kCount > 0.
template <class Words, int kUnits, int kResiduals, int kCount>
class RegisterLevel {
 public:
  // `units` of them exist; entry(unit, stage, number) fetches one from global memory.
  template <class Entry>
  VQ_DEVICE void load(int units, Entry entry) {
    VQ_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) {
      VQ_UNROLL
      for (int i = 0; i < kResiduals * kCount; ++i) {
        held_[unit][i] = entry(unit < units ? unit : 0, i / kCount, i % kCount);
      }
    }
  }

  // The entry, where number < kCount, else `other`.
  VQ_DEVICE Words access(int unit, int stage, u32 number, Words other) const {
    VQ_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      VQ_UNROLL
      for (int i = 0; i < kResiduals * kCount; ++i) {
        const bool here =
            unit == u && stage == i / kCount && number == static_cast<u32>(i % kCount);
        other = select_words(here, held_[u][i], other);
      }
    }
    return other;
  }

 private:
  Words held_[kUnits][kCount > 0 ? kResiduals* kCount : 1];
};

// The empty level.
template <class Words, int kUnits, int kResiduals>
class RegisterLevel<Words, kUnits, kResiduals, 0> {
 public:
  template <class Entry>
  VQ_DEVICE void load(int, Entry) {}
  VQ_DEVICE Words access(int, int, u32, Words other) const { return other; }
};

// The shared levels: entries [kBegin, kEnd) of each codebook (unit, stage) in shared memory from
// byte kOffset on, each kCopies times in a row. Lane l reads copy l % kCopies: with kCopies x entry
// bytes = 128 there are no bank conflicts; one copy has them, but leaves room for more blocks.
//
//   a unit   | entry kBegin: stage 0, its copies | stage 1 ... | entry kBegin + 1: ...
//
// An address is the lane's offset plus a multiple of the number: one instruction, even from a byte
// of a code word.
template <class Words, i64 kOffset, int kResiduals, int kBegin, int kEnd, int kCopies, int kThreads>
struct SharedLevel {
  static constexpr int kCount = kEnd - kBegin;
  static constexpr int kStageBytes = kCopies * static_cast<int>(sizeof(Words));
  static constexpr int kRowBytes = kResiduals * kStageBytes;
  static constexpr int kUnitBytes = kCount * kRowBytes;
  // A thread that fetches many entries of a codebook has 64 bytes of them in flight together.
  static constexpr int kTogether = 64 / static_cast<int>(sizeof(Words));

  // All threads of the block, this one with number `thread`; `entry(unit, stage, number)` fetches
  // one entry from global memory. A thread fetches an entry once and writes its copies, each lane
  // starting with another copy to avoid bank conflicts.
  template <class Entry>
  VQ_DEVICE static void load(int units, int thread, Entry entry) {
    if constexpr (kCount > 0) {
      if constexpr (fetches_together(kResiduals, kCount, kThreads)) {
        load_together(units, thread, entry);
      } else {
        for (int i = thread; i < held(units); i += kThreads) store(i, fetch(i, entry));
      }
    }
  }

  // load() in two parts, with each thread's first entry in flight between them.
  template <class Entry>
  VQ_DEVICE static Words begin(int units, int thread, Entry entry) {
    Words words{};
    if constexpr (kCount > 0) {
      if (thread < held(units)) words = fetch(thread, entry);
    }
    return words;
  }
  template <class Entry>
  VQ_DEVICE static void finish(int units, int thread, const Words& begun, Entry entry) {
    if constexpr (kCount > 0) {
      if (thread < held(units)) store(thread, begun);
      load(units, thread + kThreads, entry);
    }
  }

  // Entry number `i` of all units and stages, by a thread that has fetched it.
  VQ_DEVICE static void put(int i, const Words& words) { store(i, words); }

  VQ_DEVICE static Words access(int unit, int stage, u32 number) {
    return load_row(unit, stage, lane_place() + number * kRowBytes);
  }

  // access() by a byte, of unit first + unit. One instruction makes the address if `first` is the
  // same for many lookups, as the lane's offset is, and `unit` is a constant, which goes into the
  // load's offset.
  VQ_DEVICE static Words access_byte(int first, int unit, int stage, CodeByte code) {
    if constexpr (kRowBytes < 65536) {
      const u32 place = lane_place() + static_cast<u32>(first * kUnitBytes);
      return load_row(unit, stage, add_scaled_byte(code.word, code.byte, kRowBytes, place));
    } else {
      return access(first + unit, stage, code);
    }
  }

 private:
  VQ_DEVICE static int held(int units) { return units * kResiduals * kCount; }
  // Entry number i of all units and stages.
  template <class Entry>
  VQ_DEVICE static Words fetch(int i, Entry entry) {
    return entry(i / (kCount * kResiduals), i / kCount % kResiduals, kBegin + i % kCount);
  }
  template <class Entry>
  VQ_DEVICE static void load_together(int units, int thread, Entry entry) {
    const int all = held(units);
    for (int first = thread; first < all; first += kTogether * kThreads) {
      Words words[kTogether];
      VQ_UNROLL
      for (int k = 0; k < kTogether; ++k) {
        const int i = first + k * kThreads;
        words[k] = fetch(i < all ? i : first, entry);
      }
      VQ_UNROLL
      for (int k = 0; k < kTogether; ++k) {
        const int i = first + k * kThreads;
        if (i < all) store(i, words[k]);
      }
    }
  }
  VQ_DEVICE static void store(int i, const Words& words) {
    constexpr int kLine = 128 / kRowBytes > 1 ? 128 / kRowBytes : 1;  // rows side by side
    const int row = i / (kCount * kResiduals) * kCount + i % kCount;
    auto* const to =
        reinterpret_cast<Words*>(at() + row * kRowBytes + i / kCount % kResiduals * kStageBytes);
    VQ_UNROLL
    for (int j = 0; j < kCopies; ++j) {
      store_shared(to + (j + lane() / kLine) % kCopies, words);
    }
  }
  VQ_DEVICE static u8* at() { return shared_memory() + kOffset; }
  // The copy that this lane reads, of an entry numbered 0: the same register for all lookups.
  VQ_DEVICE static u32 lane_place() {
    const u32 first = shared_place(at());
    if constexpr (kCopies == 1) return first;
    return first + lane() % kCopies * static_cast<u32>(sizeof(Words));
  }
  VQ_DEVICE static Words load_row(int unit, int stage, u32 row) {
    const int beyond = unit * kUnitBytes - kBegin * kRowBytes + stage * kStageBytes;
    return load_shared_at<Words>(row + static_cast<u32>(beyond));
  }
};

}  // namespace vq
