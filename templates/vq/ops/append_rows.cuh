// The rows of one tensor that a block of kv_append writes: loaded raw and transformed, and, once
// encoded (append_stage.cuh), put into the cache. A share's codes are whole words
// (layout/append.h), so that each has one writer.
#pragma once

#include <vq/ops/append_share.cuh>
#include <vq/tokens/cached_rows.cuh>
#include <vq/transform.cuh>

namespace vq {

template <class Plan, class Operand>
class AppendRows {
 public:
  using Share = AppendShare<Plan, Operand>;
  static constexpr auto kConfig = Share::kConfig;
  static constexpr FormatConfig kFormat = Share::kFormat;
  static constexpr int kChannels = Share::kChannels;
  static constexpr int kThreads = Share::kThreads;
  static constexpr int kResiduals = Share::kResiduals;
  static constexpr int kBits = kFormat.index_bits;
  static constexpr int kOfLane = ceil_div(kChannels, 32);
  static constexpr int kSequences = Share::kSequences;
  static constexpr int kTokens = Share::kTokens;
  using Stored = CodeRows<Operand, Plan>;
  using Raw = RawRows<Plan, kFormat.part.of_values>;
  static constexpr int kBatch = Raw::kBatch;
  static constexpr int kCodeWords = static_cast<int>(code_words(kFormat, kChannels));
  static constexpr int kScaleWords = static_cast<int>(scale_words(kFormat, kChannels));
  static constexpr int kShareWords = ceil_div(Share::kVectors * kResiduals * kBits, 32);

  // `elements` are new_keys or new_values, `raw` the raw slots of the same; `first` is the number
  // of a sequence's first token, but for batches. A warp's first row is on its way from here on, so
  // that it comes while the block learns where it goes; of batches the place says which it is.
  VQ_DEVICE AppendRows(const KvAppendArgs& args, const u16* elements, u16* raw, int first)
      : args_(args), elements_(elements), raw_(raw), first_(first) {
    VQ_UNROLL
    for (int j = 0; j < kOfLane; ++j) {
      const int channel = lane() + 32 * j;
      smooth_[j] = 1.0f;
      if (kChannels % 32 != 0 && channel >= kChannels) continue;
      if constexpr (kFormat.smooth)
        smooth_[j] = load_global(args.key_smooth + i64{block_y()} * kChannels + channel);
    }
    if constexpr (kBatch == 1) {
      if (may_have(warp())) fetch(warp());
    }
  }

  // The rows to shared memory, transformed, and to their raw slots, but for batches. A warp a row;
  // all threads. Rows of no token are zeros.
  VQ_DEVICE void load(const Share& share, const AppendWork& own) {
    if (kSequences > 1 && thread_index() < kSequences) Share::store_work(thread_index(), own);
    for (int t = warp(); t < share.work.count; t += kThreads / 32) {
      const AppendWork work = Share::of_row(own, t);
      if (kSequences > 1 && t % kTokens >= work.count) {
        for (int channel = lane(); channel < kChannels; channel += 32) {
          store_shared(Share::row(t) + channel, 0.0f);
        }
        continue;
      }
      if constexpr (kBatch > 1) {
        fetch_visited(work, t);
      } else if (t != warp()) {
        fetch(t);
      }
      float values[kOfLane];
      VQ_UNROLL
      for (int j = 0; j < kOfLane; ++j) {
        const int channel = lane() + 32 * j;
        values[j] = 0.0f;
        if (kChannels % 32 != 0 && channel >= kChannels) continue;
        if (kBatch == 1 && share.begin == 0) {
          keep_raw(args_, raw_, work, number_of(t), channel_of<Operand, Plan>(channel), row_[j]);
        }
        values[j] = to_float<kConfig.element>(row_[j]);
        if constexpr (kFormat.smooth) values[j] /= smooth_[j];
      }
      if constexpr (kFormat.hadamard) hadamard_row<kChannels>(values);
      if constexpr (kFormat.token_scales) take_scales(values, t);
      VQ_UNROLL
      for (int j = 0; j < kOfLane; ++j) {
        const int channel = lane() + 32 * j;
        if (kChannels % 32 == 0 || channel < kChannels)
          store_shared(Share::row(t) + channel, values[j]);
      }
    }
  }

  // The codes of shared memory to the cache. A thread a word; all threads.
  VQ_DEVICE static void write(const Share& share) {
    const int first_word = share.begin * kResiduals * kBits / 32;
    const int left = kCodeWords - first_word;
    const int words = left < kShareWords ? left : kShareWords;
    for (int i = thread_index(); i < share.work.count * words; i += kThreads) {
      const int t = i / words;
      if (!share.has(t)) continue;
      const int word = i % words;
      store_global(stored(share, t) + Stored::word(first_word + word),
                   packed(share, Share::codes() + t * Share::kVectors * kResiduals, word));
    }
    if constexpr (kFormat.token_scales) {
      if (share.begin > 0) return;
      for (int i = thread_index(); i < share.work.count * kScaleWords; i += kThreads) {
        const int t = i / kScaleWords;
        if (!share.has(t)) continue;
        store_global(stored(share, t) + Stored::word(kCodeWords + i % kScaleWords),
                     load_shared(Share::scales() + i));
      }
    }
  }

  // Stores new tokens in their raw slots: a sink's row its own, and the first visited row of a ring
  // slot the newest token of that slot. A slot is thus written only by the block that reads it,
  // after it has read it. A warp per row; all threads.
  VQ_DEVICE void keep_visited(const AppendWork& own) const {
    for (int t = warp(); t < kSequences * kTokens; t += kThreads / 32) {
      const AppendWork work = Share::of_row(own, t);
      const int number = Share::number_of(work, t);
      if (number >= work.all) continue;
      const int before = work.position % kBatch;  // visited ones of earlier calls
      const int token = work.position + number;
      if (number >= 0 && token < kConfig.max_sinks) keep(work, number, token);
      const int newest = work.all - 1 - (work.all - 1 - number) % kConfig.max_recent_tokens;
      if (before + number < kConfig.max_recent_tokens && newest >= 0) {
        keep(work, newest, Raw::window_slot(work.position + newest));
      }
    }
  }

  // Stores the element in the slots of a first token and of the ring: only the reader's counts tell
  // sinks from recent tokens. Among new tokens that share a ring slot only the newest is stored. In
  // pages each token has a row.
  VQ_DEVICE static void keep_raw(const KvAppendArgs& args, u16* raw_rows, const AppendWork& work,
                                 int number, int channel, u16 element) {
    constexpr int kSinks = kConfig.max_sinks;
    constexpr int kWindow = kConfig.max_recent_tokens;
    if constexpr (Raw::kPaged) {
      const i64 row = Raw::at(args, work.batch, work.head, work.position + number, 0);
      store_global(raw_rows + row + channel, element);
    } else if constexpr (kSinks + kWindow > 0) {
      u16* const raw = raw_rows + Raw::first(args, work.batch, work.head) + channel;
      const int token = work.position + number;
      if (token < kSinks) store_global(raw + Raw::row(token), element);
      if constexpr (kWindow > 0) {
        if (number >= work.all - kWindow)
          store_global(raw + Raw::row(Raw::window_slot(token)), element);
      }
    }
  }

 private:
  using Range = ScaledRange<kFormat.decoder, kConfig.element, Share::kVectorSize>;

  // Divides the row by its scales and stores these. All lanes of the warp call it. Channels that
  // share a scale are either several of each lane's, or those of several lanes.
  VQ_DEVICE static void take_scales(float (&values)[kOfLane], int t) {
    constexpr int kTogether = kFormat.scale_channels;
    constexpr int kOfGroup = kTogether < 32 ? 1 : ceil_div(kTogether, 32);  // scales per lane
    constexpr int kLanes = kTogether < 32 ? kTogether : 32;
    VQ_UNROLL
    for (int first = 0; first < kOfLane; first += kOfGroup) {
      Range range;
      VQ_UNROLL
      for (int j = first; j < first + kOfGroup; ++j) {
        if (kChannels % 32 == 0 || lane() + 32 * j < kChannels) range.take(values[j]);
      }
      VQ_UNROLL
      for (int mask = kLanes / 2; mask > 0; mask /= 2) {
        range.join(shuffle_xor(range.low, mask), shuffle_xor(range.high, mask));
      }
      const u32 word = range.word();
      const auto scale = token_scale<kFormat.decoder, kConfig.element>(word);
      VQ_UNROLL
      for (int j = first; j < first + kOfGroup; ++j) {
        values[j] = scale.steps(values[j]);
      }
      const int channel = lane() + 32 * first;
      if (channel % kTogether == 0 && channel < kChannels) {
        store_shared(Share::scales() + t * kScaleWords + channel / kTogether, word);
      }
    }
  }

  // Address of the codes of row t.
  VQ_DEVICE static auto* stored(const Share& share, int t) {
    const AppendWork work = share.work_of(t);
    const int token = work.position + work.first + (kSequences == 1 ? t : t % kTokens);
    return Stored::at(share.to, work.batch, work.head, i64{token});
  }

  // For row t, without batched flushing: its sequence, and the number of its token if the call has
  // one.
  VQ_DEVICE static int batch_of(int t) {
    return kSequences == 1 ? block_z() : block_z() * kSequences + t / kTokens;
  }
  VQ_DEVICE int number_of(int t) const { return first_ + (kSequences == 1 ? t : t % kTokens); }
  VQ_DEVICE bool may_have(int t) const {
    return t < kSequences * kTokens && number_of(t) < kConfig.new_tokens &&
           (kSequences == 1 || batch_of(t) < args_.batch);
  }

  // The row of the call's token `number`.
  VQ_DEVICE const u16* fresh(int batch, int number) const {
    const i64 token = i64{batch} * kConfig.new_tokens + number;
    return elements_ + (token * kConfig.kv_heads + block_y()) * Raw::kDim;
  }
  // Lane l has channels l + 32 j of a row.
  VQ_DEVICE void fetch(int t) {
    const u16* const row = fresh(batch_of(t), number_of(t));
    VQ_UNROLL
    for (int j = 0; j < kOfLane; ++j) {
      const int channel = lane() + 32 * j;
      if (kChannels % 32 == 0 || channel < kChannels) {
        row_[j] = load_global(row + channel_of<Operand, Plan>(channel));
      }
    }
  }

  // Fetches row t of a batch: from the ring if an earlier call stored it there.
  VQ_DEVICE void fetch_visited(const AppendWork& work, int t) {
    const int number = Share::number_of(work, t);
    const u16* const ring = raw_ + Raw::first(args_, work.batch, work.head) +
                            Raw::row(Raw::window_slot(work.position + number));
    VQ_UNROLL
    for (int j = 0; j < kOfLane; ++j) {
      const int channel = lane() + 32 * j;
      if (kChannels % 32 != 0 && channel >= kChannels) continue;
      const int place = channel_of<Operand, Plan>(channel);
      row_[j] = number < 0 ? load_global_coherent(ring + place)
                           : load_global(fresh(work.batch, number) + place);
    }
  }
  // New token `number` to a raw slot. A warp.
  VQ_DEVICE void keep(const AppendWork& work, int number, int slot) const {
    u16* const to = raw_ + Raw::first(args_, work.batch, work.head) + Raw::row(slot);
    const u16* const from = fresh(work.batch, number);
    for (int channel = lane(); channel < kChannels; channel += 32) {
      const int place = channel_of<Operand, Plan>(channel);
      store_global(to + place, load_global(from + place));
    }
  }

  // A word of the share: code c is bits [c kBits, (c + 1) kBits), and bits after the last code are
  // 0.
  VQ_DEVICE static u32 packed(const Share& share, const u32* codes, int word) {
    const int count = share.vectors * kResiduals;
    u32 bits = 0;
    for (int c = word * 32 / kBits; c < count && c * kBits < (word + 1) * 32; ++c) {
      const int shift = c * kBits - word * 32;
      const u32 code = load_shared(codes + c);
      bits |= shift < 0 ? code >> -shift : code << shift;
    }
    return bits;
  }

  const KvAppendArgs& args_;
  const u16* elements_;
  u16* raw_;
  int first_;
  u16 row_[kOfLane];
  float smooth_[kOfLane];
};

}  // namespace vq
