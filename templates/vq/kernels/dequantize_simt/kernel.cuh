// kv_dequantize: cached tokens to dense rows of keys and values. A block has keys or values, and
// loops over its tokens in steps while the next step's codes load. A lane makes 8 channels of a
// token at a time, so that stores are coalesced. The rotation is undone on tensor cores if the
// machine and the format allow it (ops/rotated_tokens.cuh), else by the lanes that share the row.
#pragma once

#include <vq/args/kv_dequantize.h>
#include <vq/kernels/dequantize_simt/plan.h>
#include <vq/kernels/dequantize_simt/octet_entries.cuh>
#include <vq/kernels/dequantize_simt/rotated_tokens.cuh>
#include <vq/kernels/dequantize_simt/row_copies.cuh>
#include <vq/ops/basis.cuh>
#include <vq/ops/cache_rows.cuh>
#include <vq/transform.cuh>

namespace vq {

// Format number kNumber of the keys' parts and then the values'.
template <class Plan, int kNumber>
struct DecodedFormat {
  static constexpr int kOfKeys = key_formats(Plan::config());
  VQ_HD static constexpr FormatConfig config() {
    return kNumber < kOfKeys ? key_format(Plan::config(), kNumber)
                             : value_format(Plan::config(), kNumber - kOfKeys);
  }
  static constexpr int kShare = config().part.channels;
  VQ_HD static constexpr DequantizeSimtShared layout() {
    return shared_layout(Plan::config(), config());
  }
  VQ_HD static constexpr CodebookShared shared() { return layout().book; }
};

template <class Plan, int kNumber>
class DecodedRows {
 public:
  using Format = DecodedFormat<Plan, kNumber>;
  using Rows = CacheRows<Plan, Format>;
  using Raw = RawRows<Plan, Format::config().part.of_values>;
  static constexpr auto kConfig = Plan::config();
  static constexpr FormatConfig kFormat = Rows::kFormat;
  static constexpr int kHeadDim = Raw::kDim;
  static constexpr int kRowChannels = Rows::kHeadDim;  // channels of a part
  static constexpr int kChannels = kDecodedChannels;   // channels per store
  static constexpr int kVectorSize = Rows::kVectorSize;
  static constexpr int kStep = step_tokens(kConfig);
  using Copies = RowCopies<Rows, kStep>;
  using Rotated = RotatedTokens<Rows, kConfig.element, Format::layout().codes>;

  VQ_DEVICE DecodedRows(const KvDequantizeArgs& args, const QuantizedArgs& tensor)
      : args_(args), tensor_(tensor), work_{block_z(), block_y()}, book_(tensor, Rows::units()) {}

  // Decodes tokens from `first` on, as many as the block has, to rows of `out`. All threads.
  // Codebooks need not wait for the previous launch; part of a large one does, as the block may
  // have no tokens.
  VQ_DEVICE void decode(int first, const u16* raw, u16* out) {
    book_.switch_to(Rows::first_unit(work_.kv_head, 0));
    const Begun begun = begin_book();
    after_last_launch();
    const int length = load_global(args_.lengths + work_.batch);
    const int last = first + kConfig.tokens_per_block;
    const int written = length < args_.tokens ? length : args_.tokens;
    const int end = written < last ? written : last;
    if (first < end) write(first, end, length, raw, out, begun);
    copy_async_wait<0>();  // nothing is under way when the block ends
  }

 private:
  using Book = typename Rows::Book;
  using Begun = typename Book::Begun;
  static constexpr int kEarly = 8 * kConfig.threads;  // pieces of a codebook, before the wait
  VQ_DEVICE Begun begin_book() {
    if constexpr (Book::kIsCopy) {
      book_.copy(0, kEarly);
      return {};
    } else {
      return book_.begin_load(thread_index());
    }
  }

  // Tokens [first, end) of a sequence of `length`.
  VQ_DEVICE void write(int first, int end, int length, const u16* raw, u16* out,
                       const Begun& begun) {
    out_ = out + (i64{work_.batch} * kConfig.kv_heads + work_.kv_head) * args_.tokens * kHeadDim;
    // Raw tokens are those before the coded ones and those behind them.
    int coded = first, coded_end = end;
    if constexpr (Raw::kMaxSinks + Raw::kMaxRecentTokens > 0) {
      const auto tokens = Raw::tokens(args_, work_.batch, length);
      coded = most(first, tokens.sinks);
      coded_end = end < tokens.recent_tokens ? end : tokens.recent_tokens;
      if constexpr (kFormat.part.first_channel == 0) {  // whole rows: of parts, the first's
        copy_raw(raw, first, coded < end ? coded : end, tokens);
        copy_raw(raw, most(coded, coded_end), end, tokens);
      }
    }
    if (coded >= coded_end) return;
    first_ = coded;
    count_ = coded_end - coded;
    Copies copies(tensor_, work_.batch, work_.kv_head, first_, count_);
    if constexpr (Book::kIsCopy) book_.copy(kEarly, Book::kPieces);
    copies.stage(0, codes());
    copy_async_commit();
    if constexpr (!Book::kIsCopy) book_.finish_load(thread_index(), begun);
    if constexpr (Rotated::kPossible) {
      turn_back(copies);
    } else {
      share_out(copies);
    }
  }

  // Calls step(rows, left) with the staged rows of each step while the codes of the next are in
  // flight; `left` tokens are still to be done.
  template <class Step>
  VQ_DEVICE void go_through(Copies& copies, Step step) const {
    for (int begin = 0; begin < count_; begin += kStep) {
      copy_async_wait<0>();
      sync_block();
      if (begin + kStep < count_) {
        copies.stage(begin + kStep, codes() + buffer(begin + kStep));
        copy_async_commit();
      }
      step(buffer(begin), count_ - begin);
    }
  }
  VQ_DEVICE static u32* codes() { return shared_part<u32>(Format::layout().codes); }
  // Words of it before the rows of the step from `begin` on.
  VQ_DEVICE static int buffer(int begin) { return begin / kStep % 2 * (kStep * Rows::kWords); }

  // A warp takes several tokens, of which products undo the rotation.
  VQ_DEVICE void turn_back(Copies& copies) const {
    const Rotated rotated;
    const int base = warp() * Rotated::kTokens;
    u16* next = place(first_ + base + Rotated::token(0), Rotated::channel(0));
    float* const factors = shared_part<float>(Format::layout().factors);
    for (int i = thread_index(); i < kHeadDim; i += kConfig.threads) {
      store_shared(factors + i, factor(i, hadamard_scale(kHeadDim)));
    }
    go_through(copies, [&](int rows, int left_of_block) {
      u16* const to = next;
      next += kStep * kHeadDim;
      const int left = left_of_block - base;
      if (left <= 0) return;
      for (int half = 0; half < Rotated::kHalves; ++half) {
        float value[Rotated::kPieces][kChannels];
        rotated.load(value, book_, half, [&](int token) {
          return rows + (base + (token < left ? token : 0)) * Rows::kWords;
        });
        VQ_UNROLL
        for (int octet = 0; octet < Rotated::kOctets; ++octet) {
          u32 bits[kChannels];
          const float* const from = factors + half * 128 + Rotated::channel(octet);
          load_words<4>(bits, reinterpret_cast<const u32*>(from), LoadShared{});
          load_words<4>(bits + 4, reinterpret_cast<const u32*>(from + 4), LoadShared{});
          float scales[kChannels];
          VQ_UNROLL
          for (int i = 0; i < kChannels; ++i) scales[i] = float_from_bits(bits[i]);
          VQ_UNROLL
          for (int i = 0; i < Rotated::kPieces; ++i) {
            if (Rotated::octet(i) != octet || Rotated::token(i) >= left) continue;
            store(to + half * 128 + Rotated::place(i), packed(value[i], scales));
          }
        }
      }
    });
  }

  // Each lane takes 8 channels, the same of all its tokens.
  VQ_DEVICE void share_out(Copies& copies) const {
    // A rotated row is within a warp.
    constexpr int kLanes = kFormat.hadamard ? octet_lanes(kHeadDim) : row_lanes(kRowChannels);
    constexpr int kRows = kConfig.threads / kLanes;
    const int row = thread_index() / kLanes;
    const int channel = thread_index() % kLanes * kChannels;
    u16* next = place(first_ + row, kFormat.part.in_parts ? 0 : channel);
    float factors[kChannels];
    VQ_UNROLL
    for (int i = 0; i < kChannels; ++i) {
      factors[i] = channel < kRowChannels ? factor(channel + i, 1.0f) : 0.0f;
    }
    go_through(copies, [&](int rows, int left) {
      u16* const to = next;
      next += kStep * kHeadDim;
      const auto take = [&](int base) {  // whole warps: shuffles below
        const int number = base + row;
        const bool here = row < kRows && channel < kRowChannels && number < kStep && number < left;
        const int first_word = rows + number * Rows::kWords;
        U32x4 words{};
        if constexpr (kIsEntry) {
          u32 entries[kChannels / 2];
          if (here) {
            octet_entries<Rows, kConfig.element, Format::layout().codes>(entries, book_, first_word,
                                                                         channel / kChannels, 0);
            words = {entries[0], entries[1], entries[2], entries[3]};
          }
        } else {
          float value[kChannels] = {};
          if (here) look_up(value, codes() + first_word, channel);
          if constexpr (kFormat.hadamard) hadamard_octets<kHeadDim>(value);
          words = packed(value, factors);
        }
        if (here) store_octet(to + base * kHeadDim, channel, words);
      };
      if constexpr (kIsEntry) {
        VQ_UNROLL
        for (int base = 0; base < kStep; base += kRows) take(base);
      } else {  // which takes more registers
        for (int base = 0; base < kStep; base += kRows) take(base);
      }
    });
  }

  // True if a decoded entry can be stored as it is.
  static constexpr bool kIsEntry = Rows::kPieces == 1 && kFormat.num_codebooks == 1 &&
                                   !kFormat.stage_scales && !kFormat.smooth && !kFormat.hadamard &&
                                   scale_words(kFormat, kRowChannels) == 0;
  // 8 channels of a staged row, as they were quantized.
  VQ_DEVICE void look_up(float (&value)[kChannels], const u32* row, int channel) const {
    VQ_UNROLL
    for (int i = 0; i < kChannels; i += kVectorSize) {
      float part[kVectorSize];
      Rows::decode(book_, row, 0, (channel + i) / kVectorSize, part);
      VQ_UNROLL
      for (int j = 0; j < kVectorSize; ++j) value[i + j] = part[j];
    }
  }

  // The last factor of a channel.
  VQ_DEVICE float factor(int channel, float scale) const {
    if constexpr (kFormat.smooth) {
      scale *= load_global(args_.key_smooth + i64{work_.kv_head} * kHeadDim + channel);
    }
    return scale;
  }
  VQ_DEVICE static U32x4 packed(float (&value)[kChannels], const float (&factors)[kChannels]) {
    VQ_UNROLL
    for (int i = 0; i < kChannels; ++i) value[i] *= factors[i];
    return {pack2<kConfig.element>(value[0], value[1]), pack2<kConfig.element>(value[2], value[3]),
            pack2<kConfig.element>(value[4], value[5]), pack2<kConfig.element>(value[6], value[7])};
  }

  // Tokens [begin, end) of the raw rows. All threads.
  VQ_DEVICE void copy_raw(const u16* raw, int begin, int end,
                          const typename Raw::Tokens& tokens) const {
    constexpr int kLanes = row_lanes(kHeadDim);
    constexpr int kRows = rows_at_once(kConfig, kHeadDim);
    if (thread_index() >= kRows * kLanes) return;  // its rows are others' too
    const int channel = thread_index() % kLanes * kChannels;
    for (int token = begin + thread_index() / kLanes; token < end; token += kRows) {
      const u16* const row = raw + Raw::at(args_, work_.batch, work_.kv_head, token, tokens.sinks);
      store(place(token, channel), load_global(reinterpret_cast<const U32x4*>(row + channel)));
    }
  }

  VQ_DEVICE u16* place(int token, int channel) const {
    return out_ + i64{token} * kHeadDim + channel;
  }
  // 8 channels of the format from `channel` on: to their places, or of parts to the row `to`.
  VQ_DEVICE static void store_octet(u16* to, int channel, U32x4 words) {
    if constexpr (!kFormat.part.in_parts) {
      store(to, words);
    } else {
      const u32 pairs[] = {words.x, words.y, words.z, words.w};
      VQ_UNROLL
      for (int i = 0; i < kChannels; ++i) {
        store_global(to + channel_of<Format, Plan>(channel + i),
                     static_cast<u16>(pairs[i / 2] >> i % 2 * 16));
      }
    }
  }
  VQ_DEVICE static void store(u16* to, U32x4 words) {  // 8 channels
    store_global(reinterpret_cast<U32x4*>(to), words);
  }

  const KvDequantizeArgs& args_;
  const QuantizedArgs& tensor_;
  struct {
    int batch, kv_head;
  } work_;
  typename Rows::Book book_;
  u16* out_;   // rows of the sequence and head
  int first_;  // first of the block's tokens that have codes
  int count_;
};

// Kernel dequantize_from_basis: dense rows of one sequence and KV head, keys or values, in place
// (layout/basis.h).
template <class Plan, BasisOf kOf = BasisOf::kAll>
VQ_DEVICE void dequantize_from_basis(const KvDequantizeArgs& args) {
  constexpr auto kConfig = Plan::config();
  constexpr int kOperands = basis_operands(kConfig, kOf);
  constexpr int kDim = basis_dim(kConfig, kOf);
  const bool values = is_of_values(kConfig, kOf, block_x() % kOperands);
  const int first = block_x() / kOperands * kBasisTile;
  BasisBlock<Plan, kDim, true> block(args, values, block_y());
  after_last_launch();
  const int length = load_global(args.lengths + block_z());
  const int left = (length < args.tokens ? length : args.tokens) - first;
  if (left <= 0) return;
  const int rows = left < kBasisTile ? left : kBasisTile;
  const i64 head = i64{block_z()} * kConfig.kv_heads + block_y();
  u16* const out = (values ? args.out_values : args.out_keys) + (head * args.tokens + first) * kDim;
  const auto place = [&](int t) { return out + i64{t} * kDim; };
  block.template change<false>(
      rows, [&](int t, int channel) { return load_global_coherent(place(t) + channel); }, place);
}
template <class Plan>
VQ_DEVICE void dequantize_keys_from_basis(const KvDequantizeArgs& args) {
  dequantize_from_basis<Plan, BasisOf::kKeys>(args);
}
template <class Plan>
VQ_DEVICE void dequantize_values_from_basis(const KvDequantizeArgs& args) {
  dequantize_from_basis<Plan, BasisOf::kValues>(args);
}

// Tokens from `first` on of format `number`, one of those from kNumber on.
template <class Plan, int kNumber = 0>
VQ_DEVICE void decode_format(const KvDequantizeArgs& args, int number, int first) {
  constexpr int kOfKeys = key_formats(Plan::config());
  constexpr int kFormats = kOfKeys + value_formats(Plan::config());
  if (number == kNumber) {
    using Format = DecodedFormat<Plan, kNumber>;
    constexpr bool kKeys = kNumber < kOfKeys;
    const QuantizedArgs tensor = part_tensor<Format>(kKeys ? args.keys : args.values);
    DecodedRows<Plan, kNumber>(args, tensor)
        .decode(first, kKeys ? args.raw_keys : args.raw_values,
                kKeys ? args.out_keys : args.out_values);
  } else if constexpr (kNumber + 1 < kFormats) {
    decode_format<Plan, kNumber + 1>(args, number, first);
  }
}

// Adjacent blocks decode the formats of the same tokens; of two formats in alternating order: an SM
// gets blocks about as far apart as there are SMs, and should get both kinds, as keys take more
// work.
template <class Plan>
VQ_DEVICE void kv_dequantize_simt(const KvDequantizeArgs& args) {
  constexpr auto kConfig = Plan::config();
  constexpr int kFormats = key_formats(kConfig) + value_formats(kConfig);
  int number = block_x() % kFormats;
  if constexpr (kFormats == 2) {
    const int parts = ceil_div(args.tokens, kConfig.tokens_per_block);
    const int heads_before = block_z() * kConfig.kv_heads + block_y();
    const u32 place = static_cast<u32>(heads_before) * 2 * parts + block_x();
    number = static_cast<int>((place ^ place >> 7) & 1);
  }
  decode_format<Plan>(args, number, block_x() / kFormats * kConfig.tokens_per_block);
}

}  // namespace vq
