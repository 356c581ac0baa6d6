#include "heuristics/explain.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/format/stored.h"
#include "core/profiles.h"
#include "heuristics/choose.h"
#include "heuristics/kernels/slice.h"
#include "heuristics/shape_line.h"

namespace vqgen {
namespace {

// "key codebooks: entries 8 in registers, 248 in shared; ..." and their bytes per block.
std::string codebook_line(const std::string& operand, const vq::FormatConfig& format,
                          std::int64_t units) {
  if (vq::is_scalar(format.decoder)) {
    return fmt::format("{} scales beside codes: {} bytes of shared memory per block", operand,
                       units * (vq::replicated_bytes(format) + vq::shared_bytes(format)));
  }
  std::string levels;
  const auto add = [&](vq::EntryRange range, const std::string& where) {
    if (range.begin == range.end) return;
    levels += fmt::format("{}{} {}", levels.empty() ? "" : ", ", range.end - range.begin, where);
  };
  add(vq::register_range(format), "in registers");
  add(vq::replicated_range(format), fmt::format("in shared x{}", format.placement.copies));
  add(vq::shared_range(format), "in shared");
  add(vq::global_range(format), "in global");
  return fmt::format(
      "{} codebooks: entries {}; {} bytes of shared memory per block for {} of codebooks", operand,
      levels, units * (vq::replicated_bytes(format) + vq::shared_bytes(format)),
      units * vq::unit_codebook_elements(format) * 2);
}

// A line for each format of the keys and the values, of which a block serves so many channels.
template <class Config>
void add_codebook_lines(std::vector<std::string>& lines, const Config& config, int key_channels,
                        int value_channels) {
  int part = 0;
  vq::for_each_format(config, [&](const vq::FormatConfig& format) {
    std::string operand = format.part.of_values ? "value" : "key";
    part = format.part.first_channel == 0 ? 0 : part + 1;
    if (format.part.in_parts) operand += fmt::format(" part {}", part);
    const int channels = format.part.of_values ? value_channels : key_channels;
    lines.push_back(codebook_line(operand, format, vq::block_units(format, channels)));
  });
}

std::string heads_line(int heads, const AttentionDecode& op) {
  if (heads > op.group()) {
    return fmt::format("heads_per_block {}: a code is decoded once for {} query tokens of {} heads",
                       heads, heads / op.group(), op.group());
  }
  return fmt::format(
      "heads_per_block {}: a code is decoded once for {} of the group's {} query heads", heads,
      heads, op.group());
}

// Lines about any dataflow of an op, before and after those of one dataflow.
template <class P>
std::vector<std::string> lines(const P& plan, const AttentionDecode& op, const GpuSpec& gpu) {
  const auto config = configured(plan, op);
  const bool shared = vq::balanced(config);
  const std::int64_t blocks =
      std::int64_t{op.shape.kv_heads} * vq::head_blocks(config) * (shared ? 1 : op.shape.batch);
  std::vector<std::string> lines{
      fmt::format("splits {}{}: {} ({}{}) blocks per split for {} SMs, tiles of {} tokens",
                  plan.splits, shared ? " of all sequences together" : "", blocks,
                  op.shape.query_tokens > 1 ? "head, query token" : "head",
                  shared ? "" : ", sequence", gpu.sms, vq::token_tile(config)),
      heads_line(plan.heads_per_block, op)};
  add_codebook_lines(lines, config, vq::key_channels(config), vq::value_channels(config));
  return lines;
}

// A block has all heads of a KV head, and no codebook is in shared memory.
std::vector<std::string> lines(const AttentionHistogram& plan, const AttentionDecode& op,
                               const GpuSpec& gpu) {
  const auto config = configured(plan, op);
  return {
      fmt::format("scores: {} blocks of {} tokens for {} SMs, {} tables in flight",
                  vq::score_blocks(config, op.shape.tokens) * op.shape.kv_heads * op.shape.batch,
                  vq::tokens_per_block(config), gpu.sms, plan.tables_in_flight),
      fmt::format("splits {}: blocks that share the tokens of a sequence's bins", plan.splits),
      fmt::format("entry_splits {}: blocks that share the entries of a value column",
                  plan.entry_splits)};
}

template <class P>
std::vector<std::string> lines(const P& plan, const KvDequantize& op, const GpuSpec&) {
  const auto config = configured(plan, op);
  std::vector<std::string> lines;
  add_codebook_lines(lines, config, op.shape.head_dim, op.shape.value_dim());
  return lines;
}

template <class P>
std::vector<std::string> lines(const P& plan, const Linear& op, const GpuSpec&) {
  const auto config = configured(plan, op);
  return {fmt::format("dataflow {}: {} outputs per block, split-K {}", dataflow_name(plan),
                      vq::outputs_per_block(config), vq::splits(config)),
          fmt::format("chunks of {} columns: {} rows of x staged, {} codebook sets per chunk",
                      vq::chunk_columns(config), op.shape.rows, vq::units_per_chunk(config)),
          codebook_line("weight", config.weights, vq::units_per_chunk(config))};
}

template <class P>
std::vector<std::string> lines(const P& plan, const WeightDequantize& op, const GpuSpec&) {
  const auto config = configured(plan, op);
  return {codebook_line("weight", config.weights, vq::units_per_chunk(config))};
}

std::string bytes_text(double bytes) {
  if (bytes < 10e3) return fmt::format("{:.0f} bytes", bytes);
  if (bytes < 1e6) return fmt::format("{:.1f} kB", bytes * 1e-3);
  if (bytes < 1e9) return fmt::format("{:.2f} MB", bytes * 1e-6);
  return fmt::format("{:.2f} GB", bytes * 1e-9);
}

// Calls visit(operand, format, numbers of a row) for each operand.
template <class Visit>
void for_each_row(const Problem& problem, Visit&& visit) {
  std::visit(
      [&](const auto& op) {
        for_each_operand(op, [&](Operand operand, const VqFormat& format) {
          if constexpr (requires { op.weights; }) visit(operand, format, op.shape.in_features);
          if constexpr (requires { op.keys; }) visit(operand, format, row_dim(op.shape, operand));
        });
      },
      problem);
}

ReportSection problem_section(const Problem& problem, const std::vector<OperandTraffic>& traffic) {
  ReportSection section{"problem", {shape_line(problem)}};
  auto each = traffic.begin();
  for_each_row(problem, [&](Operand operand, const VqFormat& format, std::int64_t columns) {
    section.lines.push_back(fmt::format(
        "{}: {} of codes, {:.4g} bits per number instead of 16; {}; {} of {}", enum_name(operand),
        bytes_text(each->code_bytes), stored_bits(format, columns), codes_text(format),
        bytes_text(each->codebook_bytes), format.is_scalar() ? "scales" : "codebooks"));
    ++each;
  });
  return section;
}

ReportSection budget_section(const Residency& residency, const GpuSpec& gpu, bool compiled) {
  const Occupancy& occupancy = residency.occupancy;
  ReportSection section{"what a block takes", {}};
  section.lines = {
      fmt::format("grid: {} blocks of {} threads for {} SMs, {} per SM", residency.blocks,
                  residency.threads, gpu.sms, residency.blocks_an_sm(gpu)),
      fmt::format("registers: {} per thread, {}", residency.registers,
                  compiled ? "as compiled" : "assumed until it is compiled (--compile)"),
      fmt::format("shared memory: {} of {} bytes that a block may have", residency.shared_bytes,
                  gpu.shared_bytes_per_block),
      fmt::format("resident at once: {} blocks per SM, {} of {} warps; limited by {}",
                  occupancy.blocks, occupancy.warps, gpu.max_threads_per_sm / 32,
                  enum_name(occupancy.limit)),
      fmt::format("slack: {} more registers per thread and {} more bytes per block leave as many "
                  "blocks resident",
                  residency.slack.registers, residency.slack.shared_bytes)};
  return section;
}

bool is_scalar(const Problem& problem, Operand operand) {
  bool scalar = false;
  const auto ask = [&](Operand each, const VqFormat& format) {
    if (each == operand) scalar = format.is_scalar();
  };
  std::visit([&](const auto& op) { for_each_operand(op, ask); }, problem);
  return scalar;
}

ReportSection cache_section(const Problem& problem, const std::vector<OperandTraffic>& traffic,
                            std::span<const OperandPlacement> placements) {
  ReportSection section{"where entries are, by number", {}};
  if (traffic.empty()) {
    section.lines.emplace_back("the op has no codebooks");
    return section;
  }
  for (const OperandTraffic& each : traffic) {
    if (is_scalar(problem, each.operand)) {
      section.lines.push_back(
          fmt::format("{}: codes are the numbers, nothing is looked up but their scales",
                      enum_name(each.operand)));
      continue;
    }
    section.lines.push_back(
        fmt::format("{}: of {:.3g} lookups {:.1f} % find registers, {:.1f} % shared memory with "
                    "one copy per lane, {:.1f} % shared memory, {:.1f} % global memory ({})",
                    enum_name(each.operand), each.lookups, 100 * each.in_registers,
                    100 * each.replicated, 100 * each.shared, 100 * each.global,
                    each.profiled ? "by the access counts" : "codes taken as uniform"));
    section.lines.push_back(
        fmt::format("{}: a lookup of a warp takes {:.2f} shared-memory wavefronts, 1 without bank "
                    "conflicts; {:.2f} with one copy of all entries",
                    enum_name(each.operand), each.conflict_factor, each.conflict_factor_once));
  }
  for (const OperandPlacement& each : placements) {
    for (const std::string& reason : each.reasons) {
      section.lines.push_back(fmt::format("{}: {}", enum_name(each.operand), reason));
    }
  }
  const bool looks_up = std::any_of(traffic.begin(), traffic.end(), [&](const auto& each) {
    return !is_scalar(problem, each.operand);
  });
  if (placements.empty() && looks_up) {
    section.lines.emplace_back(
        "no access counts: whole codebooks are in shared memory if the block has room "
        "(--access-counts)");
  }
  return section;
}

// Bytes that a call moves besides codes and codebooks, where they matter: dense keys and values
// written, or results merged.
struct Plain {
  double bytes = 0;
  const char* line = "";  // with a place for the bytes
  const char* all = "codes and codebooks";
};

Plain plain_of(const Problem& problem) {
  if (const auto* decode = std::get_if<KvDequantize>(&problem)) {
    return {dense_bytes(*decode), "device memory: {} of dense rows written",
            "codes, codebooks and dense rows"};
  }
  if (const auto* rows = std::get_if<WeightDequantize>(&problem)) {
    return {2 * rows->elements(), "device memory: {} of dense rows written",
            "codes, codebooks and dense rows"};
  }
  if (const auto* merge = std::get_if<AttentionMerge>(&problem)) {
    return {merge->bytes(), "device memory: {} of results read and written", "results"};
  }
  if (const ScalarMatrix* matrix = as_scalar(problem)) {
    return {matrix->bytes(), "device memory: {} of the matrix and its codes", "them"};
  }
  return {};
}

ReportSection traffic_section(const Problem& problem, const std::vector<OperandTraffic>& traffic,
                              const GpuSpec& gpu) {
  ReportSection section{"what a call moves", {}};
  double memory = 0;
  for (const OperandTraffic& each : traffic) {
    memory += each.code_bytes + each.codebook_bytes;
    section.lines.push_back(
        fmt::format("{}: device memory {}; L2 {} of codes, {} to fill shared memory and registers, "
                    "{} of global lookups before L1; shared memory {} of lookups",
                    enum_name(each.operand), bytes_text(each.code_bytes + each.codebook_bytes),
                    bytes_text(each.code_l2_bytes), bytes_text(each.fill_l2_bytes),
                    bytes_text(each.lookup_l2_bytes), bytes_text(each.lookup_bytes)));
  }
  const Plain plain = plain_of(problem);
  if (plain.bytes > 0) {
    memory += plain.bytes;
    section.lines.push_back(fmt::format(fmt::runtime(plain.line), bytes_text(plain.bytes)));
  }
  section.lines.push_back(
      fmt::format("at {:.0f} GB/s device memory needs {:.1f} us for {}: no plan is faster unless "
                  "L2 holds them",
                  gpu.memory_gbps, memory * 1e-3 / gpu.memory_gbps, plain.all));
  return section;
}

}  // namespace

std::vector<std::string> explain(const Plan& plan, const Problem& problem, const GpuSpec& gpu) {
  const vq::CallShape shape = call_shape(plan, problem);
  return visit_plan(plan, problem, [&]<class P>(const P& each, const OpOf<P>& op) {
    std::vector<std::string> all;
    if constexpr (requires { lines(each, op, gpu); }) all = lines(each, op, gpu);
    all.push_back(fmt::format("shared memory: {} of {} bytes per block", shape.shared_bytes(),
                              gpu.shared_bytes_per_block));
    for (std::string& line : explain_plan(each, op)) all.push_back(std::move(line));
    if constexpr (requires { each.combine; }) {
      if (each.combine == Combine::last_block) {
        all.push_back(fmt::format(
            "combine last_block: the last of {} blocks merges, for each of {} results; no second "
            "kernel",
            shape.splits, shape.counters));
      } else if (each.combine == Combine::cluster) {
        all.push_back(fmt::format(
            "combine cluster: the {} blocks of each result add up their sums in shared memory; no "
            "second kernel",
            shape.splits));
      }
    }
    return all;
  });
}

std::vector<ReportSection> report(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                                  const ReportInput& input) {
  const std::vector<OperandTraffic> traffic = expected_traffic(plan, problem, input.profiles);
  const Residency residency =
      expected_residency(plan, problem, gpu, input.registers.value_or(kAssumedRegisters));
  return {
      problem_section(problem, traffic),
      budget_section(residency, gpu, input.registers.has_value()),
      {"dataflow", explain(plan, problem, gpu)},
      cache_section(problem, traffic, input.placements),
      traffic_section(problem, traffic, gpu),
      {"from lookup to arithmetic", fusion_lines(plan, problem)},
      {"expected time", cost_lines(plan, problem, gpu, input.profiles)},
      {"the best plan of each other kind", other_plan_lines(plan, problem, gpu, input.profiles)},
      {"other entries of as many bits", other_entries_lines(plan, problem, gpu)},
      {"other formats of as many bits", other_presets_lines(plan, problem, gpu)}};
}

}  // namespace vqgen
