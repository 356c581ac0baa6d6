// Rows of a cache into its basis and back (layout/basis.h). A block has rows of one KV head in
// shared memory; thread c has channel c of all of them, and rows of the rotation come by tiles.
#pragma once

#include <vq/layout/basis.h>
#include <vq/machine.cuh>

namespace vq {

// `Plan` is of an op on a KV cache; a block has kRows rows. kBack: out of the basis.
template <class Plan, int kRows, bool kBack>
class BasisBlock {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr int kThreads = basis_threads(kHeadDim);
  static constexpr BasisShared kAt = basis_shared(kRows, kHeadDim);

  // The keys' basis, or the values', at one KV head.
  template <class Args>
  VQ_DEVICE BasisBlock(const Args& args, bool values, int kv_head)
      : basis_(values ? kConfig.value_basis : kConfig.key_basis),
        mean_(basis_.mean ? (values ? args.value_mean : args.key_mean) + i64{kv_head} * kHeadDim
                          : nullptr),
        rotation_(basis_.rotation ? (values ? args.value_rotation : args.key_rotation) +
                                        i64{kv_head} * kHeadDim * kHeadDim
                                  : nullptr) {}

  VQ_DEVICE static int channel() { return thread_index(); }
  VQ_DEVICE static bool has_channel() { return kHeadDim % 32 == 0 || channel() < kHeadDim; }
  VQ_DEVICE static float* row(int number) {
    return shared_part<float>(kAt.rows) + number * kHeadDim;
  }

  // Rows 0 .. count - 1 of 16-bit elements, row t at from(t), less the mean on the way into the
  // basis where `centered`. The others are zeros. All threads; others read them behind a barrier.
  template <class From>
  VQ_DEVICE void load(int count, bool centered, From from) const {
    if (!has_channel()) return;
    const float mean = !kBack && basis_.mean && centered ? load_global(mean_ + channel()) : 0.0f;
    VQ_UNROLL
    for (int t = 0; t < kRows; ++t) {
      float value = 0.0f;
      if (t < count) {
        const u16* const place = from(t) + channel();
        // Out of the basis rows are changed in place.
        const u16 bits = kBack ? load_global_coherent(place) : load_global(place);
        value = to_float<kConfig.element>(bits) - mean;
      }
      store_shared(row(t) + channel(), value);
    }
  }

  // Stores rows 0 .. count - 1 in the other basis, row t at to(t), null where it is left alone. All
  // threads, with load() before; ends with a barrier.
  template <class To>
  VQ_DEVICE void store(int count, To to) const {
    float sum[kRows];
    rotate(sum);
    if (has_channel()) {
      const float mean = kBack && basis_.mean ? load_global(mean_ + channel()) : 0.0f;
      VQ_UNROLL
      for (int t = 0; t < kRows; ++t) {
        if (t >= count) break;
        u16* const out = to(t);
        if (out != nullptr) {
          store_global(out + channel(), from_float<kConfig.element>(sum[t] + mean));
        }
      }
    }
    sync_block();
  }

  // The mean's channels times row `number`, by one warp; all of its lanes get it.
  VQ_DEVICE float dot_mean(int number) const {
    float total = 0.0f;
    for (int c = lane(); c < kHeadDim; c += 32) {
      total += load_shared(row(number) + c) * load_global(mean_ + c);
    }
    VQ_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) total += shuffle_xor(total, mask);
    return total;
  }

 private:
  // sum[t] = channel c of row t times the rotation, or its transpose. The barrier behind a tile's
  // load is one behind the rows' too; without a rotation each thread reads what it stored.
  VQ_DEVICE void rotate(float (&sum)[kRows]) const {
    if (!basis_.rotation) {
      VQ_UNROLL
      for (int t = 0; t < kRows; ++t) {
        sum[t] = has_channel() ? load_shared(row(t) + channel()) : 0.0f;
      }
      return;
    }
    VQ_UNROLL
    for (int t = 0; t < kRows; ++t) sum[t] = 0.0f;
    float* const tile = shared_part<float>(kAt.tile);
    for (int base = 0; base < kHeadDim; base += kBasisTile) {
      const int width = kHeadDim - base < kBasisTile ? kHeadDim - base : kBasisTile;
      if (base > 0) sync_block();
      if constexpr (kBack) {
        for (int c = warp(); c < kHeadDim; c += kThreads / 32) {
          if (lane() >= width) continue;
          store_shared(tile + c * (kBasisTile + 1) + lane(),
                       load_global(rotation_ + c * kHeadDim + base + lane()));
        }
      } else {
        for (int i = thread_index(); i < kHeadDim * width; i += kThreads) {
          store_shared(tile + i, load_global(rotation_ + base * kHeadDim + i));
        }
      }
      sync_block();
      if (!has_channel()) continue;
      for (int j = 0; j < width; ++j) {
        const float factor = load_shared(
            tile + (kBack ? channel() * (kBasisTile + 1) + j : j * kHeadDim + channel()));
        VQ_UNROLL
        for (int t = 0; t < kRows; ++t) sum[t] += load_shared(row(t) + base + j) * factor;
      }
    }
  }

  const Basis basis_;
  const float* const mean_;
  const float* const rotation_;
};

}  // namespace vq
