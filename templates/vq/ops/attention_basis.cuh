// The kernels of attention_decode that change the basis of a cache (layout/basis.h). A block has
// one KV head, whose rotation it reads once, and a share of the sequences.
#pragma once

#include <vq/ops/attention_work.cuh>
#include <vq/ops/basis.cuh>

namespace vq {

// Calls each(batch, row) for query token `number` of each sequence of the block that has it: its
// row among those of query and out.
template <class Plan, class Each>
VQ_DEVICE void for_each_query_row(const AttentionDecodeArgs& args, int number, Each each) {
  const auto blocks = static_cast<int>(basis_blocks(Plan::config().kv_heads, args.batch));
  for (int batch = block_z(); batch < args.batch; batch += blocks) {
    QueryToken<Plan> token;
    int count = 1;
    token.row = batch;
    if constexpr (QueryToken<Plan>::kMost > 1) token.read(args, batch, number, 1, count);
    if (count > 0) each(batch, token.row);
  }
}

// Kernel attention_to_basis: queries, new keys and new values of one query token and KV head.
template <class Plan>
VQ_DEVICE void attention_to_basis(const AttentionDecodeArgs& args) {
  constexpr auto kConfig = Plan::config();
  constexpr int kKinds = basis_kinds(kConfig);
  constexpr int kQuery = kConfig.key_basis.none() ? 0 : 1;  // kinds before new keys and values
  constexpr int kGroup = group(kConfig);
  using Block = BasisBlock<Plan, kBasisHeads, false>;
  const int kind = block_x() % kKinds;
  const int head = block_y();
  const bool values = kind >= kQuery && basis_operand(kConfig, kind - kQuery) == 1;
  const Block block(args, values, head);
  after_last_launch();
  for_each_query_row<Plan>(args, block_x() / kKinds, [&](int, i64 row) {
    if (kind >= kQuery) {
      const u16* const from = values ? args.given_values : args.given_keys;
      if (from == nullptr) return;
      const i64 at = (row * kConfig.kv_heads + head) * kConfig.head_dim;
      u16* const to = const_cast<u16*>(values ? args.new_values : args.new_keys) + at;
      block.change(
          1, true, [&](int, int channel) { return load_global(from + at + channel); },
          [&](int) { return to; });
      return;
    }
    const i64 first = row * kConfig.query_heads + head * kGroup;
    for (int begin = 0; begin < kGroup; begin += kBasisHeads) {
      const int heads = kGroup - begin < kBasisHeads ? kGroup - begin : kBasisHeads;
      const auto at = [&](int h) { return (first + begin + h) * kConfig.head_dim; };
      block.change(
          heads, false,
          [&](int h, int channel) { return load_global(args.given_query + at(h) + channel); },
          [&](int h) { return const_cast<u16*>(args.query) + at(h); });
    }
  });
}

// Results of heads of a query token before they leave the basis: in `out` and `lse`, or, where this
// kernel merges splits, in shared memory, [kBasisHeads][head_dim] elements and [kBasisHeads]
// log-sum-exps.
template <class Plan>
class ResultsInBasis {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr bool kMerges = merges_out_of_basis(kConfig);

  // Heads [first, first + heads) of all query heads of row `row`.
  VQ_DEVICE ResultsInBasis(const AttentionDecodeArgs& args, i64 row, int first, int heads)
      : place_(row * kConfig.query_heads + first), first_(first), heads_(heads), args_(args) {}

  // Merges the splits of query token `number` of a sequence, a thread per channel. Heads without
  // tokens are zeros. All threads.
  VQ_DEVICE void merge(int batch, int number) {
    using Splits = AttentionSplits<Plan>;
    static_assert(basis_threads(kHeadDim) == kBasisHeads * kHeadDim, "a thread per channel");
    const SequenceSplits<Plan> splits(args_, batch);
    merged_ = splits.count > 1;
    if (!merged_) return;
    const int h = thread_index() / kHeadDim;
    const int channel = thread_index() % kHeadDim;
    if (h < heads_) {
      const auto whole =
          Splits::template merged<1>(Splits::partial(args_, number, first_ + h, splits.first),
                                     splits.count, channel, LoadGlobal());
      const u16 bits = Splits::element(whole, 0);
      store_shared(rows() + h * kHeadDim + channel, bits);
      if (channel == 0) {
        store_shared(log_sums() + h, Splits::log_sum_exp(whole.maximum, whole.sum));
      }
      if (whole.sum == 0.0f) store_global(row(h) + channel, bits);
    }
    sync_block();
  }

  VQ_DEVICE u16* row(int h) const { return args_.out + (place_ + h) * kHeadDim; }
  VQ_DEVICE u16 element(int h, int channel) const {
    if (kMerges && merged_) return load_shared(rows() + h * kHeadDim + channel);
    return load_global_coherent(row(h) + channel);
  }
  VQ_DEVICE float log_sum(int h) const {
    if (kMerges && merged_) return load_shared(log_sums() + h);
    return load_global_coherent(args_.lse + place_ + h);
  }
  // True if the head has tokens.
  VQ_DEVICE bool seen(int h) const { return h < heads_ && log_sum(h) != -infinity(); }
  // The head's query times the mean of the keys, by a whole warp.
  VQ_DEVICE float shift(int h) const {
    return dot<kHeadDim, kConfig.element>(
               args_.given_query + (place_ + h) * kHeadDim,
               args_.key_mean + i64{first_ / group(kConfig)} * kHeadDim) *
           args_.softmax_scale;
  }
  VQ_DEVICE void store_log_sum(int h, float value) const {
    store_global(args_.lse + place_ + h, value);
  }

 private:
  VQ_DEVICE static u16* rows() { return shared_part<u16>(0); }
  VQ_DEVICE static float* log_sums() { return shared_part<float>(kBasisHeads * kHeadDim * 2); }

  i64 place_;
  int first_, heads_;
  bool merged_ = false;
  const AttentionDecodeArgs& args_;
};

// Kernel attention_from_basis: out and lse of one query token and KV head; merges splits if the
// plan says so. The log-sum-exp moves by q . mean of the keys, which a warp of each head sums up.
template <class Plan>
VQ_DEVICE void attention_from_basis(const AttentionDecodeArgs& args) {
  using Results = ResultsInBasis<Plan>;
  using Block = BasisBlock<Plan, kBasisHeads, true>;
  constexpr int kGroup = group(Plan::config());
  const int head = block_y();
  const Block block(args, true, head);
  after_last_launch();
  for_each_query_row<Plan>(args, block_x(), [&](int batch, i64 row) {
    for (int begin = 0; begin < kGroup; begin += kBasisHeads) {
      const int heads = kGroup - begin < kBasisHeads ? kGroup - begin : kBasisHeads;
      Results results(args, row, head * kGroup + begin, heads);
      if constexpr (Results::kMerges) results.merge(batch, block_x());
      const bool has_head = warp() < heads;  // lane 0 has the log-sum-exp of head warp()
      const bool shifts = Results::kConfig.key_basis.mean && has_head;
      const float shift = shifts ? results.shift(warp()) : 0.0f;
      const float log_sum = has_head && lane() == 0 ? results.log_sum(warp()) : -infinity();
      if constexpr (!Results::kConfig.value_basis.none()) {
        const bool own_seen = results.seen(Block::own_row());  // else its row stays all zeros
        block.change(
            heads, false, [&](int h, int channel) { return results.element(h, channel); },
            [&](int h) { return own_seen ? results.row(h) : nullptr; });
      }
      if (has_head && lane() == 0) {
        results.store_log_sum(warp(), log_sum == -infinity() ? log_sum : log_sum + shift);
      }
    }
  });
}

}  // namespace vq
