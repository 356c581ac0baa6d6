#include "heuristics/explain.h"

#include <fmt/format.h>

#include "heuristics/kernels/slice.h"

namespace vqgen {
namespace {

// "key codebooks: entries 8 in registers, 248 in shared; ..." and the bytes that they take a block.
std::string codebook_line(const char* operand, const vq::FormatConfig& format, std::int64_t units) {
  std::string levels;
  const auto add = [&](vq::EntryRange range, const std::string& where) {
    if (range.begin == range.end) return;
    levels += fmt::format("{}{} {}", levels.empty() ? "" : ", ", range.end - range.begin, where);
  };
  add(vq::register_range(format), "in registers");
  add(vq::replicated_range(format), fmt::format("in shared x{}", format.placement.copies));
  add(vq::shared_range(format), "in shared");
  add(vq::global_range(format), "in global");
  return fmt::format("{} codebooks: entries {}; {} shared bytes a block for {} of codebooks",
                     operand, levels,
                     units * (vq::replicated_bytes(format) + vq::shared_bytes(format)),
                     units * vq::unit_codebook_elements(format) * 2);
}

// What is said of all dataflows of an op, before and after what is said of one.
template <class P>
std::vector<std::string> lines(const P& plan, const AttentionDecode& op, const GpuSpec& gpu) {
  const auto config = configured(plan, op);
  const std::int64_t blocks =
      std::int64_t{op.shape.kv_heads} * vq::head_blocks(config) * op.shape.batch;
  return {
      fmt::format("splits {}: {} (head, sequence) blocks a split for {} SMs, tiles of {} tokens",
                  plan.splits, blocks, gpu.sms, vq::token_tile(config)),
      fmt::format("heads_per_block {}: a code is decoded once for {} of the group's {} query heads",
                  plan.heads_per_block, plan.heads_per_block, op.group()),
      codebook_line("key", config.keys, vq::units_of(config.keys, vq::key_channels(config))),
      codebook_line("value", config.values,
                    vq::units_of(config.values, vq::value_channels(config)))};
}

template <class P>
std::vector<std::string> lines(const P& plan, const Linear& op, const GpuSpec&) {
  const auto config = configured(plan, op);
  return {fmt::format("dataflow {}: {} outputs a block, {} splits of the columns",
                      dataflow_name(plan), vq::outputs_per_block(config), vq::splits(config)),
          fmt::format("chunks of {} columns: {} rows of x staged, {} codebook units a chunk",
                      vq::chunk_columns(config), op.shape.rows, vq::units_per_chunk(config)),
          codebook_line("weight", config.weights, vq::units_per_chunk(config))};
}

template <class P>
std::vector<std::string> lines(const P&, const KvAppend&, const GpuSpec&) {
  return {};
}

}  // namespace

std::vector<std::string> explain(const Plan& plan, const Problem& problem, const GpuSpec& gpu) {
  const vq::CallShape shape = call_shape(plan, problem);
  return visit_plan(plan, problem, [&]<class P>(const P& each, const OpOf<P>& op) {
    std::vector<std::string> all = lines(each, op, gpu);
    all.push_back(fmt::format("shared memory: {} of {} bytes a block", shape.shared_bytes(),
                              gpu.shared_bytes_per_block));
    for (std::string& line : Slice<P>::explain(each, op)) all.push_back(std::move(line));
    if constexpr (requires { each.combine; }) {
      if (each.combine == Combine::last_block) {
        all.push_back(fmt::format(
            "combine last_block: the last of {} blocks merges, for each of {} results; no second "
            "kernel",
            shape.splits, shape.counters));
      }
    }
    return all;
  });
}

}  // namespace vqgen
