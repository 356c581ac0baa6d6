#include "tests/sweep/cases.h"

#include <algorithm>
#include <array>

#include "tests/sweep/plans.h"

namespace vqgen::test {

SweepCase product_case(const Linear& op, int dataflow, const GpuSpec& gpu) {
  SweepCase result;
  result.problem = as_problem(op);
  validate(result.problem, "sweep");
  const Plan first = product_plan(dataflow, result.problem, gpu);
  result.dataflow_dropped = !check(first, result.problem, gpu).ok;
  result.plan = result.dataflow_dropped ? product_plan(0, result.problem, gpu) : first;
  return result;
}

void fix_placement(Placement& placement, const VqFormat& format, int variant) {
  const int entries = format.entries();
  switch (variant) {
    case 1:
      placement = all_global();
      break;
    case 2:
      placement = {.registers = 1, .shared = entries};
      break;
    case 3:
      placement = {.registers = std::min(8, entries), .shared = entries};
      break;
    case 4:
      placement = {.shared = entries / 2};
      break;
    case 5:
      placement = {.replicated = entries / 2, .copies = 4, .shared = entries};
      break;
    case 6:
      placement = {.registers = 1,
                   .replicated = std::min(2, entries),
                   .copies = 8,
                   .shared = std::min(3, entries)};
      break;
    case 7:
      placement = all_replicated(entries, 16);
      break;
    default:
      break;
  }
}

VqFormat cache_format(int bits, int vector, int num_codebooks, int scope, int head_dim,
                      int most_entries) {
  VqFormat format;
  format.index_bits = bits == 0 ? 16 : bits;
  if (bits == 0) format.decoder = Decoder::e8p;
  format.vector_size = vector;
  format.num_codebooks = num_codebooks;
  format.scope = scope == 0 ? Scope::tensor : scope == 1 ? Scope::head : Scope::channel_group;
  const bool halves = scope == 3 || (scope == 2 && format.entries() > most_entries);
  if (halves) format.group_channels = head_dim / 2;
  return format;
}

void set_weight_scope(VqFormat& format, int value, int tile_rows, int tile_columns) {
  const bool large = format.entries() > 1024;
  switch (value) {
    case 1:
      format.scope = Scope::channel_group;
      format.group_channels = large ? 512 : format.vector_size;
      break;
    case 2:
      format.scope = Scope::channel_group;
      format.group_channels = large ? 1024 : 48;
      break;
    case 3:
      format.scope = Scope::tile;
      format.tile_rows = large ? 256 : 24;
      format.tile_columns = large ? 1024 : 40;
      break;
    case 4:
      format.scope = Scope::tile;
      format.tile_rows = tile_rows;
      format.tile_columns = tile_columns;
      break;
    default:
      break;
  }
}

void exclude_formats(std::set<AxisPair>& impossible, const FormatAxes& axes) {
  constexpr int kIntegers = 2;
  impossible.emplace(AxisValue{axes.bits, axes.lattice}, AxisValue{axes.scales, kIntegers});
  impossible.emplace(AxisValue{axes.vector, 0}, AxisValue{axes.scales, kIntegers});
  for (const int vector : {0, 1}) {
    impossible.emplace(AxisValue{axes.bits, axes.lattice}, AxisValue{axes.vector, vector});
  }
}

void exclude_raw_pages(std::set<AxisPair>& impossible, std::span<const Window> windows,
                       int window_axis, int sinks_axis, int sinks_values) {
  for (int window = 0; window < static_cast<int>(windows.size()); ++window) {
    if (windows[static_cast<std::size_t>(window)].page == 0) continue;
    for (int sinks = 1; sinks < sinks_values; ++sinks) {
      impossible.emplace(AxisValue{window_axis, window}, AxisValue{sinks_axis, sinks});
    }
  }
}

void exclude_orders(std::set<AxisPair>& impossible, int tokens_axis, int order_axis) {
  for (int tokens = 0; tokens < static_cast<int>(kPageTokens.size()); ++tokens) {
    for (int order = 0; order < static_cast<int>(kPageOrders.size()); ++order) {
      if ((tokens > 0) == (order > 0)) continue;
      impossible.emplace(AxisValue{tokens_axis, tokens}, AxisValue{order_axis, order});
    }
  }
}
void exclude_orders(std::set<AxisPair>& impossible, const PageAxes& axes) {
  exclude_orders(impossible, axes.tokens, axes.order);
  const auto side_by_side = static_cast<int>(kPageOrders.size()) - 1;
  for (int layout = 1; layout < static_cast<int>(kLayouts.size()); ++layout) {
    for (const int axis : {axes.key_layout, axes.value_layout}) {
      impossible.emplace(AxisValue{axis, layout}, AxisValue{axes.order, side_by_side});
    }
  }
}

void set_mask(AttentionDecode& op, int value) {
  constexpr std::array kWindowOf{0, 1, 50, 130, 0, 0, 77, 0};
  const auto number = static_cast<std::size_t>(value);
  op.shape.sliding_window = kWindowOf[number];
  op.shape.attention_chunk = value == 4 ? 48 : 0;
  const bool caps = value == 5 || value == 6;
  op.shape.logit_softcap = caps && !op.keys.center ? 3.5 : 0;
  op.shape.sink_logits = value == 3 || value >= 6 || (caps && op.keys.center);
}

void exclude_trees(std::set<AxisPair>& impossible, AxisValue tree, int mask_axis,
                   int batch_invariant_axis) {
  const auto exclude = [&](AxisValue other) {
    impossible.emplace(std::min(tree, other), std::max(tree, other));
  };
  for (const int mask : {1, 4}) exclude({mask_axis, mask});
  exclude({batch_invariant_axis, 1});
}

void exclude_prefixes(std::set<AxisPair>& impossible, AxisValue prefix, const PrefixAxes& axes) {
  const auto exclude = [&](AxisValue other) {
    impossible.emplace(std::min(prefix, other), std::max(prefix, other));
  };
  for (const int mask : {1, 2, 3, 4, 6}) exclude({axes.mask, mask});
  exclude({axes.batch_invariant, 1});
  for (int window = 1; window < axes.windows; ++window) exclude({axes.window, window});
  for (int sinks = 1; sinks < axes.sink_counts; ++sinks) exclude({axes.sinks, sinks});
}

}  // namespace vqgen::test
