// K-means on a device: assignment and sums in one kernel.
//
// A block takes 512 to 2048 sub-vectors of one codebook, in the threads' registers, and all
// entries, a slice in shared memory at a time. A warp reads each entry once, by broadcast, for all
// its sub-vectors. Distances are kv_append's sums of squared differences, which take nearly all of
// the time.
//
//   a block, 1024 vectors, d8b12    2 x 1024 x 4096 x 8 = 67 M operations
//     reads                         32 KB of vectors, 128 KB of entries (L2)
//     adds                          1024 x 10 words of 64 bits
//
// Sums therefore need no bins in shared memory: neighbouring lanes add integers to neighbouring
// words in global memory, and integer sums do not depend on the order.
#pragma once

#include <vq/args/training.h>
#include <vq/loads.cuh>
#include <vq/ops/append_share.cuh>

namespace vq {

struct LoadCoherent {
  VQ_DEVICE float operator()(const float* pointer) const { return load_global_coherent(pointer); }
};

VQ_DEVICE int book_of_block() { return block_z() * kTrainingBooksAtOnce + block_y(); }

// The block's share of a book. kSize elements a vector.
template <int kSize>
class TrainingBlock {
 public:
  static constexpr int kOwn = training_own(kSize);
  static constexpr int kVectors = training_block_vectors(kSize);
  static constexpr int kSlice = kTrainingSliceBytes / 4 / kSize;  // entries
  static constexpr int kAtOnce = 4;                               // entries per turn
  using Vector = float[kSize];

  VQ_DEVICE explicit TrainingBlock(const TrainingArgs& args)
      : args_(args), book_(book_of_block()), first_(0), vectors_(0) {
    if (book_ >= args.books) return;
    const i64 begin = load_global(args.begins + book_);
    const i64 left = load_global(args.begins + book_ + 1) - begin - i64{block_x()} * kVectors;
    first_ = begin + i64{block_x()} * kVectors;
    vectors_ = left < kVectors ? static_cast<int>(left) : kVectors;
  }

  VQ_DEVICE bool has_vectors() const { return vectors_ > 0; }
  VQ_DEVICE int vectors() const { return vectors_; }
  VQ_DEVICE i64 first_element() const { return first_ * kSize; }
  VQ_DEVICE i64 first_entry() const { return i64{book_} * args_.count; }

  // Number of the thread's j-th vector in the block.
  VQ_DEVICE static int own(int j) { return j * kTrainingThreads + thread_index(); }

  // The thread's vectors, a word at a time; past the end the block's last one again.
  template <class Load>
  VQ_DEVICE void load(Vector (&x)[kOwn], Load load) const {
    VQ_UNROLL
    for (int j = 0; j < kOwn; ++j) {
      const int number = own(j) < vectors_ ? own(j) : vectors_ - 1;
      const float* const from = args_.vectors + first_element() + number * kSize;
      VQ_UNROLL
      for (int d = 0; d < kSize; ++d) x[j][d] = load(from + d);
    }
  }

  // All threads of the block. What compares as NaN is never nearer.
  VQ_DEVICE void search(const Vector (&x)[kOwn], float (&least)[kOwn], int (&nearest)[kOwn]) const {
    VQ_UNROLL
    for (int j = 0; j < kOwn; ++j) {
      least[j] = infinity();
      nearest[j] = 0;
    }
    for (int begin = 0; begin < args_.count; begin += kSlice) {
      const int left = args_.count - begin;
      const int entries = left < kSlice ? left : kSlice;
      const int padded = (entries + kAtOnce - 1) / kAtOnce * kAtOnce;
      sync_block();
      fill(begin, entries, padded);
      sync_block();
      for (int entry = 0; entry < padded; entry += kAtOnce) {
        VQ_UNROLL
        for (int i = 0; i < kAtOnce; ++i) take(x, least, nearest, entry + i, begin);
      }
    }
  }

  VQ_DEVICE void add(const float (&least)[kOwn], const int (&nearest)[kOwn]) const {
    VQ_UNROLL
    for (int j = 0; j < kOwn; ++j) {
      store_shared(nearest_of() + own(j), nearest[j]);
      store_shared(least_of() + own(j), least[j]);
    }
    sync_block();
    constexpr int kFields = kSize + 2;
    u64* const sums = args_.sums + first_entry() * kFields;
    const float element_factor = load_global(args_.factors + book_ * 2);
    const float distance_factor = load_global(args_.factors + book_ * 2 + 1);
    for (int i = thread_index(); i < vectors_ * kSize; i += kTrainingThreads) {
      const i64 entry = load_shared(nearest_of() + i / kSize);
      const float element = load_global(args_.vectors + first_element() + i);
      add_global(sums + entry * kFields + i % kSize, integer(element * element_factor));
    }
    for (int i = thread_index(); i < vectors_; i += kTrainingThreads) {
      u64* const sum = sums + i64{load_shared(nearest_of() + i)} * kFields + kSize;
      add_global(sum, integer(load_shared(least_of() + i) * distance_factor));
      add_global(sum + 1, u64{1});
    }
  }

 private:
  VQ_DEVICE static u64 integer(float value) { return static_cast<u64>(static_cast<i64>(value)); }

  // Entries from number `begin` on; those past the end are infinitely far from everything.
  VQ_DEVICE void fill(int begin, int entries, int padded) const {
    const float* const from = args_.entries + (first_entry() + begin) * kSize;
    for (int i = thread_index(); i < padded * kSize; i += kTrainingThreads) {
      store_shared(slice() + i, i < entries * kSize ? load_global(from + i) : infinity());
    }
  }

  VQ_DEVICE static void take(const Vector (&x)[kOwn], float (&least)[kOwn], int (&nearest)[kOwn],
                             int local, int begin) {
    constexpr int kWords = kSize < 4 ? kSize : 4;
    Vector entry;
    VQ_UNROLL
    for (int d = 0; d < kSize; d += kWords) {
      u32 words[kWords];
      load_words<kWords>(words, reinterpret_cast<const u32*>(slice() + local * kSize + d),
                         LoadShared{});
      VQ_UNROLL
      for (int i = 0; i < kWords; ++i) entry[d + i] = float_from_bits(words[i]);
    }
    VQ_UNROLL
    for (int j = 0; j < kOwn; ++j) {
      const float distance = Nearest<Decoder::table, kSize>::distance(x[j], entry, 0);
      const bool nearer = distance < least[j];
      least[j] = nearer ? distance : least[j];
      nearest[j] = nearer ? begin + local : nearest[j];
    }
  }

  VQ_DEVICE static float* slice() { return shared_part<float>(0); }
  VQ_DEVICE static i32* nearest_of() { return shared_part<i32>(kTrainingSliceBytes); }
  VQ_DEVICE static float* least_of() {
    return shared_part<float>(kTrainingSliceBytes + kVectors * 4);
  }

  const TrainingArgs& args_;
  int book_;
  i64 first_;    // first of all vectors
  int vectors_;  // vectors of the block; fewer, or none, past the book's end
};

template <int kSize>
VQ_DEVICE void training_sums(const TrainingArgs& args) {
  using Block = TrainingBlock<kSize>;
  const Block block(args);
  if (!block.has_vectors()) return;
  typename Block::Vector x[Block::kOwn];
  float least[Block::kOwn];
  int nearest[Block::kOwn];
  block.load(x, LoadGlobal{});
  block.search(x, least, nearest);
  block.add(least, nearest);
}

// Each thread loads what it stores, in place or not.
template <int kSize>
VQ_DEVICE void training_subtract(const TrainingArgs& args) {
  using Block = TrainingBlock<kSize>;
  const Block block(args);
  if (!block.has_vectors()) return;
  typename Block::Vector x[Block::kOwn];
  float least[Block::kOwn];
  int nearest[Block::kOwn];
  block.load(x, LoadCoherent{});
  block.search(x, least, nearest);
  VQ_UNROLL
  for (int j = 0; j < Block::kOwn; ++j) {
    if (Block::own(j) >= block.vectors()) continue;
    float* const to = args.left + block.first_element() + Block::own(j) * kSize;
    const float* const entry = args.entries + (block.first_entry() + nearest[j]) * kSize;
    VQ_UNROLL
    for (int d = 0; d < kSize; ++d) store_global(to + d, x[j][d] - load_global(entry + d));
  }
}

// Bits without the sign are in the order of the magnitudes, with infinity and NaN above all.
template <int kSize>
VQ_DEVICE void training_peaks(const TrainingArgs& args) {
  const TrainingBlock<kSize> block(args);
  if (book_of_block() >= args.books) return;
  u32 most = 0;
  for (int i = thread_index(); i < block.vectors() * kSize; i += kTrainingThreads) {
    const float element = load_global(args.vectors + block.first_element() + i);
    const u32 magnitude = float_bits(element) & 0x7fffffffu;
    most = magnitude > most ? magnitude : most;
  }
  VQ_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) {
    const u32 other = shuffle_xor(most, mask);
    most = other > most ? other : most;
  }
  const i64 place = i64{book_of_block()} * args.blocks + block_x();
  if (lane() == 0) store_global(args.peaks + place * kTrainingWarps + warp(), most);
}

template <int kSize>
VQ_DEVICE void training_gather(const TrainingArgs& args) {
  const int book = book_of_block();
  if (book >= args.books) return;
  for (int pick = block_x() * kTrainingThreads + thread_index(); pick < args.count;
       pick += args.blocks * kTrainingThreads) {
    const i64 place = i64{book} * args.count + pick;
    const i64 vector = i64{load_global(args.begins + book)} + load_global(args.picks + place);
    VQ_UNROLL
    for (int d = 0; d < kSize; ++d) {
      store_global(args.picked + place * kSize + d, load_global(args.vectors + vector * kSize + d));
    }
  }
}

}  // namespace vq
