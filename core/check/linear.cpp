#include "core/check/judge.h"
#include "core/kernel_config.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace vqgen {
namespace {

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
  judge.require(
      gpu.warpgroup_products,
      "{} ({}) has no products of warp groups, which dataflow warpgroups takes and Hopper "
      "alone has; use dataflow fragments",
      gpu.name, gpu.arch);
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

// Slices of entries: whole loads of codes, and a split for each chunk, stage and slice.
void judge_slices(Judge& judge, const LinearPlan& plan, const Linear& op,
                  const vq::LinearConfig& config, const GpuSpec& gpu) {
  const VqFormat& format = op.weights;
  judge.require(format.decoder == Decoder::table,
                "the E8P lattice has 256 entries, whose slices dataflow slices has no use for; use "
                "dataflow fragments");
  judge.require(plan.codebook == all_global(),
                "dataflow slices holds its slices of all entries itself; leave the codebook in "
                "global memory");
  judge.require(std::has_single_bit(static_cast<unsigned>(plan.code_words)),
                "code_words {} is not a power of two", plan.code_words);
  const int code_bits = format.residuals * format.index_bits;
  judge.require(code_bits <= 32 && std::has_single_bit(static_cast<unsigned>(code_bits)),
                "the codes of a sub-vector take {} bits, no half, quarter or whole of a word, as "
                "dataflow slices takes; use another dataflow",
                code_bits);
  if (!judge.ok()) return;
  const std::int64_t row =
      vq::row_words(op.shape.in_features, format.vector_size, format.residuals, format.index_bits);
  judge.require(row % plan.code_words == 0,
                "code_words {} does not divide the {} words of a row of codes", plan.code_words,
                row);
  const int columns = vq::slice_step_columns(config);
  judge.require(plan.chunk_columns % columns == 0,
                "chunk_columns {} is not a multiple of the {} columns of a step",
                plan.chunk_columns, columns);
  judge.require(vq::chunk_in_one_unit(config),
                "chunk_columns {} touch more than the {} columns of one codebook, as dataflow "
                "slices takes",
                plan.chunk_columns, config.unit_columns);
  const std::int64_t parts = vq::chunks(config) * format.residuals;
  const std::int64_t slices = plan.splits % parts == 0 ? plan.splits / parts : 0;
  const int held = vq::held_bytes(config.weights);
  judge.require(slices > 0 && held % slices == 0 && held / slices >= 2,
                "splits {} are not one for each of {} chunks and {} stages, times the slices of an "
                "entry of {} bytes, each of 2 bytes or more",
                plan.splits, vq::chunks(config), format.residuals, held);
  if (!judge.ok()) return;
  judge.require(config.unit_rows >= op.shape.out_features ||
                    config.unit_rows % vq::outputs_per_block(config) == 0,
                "the {} rows of a tile are not a multiple of the {} outputs of a block, which its "
                "slices serve",
                config.unit_rows, vq::outputs_per_block(config));
  judge.require(!config.weights.int8_entries ||
                    vq::slice_sum(config) <= std::numeric_limits<std::int32_t>::max(),
                "sums of integers over chunk_columns {} pass 32 bits; use more chunks or slices",
                plan.chunk_columns);
  // Sums, two sets of codes, and x of a step; addresses and what is looked up beside.
  constexpr int kBeside = 32;
  const int most = std::min(255, gpu.registers_per_sm / plan.threads) - kBeside;
  const int rows = vq::block_rows(config);
  const int words = vq::slice_group(config) * (rows + 2 * plan.code_words) +
                    rows * vq::slice_run(config) * vq::slice_x_words(config);
  judge.require(words <= most,
                "sums, codes and x take {} registers a thread, of {}; lower rows_per_block, "
                "code_words or outputs_per_warp",
                words, most);
}

}  // namespace

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
  } else if (plan.dataflow == LinearDataflow::slices) {
    judge_slices(judge, plan, op, config, gpu);
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
  judge.require(plan.dataflow == LinearDataflow::slices || plan.splits <= vq::chunks(config),
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

}  // namespace vqgen
