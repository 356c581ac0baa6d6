// kv_decode by lanes: cached tokens as dense rows of keys and values. A block is of keys or of
// values. It stages the codes of its tokens while it fetches what codebooks it keeps near; then
// each lane makes 8 channels of a token at a time, so that lanes that follow each other store
// memory that does. A row's rotation is undone by the lanes that share it, in registers.
#pragma once

#include <vq/args/kv_decode.h>
#include <vq/kernels/decode_lanes/plan.h>
#include <vq/ops/cache_rows.cuh>
#include <vq/transform.cuh>

namespace vq {

template <class Plan, bool kKeys>
struct DecodedFormat {
  static constexpr int kShare = Plan::config().head_dim;
  VQ_HD static constexpr FormatConfig config() {
    return kKeys ? Plan::config().keys : Plan::config().values;
  }
  VQ_HD static constexpr DecodeLanesShared layout() {
    return shared_layout(Plan::config(), config());
  }
  VQ_HD static constexpr CodebookShared shared() { return layout().book; }
};

template <class Plan, bool kKeys>
class DecodedRows {
 public:
  using Format = DecodedFormat<Plan, kKeys>;
  using Rows = CacheRows<Plan, Format>;
  using Raw = RawRows<Plan>;
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = Rows::kFormat;
  static constexpr int kHeadDim = Rows::kHeadDim;
  static constexpr int kChannels = kDecodedChannels;  // of a lane
  static constexpr int kLanes = row_lanes(kConfig);   // of a row
  static constexpr int kVectorSize = Rows::kVectorSize;

  VQ_DEVICE DecodedRows(const KvDecodeArgs& args, const QuantizedArgs& tensor)
      : args_(args),
        tensor_(tensor),
        work_{block_z(), block_y()},
        channel_(thread_index() % kLanes * kChannels),
        book_(tensor, Rows::units()) {}

  // Tokens from `first` on, as many as the block has, to rows of `out`. All threads.
  VQ_DEVICE void decode(int first, const u16* raw, u16* out) {
    const int length = load_global(args_.lengths + work_.batch);
    const int end = length < args_.tokens ? length : args_.tokens;
    const int left = end - first;
    if (left <= 0) return;
    const int count = left < kConfig.tokens_per_block ? left : kConfig.tokens_per_block;
    Rows::stage(tensor_, work_, 0, first, count, codes());
    copy_async_commit();
    book_.switch_to(Rows::first_unit(work_.kv_head, 0));
    book_.load();
    load_smooth();
    const auto raw_tokens = Raw::tokens(args_, work_.batch, length);
    out +=
        ((i64{work_.batch} * kConfig.kv_heads + work_.kv_head) * args_.tokens + first) * kHeadDim;
    copy_async_wait<0>();
    sync_block();
    constexpr int kRows = rows_at_once(kConfig);
    const int row = thread_index() / kLanes;
    for (int base = 0; base < count; base += kRows) {  // whole warps: shuffles below
      const int number = base + row;
      const bool here = row < kRows && number < count;
      const bool is_raw = raw_tokens.holds(first + number);
      float value[kChannels] = {};
      if (here && !is_raw) look_up(number, value);
      if constexpr (kFormat.hadamard) hadamard_row<kHeadDim>(value);
      if (!here) continue;
      const U32x4 words =
          is_raw ? raw_words(raw, raw_tokens, first + number) : element_words(value);
      store_global(reinterpret_cast<U32x4*>(out + i64{number} * kHeadDim + channel_), words);
    }
  }

 private:
  VQ_DEVICE static u32* codes() { return shared_part<u32>(Format::layout().codes); }

  // This lane's channels of row `number`, as they were quantized.
  VQ_DEVICE void look_up(int number, float (&value)[kChannels]) const {
    const u32* const row = codes() + number * Rows::kWords;
    VQ_UNROLL
    for (int i = 0; i < kChannels; i += kVectorSize) {
      float part[kVectorSize];
      Rows::decode(book_, row, 0, (channel_ + i) / kVectorSize, part);
      VQ_UNROLL
      for (int j = 0; j < kVectorSize; ++j) value[i + j] = part[j];
    }
  }

  VQ_DEVICE void load_smooth() {
    if constexpr (kFormat.smooth) {
      VQ_UNROLL
      for (int i = 0; i < kChannels; ++i)
        smooth_[i] = load_global(args_.key_smooth + i64{work_.kv_head} * kHeadDim + channel_ + i);
    }
  }

  VQ_DEVICE U32x4 element_words(float (&value)[kChannels]) const {
    if constexpr (kFormat.smooth) {
      VQ_UNROLL
      for (int i = 0; i < kChannels; ++i) value[i] *= smooth_[i];
    }
    return {pack2<kConfig.element>(value[0], value[1]), pack2<kConfig.element>(value[2], value[3]),
            pack2<kConfig.element>(value[4], value[5]), pack2<kConfig.element>(value[6], value[7])};
  }

  VQ_DEVICE U32x4 raw_words(const u16* raw, const typename Raw::Tokens& tokens, int token) const {
    const u16* const row = raw + Raw::at(args_, work_.batch, work_.kv_head, token, tokens.sinks);
    return load_global(reinterpret_cast<const U32x4*>(row + channel_));
  }

  const KvDecodeArgs& args_;
  const QuantizedArgs& tensor_;
  struct {
    int batch, kv_head;
  } work_;
  int channel_;  // this lane's first
  typename Rows::Book book_;
  float smooth_[kChannels];
};

template <class Plan>
VQ_DEVICE void kv_decode_lanes(const KvDecodeArgs& args) {
  const int first = block_x() / 2 * Plan::config().tokens_per_block;
  if (block_x() % 2 == 0) {
    DecodedRows<Plan, true>(args, args.keys).decode(first, args.raw_keys, args.out_keys);
  } else {
    DecodedRows<Plan, false>(args, args.values).decode(first, args.raw_values, args.out_values);
  }
}

}  // namespace vq
