// The rows of one tensor whose tokens share scales, as a block of kv_append writes them: a group at
// a time, once its last token is among the new ones. Its tokens before the call's first come from
// the ring of newest tokens, so that this block alone puts new ones there, of its share's channels,
// and only once the old ones have been read.
#pragma once

#include <vq/ops/append_rows.cuh>
#include <vq/ops/append_stage.cuh>

namespace vq {

template <class Plan, class Operand>
class AppendGroups {
 public:
  using Rows = AppendRows<Plan, Operand>;
  using Share = typename Rows::Share;
  using Stage = AppendStage<Share>;
  static constexpr auto kConfig = Share::kConfig;
  static constexpr FormatConfig kFormat = Share::kFormat;
  static constexpr int kChannels = Share::kChannels;
  static constexpr int kThreads = Share::kThreads;
  static constexpr int kTokens = kFormat.scale_tokens;
  static_assert(kConfig.max_recent_tokens >= kTokens && kFormat.num_codebooks == 1, "");

  VQ_DEVICE AppendGroups(const KvAppendArgs& args, const u16* elements, u16* raw)
      : args_(args), elements_(elements), raw_(raw) {}

  // `work` is of tokens_per_block tokens; the sequence's blocks share its groups. All threads.
  VQ_DEVICE void append(const EncodedArgs& to, const AppendWork& work, int share) const {
    if (work.all == 0) return;
    const int end = work.position + work.all;
    const int block = work.first / kConfig.tokens_per_block;
    int first = work.position - work.position % kTokens + block * kTokens;
    Share group = Share::of_block(to, {work.batch, work.head, first, 0, kTokens, kTokens}, share);
    const bool full = first + kTokens <= end;
    if (full) load(group, work.position);
    if (block == 0) {
      sync_block();
      keep_raw(group, work);
    }
    while (first + kTokens <= end) {
      if (first != group.work.position) {
        group.work.position = first;
        load(group, work.position);
      }
      sync_block();
      take_scales(group);
      sync_block();
      Stage(group, 0).search();
      sync_block();
      Stage(group, 0).settle();
      sync_block();
      Rows::write(group);
      first += token_blocks(kConfig) * kTokens;
    }
  }

 private:
  using Range = ScaledRange<kFormat.decoder, kConfig.element, Share::kVectorSize>;

  // Channels of a share, whose first is `first`.
  VQ_DEVICE static int first_channel(const Share& share) {
    return share.begin * Share::kVectorSize;
  }
  VQ_DEVICE static int channels(const Share& share) { return share.vectors * Share::kVectorSize; }

  // The element of a new token.
  VQ_DEVICE const u16* fresh(const AppendWork& work, int number) const {
    const i64 token = i64{work.batch} * kConfig.new_tokens + number;
    return elements_ + (token * kConfig.kv_heads + work.head) * kChannels;
  }

  // The group's rows to shared memory; new tokens are those from `position` on.
  VQ_DEVICE void load(const Share& share, int position) const {
    using Raw = typename Rows::Raw;
    const u16* const ring = raw_ + Raw::first(args_, share.work.batch, share.work.head);
    for (int i = thread_index(); i < kTokens * channels(share); i += kThreads) {
      const int t = i / channels(share);
      const int channel = first_channel(share) + i % channels(share);
      const int token = share.work.position + t;
      const u16 element =
          token < position
              ? load_global_coherent(ring + Raw::row(Raw::window_slot(token)) + channel)
              : load_global(fresh(share.work, token - position) + channel);
      store_shared(Share::row(t) + channel, to_float<kConfig.element>(element));
    }
  }

  // New tokens to their raw slots: sinks, and then those that the ring has room for.
  VQ_DEVICE void keep_raw(const Share& share, const AppendWork& work) const {
    const int wanted = most(0, kConfig.max_sinks - work.position);
    const int sinks = wanted < work.all ? wanted : work.all;
    const int ring = most(sinks, work.all - kConfig.max_recent_tokens);
    for (int i = thread_index(); i < (sinks + work.all - ring) * channels(share); i += kThreads) {
      const int row = i / channels(share);
      const int number = row < sinks ? row : ring + row - sinks;
      const int channel = first_channel(share) + i % channels(share);
      Rows::keep_raw(args_, raw_, work, number, channel,
                     load_global(fresh(work, number) + channel));
    }
  }

  // Scales to the cache, and the rows in units of them. A thread a channel.
  VQ_DEVICE static void take_scales(const Share& share) {
    using Stored = typename Rows::Stored;
    constexpr int kOfRow = Rows::kScaleWords;
    for (int i = thread_index(); i < channels(share); i += kThreads) {
      const int channel = first_channel(share) + i;
      float* const column = Share::rows() + channel;
      Range range;
      for (int t = 0; t < kTokens; ++t) range.take(load_shared(column + t * Share::kRowFloats));
      const u32 word = range.word();
      const auto scale = token_scale<kFormat.decoder, kConfig.element>(word);
      for (int t = 0; t < kTokens; ++t) {
        store_shared(column + t * Share::kRowFloats,
                     scale.steps(load_shared(column + t * Share::kRowFloats)));
      }
      const i64 token = share.work.position + channel / kOfRow;
      store_global(Stored::at(share.to, share.work.batch, share.work.head, token) +
                       Stored::word(Rows::kCodeWords + channel % kOfRow),
                   word);
    }
  }

  const KvAppendArgs& args_;
  const u16* elements_;
  u16* raw_;
};

}  // namespace vq
