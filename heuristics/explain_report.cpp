#include <fmt/format.h>

#include <algorithm>

#include "heuristics/explain.h"
#include "heuristics/explain_cost.h"
#include "heuristics/explain_fusion.h"

namespace vqgen {
namespace {

std::string bytes_text(double bytes) {
  if (bytes < 10e3) return fmt::format("{:.0f} bytes", bytes);
  if (bytes < 1e6) return fmt::format("{:.1f} kB", bytes * 1e-3);
  if (bytes < 1e9) return fmt::format("{:.2f} MB", bytes * 1e-6);
  return fmt::format("{:.2f} GB", bytes * 1e-9);
}

const VqFormat& format_of(const Problem& problem, Operand operand) {
  if (const auto* op = std::get_if<AttentionDecode>(&problem)) {
    return operand == Operand::keys ? op->keys : op->values;
  }
  if (const auto* op = std::get_if<KvAppend>(&problem)) {
    return operand == Operand::keys ? op->keys : op->values;
  }
  return as_linear(problem)->weights;
}

std::string shape_line(const Problem& problem) {
  if (const auto* op = std::get_if<AttentionDecode>(&problem)) {
    const AttentionShape& s = op->shape;
    return fmt::format(
        "attention_decode in {}: {} sequences of up to {} tokens{}, {} query heads "
        "on {} KV heads of {} channels",
        enum_name(op->dtype), s.batch, s.tokens, s.shared_cache ? " in one cache" : "",
        s.query_heads, s.kv_heads, s.head_dim);
  }
  if (const auto* op = std::get_if<KvAppend>(&problem)) {
    const AppendShape& s = op->shape;
    return fmt::format(
        "kv_append in {}: up to {} new tokens of each of {} sequences, {} KV heads of {} channels",
        enum_name(op->dtype), s.new_tokens, s.batch, s.kv_heads, s.head_dim);
  }
  const Linear& op = *as_linear(problem);
  return fmt::format("{} in {}: {} rows of x by a matrix of {} outputs and {} inputs",
                     op_name(problem), enum_name(op.dtype), op.shape.rows, op.shape.out_features,
                     op.shape.in_features);
}

ReportSection problem_section(const Problem& problem, const std::vector<OperandTraffic>& traffic) {
  ReportSection section{"problem", {shape_line(problem)}};
  for (const OperandTraffic& each : traffic) {
    const VqFormat& format = format_of(problem, each.operand);
    section.lines.push_back(
        fmt::format("{}: {} of codes, {} bits a number instead of 16; a code of {} bits names one "
                    "of {} entries "
                    "of {} numbers, {} summed; {} of codebooks",
                    enum_name(each.operand), bytes_text(each.code_bytes), format.bits_per_element(),
                    format.index_bits, format.entries(), format.vector_size, format.residuals,
                    bytes_text(each.codebook_bytes)));
  }
  return section;
}

ReportSection budget_section(const Residency& residency, const GpuSpec& gpu, bool compiled) {
  const Occupancy& occupancy = residency.occupancy;
  ReportSection section{"what a block takes", {}};
  section.lines = {
      fmt::format("grid: {} blocks of {} threads for {} SMs, {} an SM", residency.blocks,
                  residency.threads, gpu.sms, residency.blocks_an_sm(gpu)),
      fmt::format("registers: {} a thread, {}", residency.registers,
                  compiled ? "as compiled" : "assumed until it is compiled (--compile)"),
      fmt::format("shared memory: {} of {} bytes that a block may have", residency.shared_bytes,
                  gpu.shared_bytes_per_block),
      fmt::format("resident at once: {} blocks an SM, {} of {} warps; limited by {}",
                  occupancy.blocks, occupancy.warps, gpu.max_threads_per_sm / 32,
                  enum_name(occupancy.limit)),
      fmt::format("slack: {} more registers a thread, {} more bytes a block would leave as many "
                  "blocks at work",
                  residency.slack.registers, residency.slack.shared_bytes)};
  return section;
}

ReportSection cache_section(const std::vector<OperandTraffic>& traffic,
                            std::span<const OperandPlacement> placements) {
  ReportSection section{"where entries stand, by number", {}};
  for (const OperandTraffic& each : traffic) {
    section.lines.push_back(fmt::format(
        "{}: of {:.3g} lookups {:.1f} % find registers, {:.1f} % shared memory with a copy a lane, "
        "{:.1f} % shared memory, {:.1f} % global memory ({})",
        enum_name(each.operand), each.lookups, 100 * each.in_registers, 100 * each.replicated,
        100 * each.shared, 100 * each.global,
        each.profiled ? "by the hotness profile" : "codes taken as uniform"));
    section.lines.push_back(fmt::format(
        "{}: lanes that look up at once take {:.2f} passes through shared memory, 1 being free of "
        "bank conflicts; {:.2f} with all entries there once",
        enum_name(each.operand), each.conflict_factor, each.conflict_factor_once));
  }
  for (const OperandPlacement& each : placements) {
    for (const std::string& reason : each.reasons) {
      section.lines.push_back(fmt::format("{}: {}", enum_name(each.operand), reason));
    }
  }
  if (placements.empty()) {
    section.lines.emplace_back(
        "no hotness profile: whole codebooks near where the block holds them (--hotness)");
  }
  return section;
}

ReportSection traffic_section(const std::vector<OperandTraffic>& traffic, const GpuSpec& gpu) {
  ReportSection section{"what a call moves", {}};
  double memory = 0;
  for (const OperandTraffic& each : traffic) {
    memory += each.code_bytes + each.codebook_bytes;
    section.lines.push_back(fmt::format(
        "{}: device memory {}; L2 {} of codes, {} to fill near levels, {} of global lookups before "
        "L1; shared memory {} of lookups",
        enum_name(each.operand), bytes_text(each.code_bytes + each.codebook_bytes),
        bytes_text(each.code_l2_bytes), bytes_text(each.fill_l2_bytes),
        bytes_text(each.lookup_l2_bytes), bytes_text(each.lookup_bytes)));
  }
  section.lines.push_back(
      fmt::format("at {:.0f} GB/s device memory needs {:.1f} us for codes and "
                  "codebooks: no plan is faster unless L2 holds them",
                  gpu.memory_gbps, memory * 1e-3 / gpu.memory_gbps));
  return section;
}

}  // namespace

std::vector<ReportSection> report(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                                  const ReportInput& input) {
  const std::vector<OperandTraffic> traffic = expected_traffic(plan, problem, input.profiles);
  const Residency residency =
      expected_residency(plan, problem, gpu, input.registers.value_or(kAssumedRegisters));
  return {
      problem_section(problem, traffic),
      budget_section(residency, gpu, input.registers.has_value()),
      {"dataflow", explain(plan, problem, gpu)},
      cache_section(traffic, input.placements),
      traffic_section(traffic, gpu),
      {"from lookup to arithmetic", fusion_lines(plan, problem)},
      {"expected time", cost_lines(plan, problem, gpu, input.profiles)},
      {"the best plan of each other kind", other_plan_lines(plan, problem, gpu, input.profiles)}};
}

}  // namespace vqgen
