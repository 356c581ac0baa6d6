#include "core/check/judge.h"
#include "core/kernel_config.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace vqgen {
namespace {

// Each thread decodes values of its own and accumulates them for all heads.
void judge_lanes(Judge& judge, const AttentionDecodePlan& plan, const AttentionDecode& op,
                 const vq::AttentionDecodeConfig& config) {
  const int sub_vectors = vq::value_channels(config) / op.values.vector_size;
  judge.require(plan.threads >= sub_vectors,
                "threads {} are fewer than the {} sub-vectors of a value", plan.threads,
                sub_vectors);
  judge.require(std::has_single_bit(static_cast<unsigned>(plan.lanes_per_token)) &&
                    plan.lanes_per_token <= 32,
                "lanes_per_token {} is not a power of two up to 32", plan.lanes_per_token);
  judge.require(plan.heads_per_block * op.values.vector_size <= 128,
                "heads_per_block {} times vector_size {} accumulators do not fit the registers",
                plan.heads_per_block, op.values.vector_size);
}

// Lanes share a row of keys in four parts and one of values in eight, of whole sub-vectors.
void judge_fragments(Judge& judge, const AttentionDecodePlan& plan, const AttentionDecode& op,
                     const GpuSpec& gpu) {
  judge.require(op.dtype == DType::f16 || gpu.arch != "sm_75",
                "{} has no tensor-core product in bf16; use dataflow lanes or f16", gpu.name);
  judge.require(plan.tile_tokens == 8 || plan.tile_tokens == 16 || plan.tile_tokens == 32,
                "tile_tokens {} is none of 8, 16 and 32, as dataflow fragments takes",
                plan.tile_tokens);
  constexpr int kMostHeads = 8;
  judge.require(
      plan.heads_per_block <= kMostHeads,
      "heads_per_block {} is more than {}, as many as dataflow fragments has registers for",
      plan.heads_per_block, kMostHeads);
  judge.require(std::has_single_bit(static_cast<unsigned>(plan.code_words)),
                "code_words {} is not a power of two", plan.code_words);
  const auto shares = [&](const VqFormat& format, int lanes, const char* operand) {
    const int channels = op.shape.head_dim / lanes;
    judge.require(
        channels % format.vector_size == 0,
        "{}: vector_size {} does not divide the {} channels of a lane; use dataflow lanes", operand,
        format.vector_size, channels);
    const std::int64_t row =
        vq::row_words(op.shape.head_dim, format.vector_size, format.residuals, format.index_bits);
    judge.require(row % plan.code_words == 0,
                  "{}: code_words {} does not divide the {} words of a row of codes", operand,
                  plan.code_words, row);
    // Rows that are counted to end with a group of either.
    const CodeLayout counted{std::max(op.keys.layout.rows, op.values.layout.rows),
                             format.layout.words};
    judge.require(
        stored_words(counted, op.shape.tokens, row) <= std::numeric_limits<std::int32_t>::max(),
        "{}: {} tokens of {} words are more than dataflow fragments counts; use lanes", operand,
        op.shape.tokens, row);
  };
  shares(op.keys, 4, "keys");
  shares(op.values, 8, "values");
}

// Score tables: in shared memory whole, and of entries that each block reads but once.
void judge_score_tables(Judge& judge, const AttentionDecodePlan& plan, const AttentionDecode& op,
                        const vq::AttentionDecodeConfig& config, const GpuSpec& gpu) {
  judge.require(op.keys.decoder == Decoder::table,
                "keys: a score table holds no 65536 points of the E8P lattice; use dataflow lanes");
  judge.require(plan.table_bits == 16 || plan.table_bits == 32,
                "table_bits {} is neither 16 nor 32", plan.table_bits);
  judge.require(plan.key_codebook == all_global(),
                "key_codebook: dataflow tables reads each key entry once, from global memory; set "
                "all its boundaries to 0");
  constexpr int kMostHeads = 16;  // whose sums a lane keeps in registers
  judge.require(plan.heads_per_block <= kMostHeads,
                "heads_per_block {} are more than the {} whose scores dataflow tables sums at once",
                plan.heads_per_block, kMostHeads);
  if (!judge.ok()) return;
  judge.require(vq::table_bytes(config) <= gpu.shared_bytes_per_block,
                "score tables of {} entries and {} heads take {} bytes, {} has {} of shared memory "
                "a block; use another dataflow, fewer heads_per_block or table_bits 16",
                std::int64_t{op.keys.residuals} * op.keys.entries(), plan.heads_per_block,
                vq::table_bytes(config), gpu.name, gpu.shared_bytes_per_block);
}

// One operand in dataflow channels: a share is whole sub-vectors, and lies within a codebook's
// channels or holds whole ones.
void judge_shares(Judge& judge, const vq::FormatConfig& format, int head_dim, int splits,
                  const char* operand) {
  judge.require(head_dim % splits == 0 && head_dim / splits % format.vector_size == 0,
                "{}_channel_splits {} does not split the {} sub-vectors of a head evenly", operand,
                splits, head_dim / format.vector_size);
  if (!judge.ok()) return;
  const int channels = head_dim / splits;
  judge.require(channels % format.unit_elements == 0 || format.unit_elements % channels == 0,
                "{}_channel_splits {}: {} channels neither divide nor are a multiple of the {} of "
                "a codebook",
                operand, splits, channels, format.unit_elements);
}

void judge_channels(Judge& judge, const AttentionDecode& op,
                    const vq::AttentionDecodeConfig& config, const GpuSpec& gpu) {
  judge_shares(judge, config.keys, config.head_dim, config.key_channel_splits, "key");
  judge_shares(judge, config.values, config.head_dim, config.value_channel_splits, "value");
  // Of sequences that share a cache they may pass 64 bits.
  const double scores = 4.0 * op.shape.batch * op.shape.query_heads * config.key_channel_splits *
                        static_cast<double>(op.shape.tokens);
  judge.require(scores <= static_cast<double>(gpu.memory_bytes),
                "partial scores of {} tokens, {} query heads and {} sequences take {:.3g} bytes, "
                "{} has {}; use another dataflow",
                op.shape.tokens, op.shape.query_heads, op.shape.batch, scores, gpu.name,
                gpu.memory_bytes);
}

}  // namespace

void judge_plan(Judge& judge, const AttentionDecodePlan& plan, const AttentionDecode& op,
                const GpuSpec& gpu) {
  const vq::AttentionDecodeConfig config = kernel_config(op, plan);
  if (plan.dataflow == AttentionDataflow::fragments) {
    judge_fragments(judge, plan, op, gpu);
  } else {
    if (plan.dataflow == AttentionDataflow::tables)
      judge_score_tables(judge, plan, op, config, gpu);
    if (plan.dataflow == AttentionDataflow::channels) judge_channels(judge, op, config, gpu);
    if (!judge.ok()) return;
    judge_lanes(judge, plan, op, config);
  }
  judge.require(plan.heads_per_block <= op.group(),
                "heads_per_block {} is more than the {} query heads of a KV head",
                plan.heads_per_block, op.group());
  if (!judge.ok()) return;
  const int blocks =
      vq::head_blocks(config) * std::max(config.key_channel_splits, config.value_channel_splits);
  judge.require(std::int64_t{op.shape.kv_heads} * blocks <= 65535,
                "{} KV heads of {} blocks exceed the grid's second axis", op.shape.kv_heads,
                blocks);
  judge_placement(judge, config.keys, vq::units_of(config.keys, vq::key_channels(config)), "keys");
  judge_placement(judge, config.values, vq::units_of(config.values, vq::value_channels(config)),
                  "values");
  judge_block(judge, plan.threads, vq::block_shared_bytes(config), gpu);
  judge.require(plan.combine == Combine::kernel || plan.dataflow != AttentionDataflow::channels,
                "combine last_block is not built for dataflow channels, whose blocks share the "
                "channels of a result too; use kernel");
  judge_combine(judge, plan, vq::counters(config, op.shape.batch));
}

}  // namespace vqgen
