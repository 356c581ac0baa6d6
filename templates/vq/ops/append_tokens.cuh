// kv_append: encodes new tokens of a KV cache as the quantizer does (greedy residual quantization,
// VQKV sec. 3) and writes their packed rows, and their full-precision slots if the cache has any.
// Tokens that leave the full-precision window as a batch are encoded with the batch's last token;
// earlier calls' tokens come from the ring. A block encodes keys or values (append_rows.cuh).
// Dataflows differ in the stage, which has for each stage of the codes
//
//   prepare   what the search needs beside rows, once the last search is over
//   search    the nearest candidate to each sub-vector of the share
//   settle    its code; the row less what it stands for
#pragma once

#include <vq/ops/append_groups.cuh>
#include <vq/ops/append_rows.cuh>
#include <vq/ops/append_stage.cuh>
#include <vq/ops/append_wide_stage.cuh>
#include <vq/ops/basis.cuh>

namespace vq {

// Keys or values, or one of their parts.
template <class Plan, int kPart>
struct AppendedKeys {
  VQ_HD static constexpr FormatConfig config() { return key_format(Plan::config(), kPart); }
};
template <class Plan, int kPart>
struct AppendedValues {
  VQ_HD static constexpr FormatConfig config() { return value_format(Plan::config(), kPart); }
};

// The block's own tokens that fit between 0 and the capacity. No sum may overflow, whatever the
// position.
template <class Plan>
VQ_DEVICE AppendWork append_work(const KvAppendArgs& args, int token_block, int batch) {
  constexpr auto kConfig = Plan::config();
  AppendWork work;
  work.batch = batch;
  work.head = block_y();
  work.position = load_global(args.positions + work.batch);
  int all = kConfig.new_tokens;
  if (args.counts != nullptr) {
    const int count = load_global(args.counts + work.batch);
    all = count < all ? count : all;
  }
  if (work.position < 0) all = 0;
  if (all > 0 && args.capacity - work.position < all) all = args.capacity - work.position;
  work.all = all > 0 ? all : 0;
  work.first = token_block * kConfig.tokens_per_block;
  int left = work.all - work.first;
  if constexpr (kConfig.flush_block > 1) {
    const int before = work.position % kConfig.flush_block;
    work.first -= before;
    left = (before + work.all) / kConfig.flush_block * kConfig.flush_block - before - work.first;
  }
  work.count = left < kConfig.tokens_per_block ? left : kConfig.tokens_per_block;
  return work;
}

template <class Share>
using AppendLaneStage =
    Either<(entry_pieces(Share::kFormat) > 1), AppendWideStage<Share>, AppendStage<Share>>;

// In a block of several sequences lane l has the work of sequence l.
template <class Plan>
VQ_DEVICE AppendWork own_work(const KvAppendArgs& args, int token_block) {
  constexpr int kSequences = Plan::config().sequences_per_block;
  if constexpr (kSequences == 1) return append_work<Plan>(args, token_block, block_z());
  AppendWork none{block_z() * kSequences + lane(), block_y(), 0, 0, 0, 0};
  if (lane() >= kSequences || none.batch >= args.batch) return none;
  return append_work<Plan>(args, token_block, none.batch);
}

// All threads, with a barrier between any two steps.
template <template <class> class Stage, class Rows, class Share>
VQ_DEVICE void encode(Rows& rows, const Share& share, const AppendWork& own) {
  if constexpr (!Share::kConfig.norms) Stage<Share>(share, 0).prepare();
  rows.load(share, own);
  sync_block();
  for (int stage = 0; stage < Share::kResiduals; ++stage) {
    Stage<Share>(share, stage).search();
    sync_block();
    if (stage + 1 < Share::kResiduals) Stage<Share>(share, stage + 1).prepare();
    Stage<Share>(share, stage).settle();
    sync_block();
  }
  rows.write(share);
}

template <class Plan, template <class> class Stage, class Operand>
VQ_DEVICE void append_rows(const KvAppendArgs& args, const u16* elements, u16* raw,
                           const EncodedArgs& to, int token_block, int share) {
  if constexpr (Operand::config().scale_tokens > 0) {
    AppendGroups<Plan, Operand>(args, elements, raw)
        .append(to, append_work<Plan>(args, token_block, block_z()), share);
    return;
  }
  using Rows = AppendRows<Plan, Operand>;
  using Share = typename Rows::Share;
  if constexpr (Plan::config().norms) {
    const AppendWork none{0, block_y(), 0, 0, 0, 0};
    Stage<Share>(Share::of_block(to, none, share), 0).prepare();
    after_last_launch();
  }
  Rows rows(args, elements, raw, token_block * Plan::config().tokens_per_block);
  const AppendWork own = own_work<Plan>(args, token_block);
  if (Share::any(own)) encode<Stage>(rows, Share::of_block(to, Share::of_all(own), share), own);
  if constexpr (Rows::kBatch > 1) {
    if (share == 0) rows.keep_visited(own);
  }
}

// Share `share` of a row in kFormats formats, counted through those from kPart on.
template <class Plan, template <class> class Stage, template <class, int> class Operand,
          int kFormats, int kPart = 0>
VQ_DEVICE void append_part(const KvAppendArgs& args, const u16* elements, u16* raw,
                           const EncodedArgs& to, int token_block, int share) {
  using Part = Operand<Plan, kPart>;
  constexpr int kShares = shares(Plan::config(), Part::config());
  if (kPart + 1 == kFormats || share < kShares) {
    append_rows<Plan, Stage, Part>(args, elements, raw, part_tensor<Part>(to), token_block, share);
  } else if constexpr (kPart + 1 < kFormats) {
    append_part<Plan, Stage, Operand, kFormats, kPart + 1>(args, elements, raw, to, token_block,
                                                           share - kShares);
  }
}

// Kernel append_to_basis: new rows of one KV head, keys or values (layout/basis.h).
template <class Plan, BasisOf kOf = BasisOf::kAll>
VQ_DEVICE void append_to_basis(const KvAppendArgs& args) {
  constexpr auto kConfig = Plan::config();
  constexpr int kOperands = basis_operands(kConfig, kOf);
  constexpr int kDim = basis_dim(kConfig, kOf);
  const bool values = is_of_values(kConfig, kOf, block_x() % kOperands);
  const i64 first = i64{block_x() / kOperands} * kBasisTile;
  const i64 left = i64{args.batch} * kConfig.new_tokens - first;
  const int rows = left < kBasisTile ? static_cast<int>(left) : kBasisTile;
  const auto at = [&](int t) { return ((first + t) * kConfig.kv_heads + block_y()) * kDim; };
  BasisBlock<Plan, kDim, false> block(args, values, block_y());
  after_last_launch();
  const u16* const from = values ? args.given_values : args.given_keys;
  u16* const to = const_cast<u16*>(values ? args.new_values : args.new_keys);
  block.template change<true>(
      rows, [&](int t, int channel) { return load_global(from + at(t) + channel); },
      [&](int t) { return to + at(t); });
}
template <class Plan>
VQ_DEVICE void append_keys_to_basis(const KvAppendArgs& args) {
  append_to_basis<Plan, BasisOf::kKeys>(args);
}
template <class Plan>
VQ_DEVICE void append_values_to_basis(const KvAppendArgs& args) {
  append_to_basis<Plan, BasisOf::kValues>(args);
}

// `Stage` says how the nearest entries are found.
template <class Plan, template <class> class Stage>
VQ_DEVICE void append_tokens(const KvAppendArgs& args) {
  constexpr auto kConfig = Plan::config();
  constexpr int kKeyShares = key_shares(kConfig);
  constexpr int kBlocks = token_blocks(kConfig);
  const int tokens = block_x() % kBlocks;
  const int share = block_x() / kBlocks;
  if (share < kKeyShares) {
    append_part<Plan, Stage, AppendedKeys, key_formats(kConfig)>(args, args.new_keys, args.raw_keys,
                                                                 args.keys, tokens, share);
  } else {
    append_part<Plan, Stage, AppendedValues, value_formats(kConfig)>(
        args, args.new_values, args.raw_values, args.values, tokens, share - kKeyShares);
  }
}

}  // namespace vq
