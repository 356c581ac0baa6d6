#include "core/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "core/kernel_config.h"

namespace vqgen {
namespace {

// The first rule that does not hold decides.
class Judge {
 public:
  template <class... Args>
  void require(bool fine, fmt::format_string<Args...> reason, Args&&... args) {
    if (fine || !verdict_.ok) return;
    verdict_ = {false, fmt::format(reason, std::forward<Args>(args)...)};
  }
  const Verdict& verdict() const { return verdict_; }
  bool ok() const { return verdict_.ok; }

 private:
  Verdict verdict_;
};

void judge_format(Judge& judge, const VqFormat& format, const char* operand) {
  judge.require(format.entry_type == EntryType::element,
                "{}: int8 entries are not built yet; use entry_type element", operand);
  const int v = format.vector_size;
  judge.require(v == 2 || v == 4 || v == 8, "{}: vector_size {} is not built yet; use 2, 4 or 8",
                operand, v);
  judge.require(format.residuals <= 4, "{}: {} residual stages are not built yet; use 1 to 4",
                operand, format.residuals);
}

void judge_problem(Judge& judge, const AttentionDecode& op) {
  judge_format(judge, op.keys, "keys");
  judge_format(judge, op.values, "values");
  const int d = op.shape.head_dim;
  judge.require(d == 64 || d == 96 || d == 128 || d == 256,
                "head_dim {} is not built yet; use 64, 96, 128 or 256", d);
}

void judge_problem(Judge& judge, const Linear& op) { judge_format(judge, op.weights, "weights"); }

// The range that each field declares: plans come from code too, not only from JSON.
template <HasFields T>
void judge_ranges(Judge& judge, const T& plan) {
  for_each_field<T>([&]<class Member>(const Field<T, Member>& field) {
    if constexpr (std::is_same_v<Member, int>) {
      const double value = plan.*field.member;
      judge.require(value >= field.rule.min && value <= field.rule.max,
                    "{} {} is not within {:.0f}..{:.0f}", field.name, value, field.rule.min,
                    field.rule.max);
    } else if constexpr (HasFields<Member>) {
      judge_ranges(judge, plan.*field.member);
    }
  });
}

// `units` is how many units' codebooks a block keeps near at once.
void judge_placement(Judge& judge, const vq::FormatConfig& format, std::int64_t units,
                     const char* operand) {
  const vq::PlacementConfig& placement = format.placement;
  const int entries = vq::entries(format);
  for (const auto& [name, boundary] :
       {std::pair{"registers", placement.registers}, std::pair{"replicated", placement.replicated},
        std::pair{"shared", placement.shared}}) {
    judge.require(boundary <= entries, "{}: boundary {} {} is beyond the {} entries of a codebook",
                  operand, name, boundary, entries);
  }
  judge.require(std::has_single_bit(static_cast<unsigned>(placement.copies)),
                "{}: copies {} is not a power of two", operand, placement.copies);
  constexpr std::int64_t kMostRegisters = 64;
  const std::int64_t held = units * format.residuals * placement.registers * format.vector_size / 2;
  judge.require(held <= kMostRegisters,
                "{}: {} entries of {} codebooks take {} registers a thread, more than {}; lower "
                "the boundary registers",
                operand, placement.registers, units * format.residuals, held, kMostRegisters);
}

void judge_block(Judge& judge, int threads, std::int64_t shared_bytes, const GpuSpec& gpu) {
  judge.require(threads % 32 == 0 && threads <= 1024,
                "threads {} is not a multiple of 32 up to 1024", threads);
  judge.require(shared_bytes <= gpu.shared_bytes_per_block,
                "needs {} bytes of shared memory a block, {} has {}; put a codebook in global "
                "memory or shrink the tile",
                shared_bytes, gpu.name, gpu.shared_bytes_per_block);
}

// `counters` are those that the plan's last blocks need.
template <class OpPlan>
void judge_combine(Judge& judge, const OpPlan& plan, std::int64_t counters) {
  if (plan.combine == Combine::kernel) return;
  judge.require(plan.splits > 1,
                "combine last_block has nothing to merge with splits 1; use kernel");
  judge.require(counters <= vq::kMostCounters,
                "combine last_block takes {} counters, a workspace has {}; use kernel", counters,
                vq::kMostCounters);
}

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
    judge.require(op.shape.tokens <= std::numeric_limits<std::int32_t>::max() / row,
                  "{}: {} tokens of {} words are more than dataflow fragments counts; use lanes",
                  operand, op.shape.tokens, row);
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

void judge_channels(Judge& judge, const vq::AttentionDecodeConfig& config) {
  judge_shares(judge, config.keys, config.head_dim, config.key_channel_splits, "key");
  judge_shares(judge, config.values, config.head_dim, config.value_channel_splits, "value");
}

void judge_plan(Judge& judge, const AttentionDecodePlan& plan, const AttentionDecode& op,
                const GpuSpec& gpu) {
  const vq::AttentionDecodeConfig config = kernel_config(op, plan);
  if (plan.dataflow == AttentionDataflow::fragments) {
    judge_fragments(judge, plan, op, gpu);
  } else {
    if (plan.dataflow == AttentionDataflow::tables)
      judge_score_tables(judge, plan, op, config, gpu);
    if (plan.dataflow == AttentionDataflow::channels) judge_channels(judge, config);
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

// Runs of codes in whole words, and chunks of whole runs.
void judge_runs(Judge& judge, const LinearPlan& plan, const Linear& op,
                const vq::LinearConfig& config) {
  judge.require(std::has_single_bit(static_cast<unsigned>(plan.code_words)),
                "code_words {} is not a power of two", plan.code_words);
  if (!judge.ok()) return;
  const std::int64_t row = vq::row_words(op.shape.in_features, op.weights.vector_size,
                                         op.weights.residuals, op.weights.index_bits);
  judge.require(row % plan.code_words == 0,
                "code_words {} does not divide the {} words of a row of codes", plan.code_words,
                row);
  const int run = vq::run_words(config);
  constexpr int kMostRunWords = 24;
  judge.require(
      run <= kMostRunWords, "a run of codes of whole words is {} words, more than {}; use {}", run,
      kMostRunWords,
      config.fusion == vq::LinearFusion::kRegisters ? "another fusion or fewer code_words"
                                                    : "dataflow lanes or fewer code_words");
  judge.require(plan.chunk_columns % vq::run_columns(config) == 0,
                "chunk_columns {} is not a multiple of the {} columns of a run", plan.chunk_columns,
                vq::run_columns(config));
}

// Fragments of the tensor core: whole tiles of outputs and rows.
void judge_fragments(Judge& judge, const LinearPlan& plan, const Linear& op,
                     const vq::LinearConfig& config, const GpuSpec& gpu) {
  judge.require(op.dtype == DType::f16 || gpu.arch != "sm_75",
                "{} has no tensor-core product in bf16; use dataflow lanes or f16", gpu.name);
  judge.require(plan.fragment_rows == 4 || plan.fragment_rows == 8,
                "fragment_rows {} is neither 4 nor 8", plan.fragment_rows);
  judge.require(plan.outputs_per_warp % vq::fragment_outputs(config) == 0,
                "outputs_per_warp {} is not a multiple of {}, the outputs of a product",
                plan.outputs_per_warp, vq::fragment_outputs(config));
  judge.require(plan.rows_per_block % plan.fragment_rows == 0,
                "rows_per_block {} is not a multiple of fragment_rows {}", plan.rows_per_block,
                plan.fragment_rows);
  judge.require(std::has_single_bit(static_cast<unsigned>(plan.warps_along_columns)),
                "warps_along_columns {} is not a power of two", plan.warps_along_columns);
  judge.require(plan.threads / 32 % plan.warps_along_columns == 0,
                "warps_along_columns {} does not divide the {} warps of a block",
                plan.warps_along_columns, plan.threads / 32);
  if (!judge.ok()) return;
  judge_runs(judge, plan, op, config);
  const int accumulators = plan.outputs_per_warp / vq::fragment_outputs(config) *
                           (plan.rows_per_block / plan.fragment_rows) * 4;
  judge.require(accumulators <= 128, "{} accumulators a thread do not fit the registers",
                accumulators);
}

// Products of whole warp groups, of as many rows as an instruction has.
void judge_warpgroups(Judge& judge, const LinearPlan& plan, const Linear& op,
                      const vq::LinearConfig& config, const GpuSpec& gpu) {
  judge.require(gpu.warpgroup_products,
                "{} has no products of warp groups, which dataflow warpgroups takes; use dataflow "
                "fragments",
                gpu.name);
  constexpr int kGroupThreads = 32 * vq::kGroupWarps;
  judge.require(plan.threads % kGroupThreads == 0,
                "threads {} are no whole warp groups of {}, as dataflow warpgroups takes",
                plan.threads, kGroupThreads);
  judge.require(plan.outputs_per_warp % vq::fragment_outputs(config) == 0,
                "outputs_per_warp {} is not a multiple of {}, the outputs of a product",
                plan.outputs_per_warp, vq::fragment_outputs(config));
  judge.require(
      std::has_single_bit(static_cast<unsigned>(plan.rows_per_block)) && plan.rows_per_block >= 8,
      "rows_per_block {} is not a power of two from 8, as dataflow warpgroups takes",
      plan.rows_per_block);
  // Where only some warps look up just before a product, ptxas waits for each before the next.
  judge.require(plan.idle_warps == 0 || plan.steps_ahead == 1,
                "idle_warps {} take steps_ahead 1: the compiler serialises products else",
                plan.idle_warps);
  if (!judge.ok()) return;
  judge_runs(judge, plan, op, config);
  if (!judge.ok()) return;
  const int most = std::min(255, gpu.registers_per_sm / plan.threads);
  judge.require(vq::warpgroup_registers(config) <= most,
                "sums, operands, codes and x take {} registers a thread, of {}; lower threads, "
                "outputs_per_warp, rows_per_block, chunk_columns or code_words",
                vq::warpgroup_registers(config), most);
}

// Tables of inner products: some sub-vectors a lane, whose codes are a share of one word, or one
// whose codes may lie across two.
void judge_tables(Judge& judge, const LinearPlan& plan, const Linear& op,
                  const vq::LinearConfig& config) {
  judge.require(op.weights.decoder == Decoder::table,
                "a table of inner products holds no 65536 points of the E8P lattice; use dataflow "
                "fragments");
  judge.require(plan.chunk_columns % (32 * op.weights.vector_size) == 0,
                "chunk_columns {} are no sub-vectors of {} for each of 32 lanes, as dataflow "
                "tables takes; use a multiple of {}",
                plan.chunk_columns, op.weights.vector_size, 32 * op.weights.vector_size);
  judge.require(plan.outputs_per_warp <= 32 || plan.outputs_per_warp % 4 == 0,
                "outputs_per_warp {} is above 32 and no multiple of 4", plan.outputs_per_warp);
  const int code_bits = op.weights.residuals * op.weights.index_bits;
  judge.require(code_bits <= 32,
                "the codes of a sub-vector take {} bits, more than 32; use another dataflow",
                code_bits);
  if (!judge.ok()) return;
  const int sub_vectors = vq::lane_sub_vectors(config);
  judge.require(
      sub_vectors == 1 || (sub_vectors * code_bits <= 32 && 32 % (sub_vectors * code_bits) == 0),
      "the codes of {} sub-vectors take {} bits, no half, quarter or whole of a word; use "
      "chunk_columns {}",
      sub_vectors, sub_vectors * code_bits, 32 * op.weights.vector_size);
  judge.require(plan.splits == vq::chunks(config),
                "splits {} are not the {} chunks of columns, as dataflow tables takes", plan.splits,
                vq::chunks(config));
  judge.require(config.unit_rows >= op.shape.out_features ||
                    config.unit_rows % vq::outputs_per_block(config) == 0,
                "the {} rows of a tile are not a multiple of the {} outputs of a block, which a "
                "table serves",
                config.unit_rows, vq::outputs_per_block(config));
}

void judge_plan(Judge& judge, const LinearPlan& plan, const Linear& op, const GpuSpec& gpu) {
  const vq::LinearConfig config = kernel_config(op, plan);
  const std::int64_t chunk = plan.chunk_columns;
  judge.require(plan.rows_per_block % 4 == 0, "rows_per_block {} is not a multiple of 4",
                plan.rows_per_block);
  if (plan.dataflow == LinearDataflow::fragments) {
    judge_fragments(judge, plan, op, config, gpu);
  } else if (plan.dataflow == LinearDataflow::warpgroups) {
    judge_warpgroups(judge, plan, op, config, gpu);
  } else if (plan.dataflow == LinearDataflow::tables) {
    judge_tables(judge, plan, op, config);
  } else {
    constexpr int kMostSums = 64;
    judge.require(plan.outputs_per_warp * vq::block_rows(config) <= kMostSums,
                  "{} outputs of {} rows a warp do not fit the registers; lower outputs_per_warp "
                  "or rows_per_block",
                  plan.outputs_per_warp, vq::block_rows(config));
  }
  if (!judge.ok()) return;
  judge.require(chunk % op.weights.vector_size == 0,
                "chunk_columns {} is not a multiple of vector_size {}", chunk,
                op.weights.vector_size);
  judge.require(
      config.unit_columns >= op.shape.in_features || chunk % config.unit_columns == 0 ||
          config.unit_columns % chunk == 0,
      "chunk_columns {} neither divides nor is a multiple of the {} columns of a codebook", chunk,
      config.unit_columns);
  judge.require(plan.splits <= vq::chunks(config),
                "splits {} are more than the {} chunks of {} columns", plan.splits,
                vq::chunks(config), chunk);
  judge_placement(judge, config.weights, vq::units_per_chunk(config), "weights");
  const bool near = plan.codebook != all_global() || op.weights.stage_scales;
  judge.require(
      !near || config.unit_rows >= op.shape.out_features ||
          config.unit_rows % vq::outputs_per_block(config) == 0,
      "the {} rows of a tile are not a multiple of the {} outputs of a block, whose codebook "
      "and scales kept near serve one tile",
      config.unit_rows, vq::outputs_per_block(config));
  judge_block(judge, plan.threads, vq::shared_layout(config).total, gpu);
  judge_combine(judge, plan, vq::counters(config));
}

}  // namespace

Verdict check(const Problem& problem) {
  Judge judge;
  std::visit([&](const auto& op) { judge_problem(judge, op); }, problem);
  return judge.verdict();
}

Verdict check(const Plan& plan, const Problem& problem, const GpuSpec& gpu) {
  Judge judge;
  judge.require((plan.index() == 0) == (problem.index() == 0), "the plan is for another op than {}",
                op_name(problem));
  if (judge.ok()) std::visit([&](const auto& op) { judge_problem(judge, op); }, problem);
  std::visit([&](const auto& each) { judge_ranges(judge, each); }, plan);
  if (!judge.ok()) return judge.verdict();
  if (const auto* attention = std::get_if<AttentionDecode>(&problem)) {
    judge_plan(judge, std::get<AttentionDecodePlan>(plan), *attention, gpu);
  } else {
    judge_plan(judge, std::get<LinearPlan>(plan), *as_linear(problem), gpu);
  }
  return judge.verdict();
}

}  // namespace vqgen
