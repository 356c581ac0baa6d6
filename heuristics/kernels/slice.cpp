// The common part of all dataflows, and the dispatch from a Plan to its dataflow's functions.
#include "heuristics/kernels/attention.h"
#include "heuristics/kernels/linear.h"

#include <bit>
#include <utility>

namespace vqgen {

void judge_placement(Judge& judge, const vq::FormatConfig& format, std::int64_t units,
                     const char* operand) {
  const Placement& placement = format.placement;
  const int entries = vq::entries(format);
  judge.require(!format.part.in_parts || vq::global_range(format).begin == 0,
                "{}: codebooks of parts are in global memory alone; set registers, replicated and "
                "shared to 0",
                operand);
  judge.require(vq::entry_pieces(format) == 1 || vq::global_range(format).begin == 0,
                "{}: entries of {} elements are in global memory alone; set registers, replicated "
                "and shared to 0",
                operand, format.vector_size);
  for (const auto& [name, boundary] :
       {std::pair{"registers", placement.registers}, std::pair{"replicated", placement.replicated},
        std::pair{"shared", placement.shared}}) {
    judge.require(boundary <= entries, "{}: boundary {} {} is beyond the {} entries of a codebook",
                  operand, name, boundary, entries);
  }
  judge.require(std::has_single_bit(static_cast<unsigned>(placement.copies)),
                "{}: copies {} is not a power of two", operand, placement.copies);
  constexpr std::int64_t kMostRegisters = 64;
  const std::int64_t held =
      units * format.num_codebooks * placement.registers * vq::held_bytes(format) / 4;
  judge.require(held <= kMostRegisters,
                "{}: {} entries of {} codebooks take {} registers per thread, more than {}; lower "
                "the boundary registers",
                operand, placement.registers, units * format.num_codebooks, held, kMostRegisters);
}

void judge_codebooks(Judge& judge, const VqFormat& format, std::int64_t units,
                     std::string_view operand, const GpuSpec& gpu) {
  const double bytes = 2.0 * static_cast<double>(units) * format.num_codebooks * format.entries() *
                       format.vector_size;
  judge.require(bytes <= static_cast<double>(gpu.memory_bytes),
                "{}: {} residual stages of {} entries for {} units take {:.3g} bytes, {} has {}; "
                "use fewer stages, a lower index_bits or a wider scope",
                operand, format.num_codebooks, format.entries(), units, bytes, gpu.name,
                gpu.memory_bytes);
}

void judge_width(Judge& judge, const VqFormat& format, const char* operand) {
  judge.require(
      !format.is_wide(),
      "{}: entries of {} elements are more than the 8 of this dataflow; use dataflow simt", operand,
      format.vector_size);
}

void judge_stages(Judge& judge, const VqFormat& format, const char* operand) {
  judge.require(format.num_codebooks <= 4,
                "{}: {} residual stages are more than the 4 of this dataflow; use dataflow simt",
                operand, format.num_codebooks);
}

void judge_narrow(Judge& judge, const VqFormat& format, const char* operand) {
  judge.require(!format.in_parts(), "{}: {} parts are not in this dataflow; use dataflow simt",
                operand, format.parts.size());
  judge_width(judge, format, operand);
  judge.require(format.entry_type == EntryType::element || format.vector_size >= 4,
                "{}: int8 entries of 2 elements are in dataflows simt and int8_mma alone; use "
                "dataflow simt",
                operand);
  judge_stages(judge, format, operand);
}

void judge_block(Judge& judge, int threads, std::int64_t shared_bytes, const GpuSpec& gpu) {
  judge.require(threads % 32 == 0 && threads <= 1024,
                "threads {} is not a multiple of 32 up to 1024", threads);
  judge.require(shared_bytes <= gpu.shared_bytes_per_block,
                "needs {} bytes of shared memory per block, {} has {}; put a codebook in global "
                "memory or shrink the tile",
                shared_bytes, gpu.name, gpu.shared_bytes_per_block);
}

void judge_combine(Judge& judge, Combine combine, int splits, std::int64_t counters) {
  if (combine == Combine::kernel) return;
  judge.require(
      combine != Combine::cluster,
      "combine cluster is of GEMM by dataflow wgmma, wgmma_large_m, int8_mma or int8_wgmma; use "
      "kernel or last_block");
  judge.require(splits > 1, "combine last_block has nothing to merge with splits 1; use kernel");
  judge.require(counters <= vq::kMostCounters,
                "combine last_block takes {} counters, a launch has {}; use kernel", counters,
                vq::kMostCounters);
}

void judge_pairs(Judge& judge, Combine combine, int block_outputs, int gate_rows) {
  judge.require(combine != Combine::cluster,
                "combine cluster takes blocks that hold the up row of each gate row, and their {} "
                "outputs are no whole pairs of runs of {} (gate_rows); use kernel or last_block",
                block_outputs, gate_rows);
  judge.require(combine != Combine::last_block || gate_rows % block_outputs == 0,
                "combine last_block takes blocks of gate rows alone or of whole pairs of runs, and "
                "runs of {} (gate_rows) are no multiple of the {} outputs of a block; use kernel",
                gate_rows, block_outputs);
}

Verdict check(const Plan& plan, const Problem& problem, const GpuSpec& gpu) {
  if (!is_plan_of(plan, problem)) {
    return {false, "the plan is for another op than " + op_name(problem)};
  }
  return visit_plan(plan, problem,
                    [&](const auto& each, const auto& op) { return check(each, op, gpu); });
}

PlanUse plan_use(const Plan& plan, const Problem& problem) {
  return visit_plan(plan, problem,
                    [](const auto& each, const auto& op) { return use_of(each, op); });
}

double stored_code_bytes(std::int64_t rows, std::int64_t columns, const VqFormat& format) {
  return 4.0 * static_cast<double>(rows) * static_cast<double>(format.row_words(columns));
}

void add_plans(Candidates& to, SpacePlacement allowed) {
  for_each_dataflow([&]<class P>(const P& plan) {
    if (const auto* op = op_of<P>(to.problem)) add_candidates(to, plan, *op, allowed);
  });
}

std::vector<Placement> whole_placements(const VqFormat& format, SpacePlacement allowed) {
  return whole_placements(format, allowed, format.held_bytes());
}
std::vector<Placement> whole_placements(const VqFormat& format, SpacePlacement allowed,
                                        int held_bytes) {
  if (allowed == SpacePlacement::global || format.is_wide() || format.in_parts()) {
    return {all_global()};
  }
  if (allowed == SpacePlacement::shared) return {all_shared(format.entries())};
  const int lanes = phase_lanes(held_bytes);
  return {all_global(), all_shared(format.entries()), all_replicated(format.entries(), lanes),
          all_replicated(format.entries(), lanes / 2)};
}

std::vector<Placement> single_placements(const VqFormat& format, SpacePlacement allowed) {
  std::vector<Placement> placements = whole_placements(format, allowed);
  std::erase_if(placements, [](const Placement& each) { return each.replicated > 0; });
  return placements;
}

std::int64_t fitting_chunk(std::int64_t columns, std::int64_t run, std::int64_t unit,
                           std::int64_t in_features) {
  for (std::int64_t chunk = columns / run * run; chunk > 0; chunk -= run) {
    if (unit >= in_features || chunk % unit == 0 || unit % chunk == 0) return chunk;
  }
  return 0;
}

}  // namespace vqgen
