#include "heuristics/formats.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/profiles.h"

namespace vqgen {
namespace {

constexpr const char* kWhere = "presets";

VqFormat preset(const std::string& name, bool values) {
  const VqFormat format = find_format(name, kWhere);
  return values ? for_values(format) : format;
}

// All but the type of entries and what follows from it.
VqFormat without_entries(VqFormat format) {
  format.entry_type = EntryType::element;
  format.stage_scales = format.common_scale = false;
  format.layout = {};
  return format;
}

void add_expected(std::vector<OtherEntries>& to, OtherEntries each, const GpuSpec& gpu, double us) {
  const Plan plan = propose(each.problem, gpu);
  if (!check(plan, each.problem, gpu).ok) return;
  const std::optional<Cost> cost = CostModel(each.problem, gpu, {})(plan);
  if (!cost || cost->us * kWorthChanging > us) return;
  each.us = cost->us;
  to.push_back(std::move(each));
}

}  // namespace

std::optional<OtherPreset> other_entries(const VqFormat& format, bool values) {
  if (format.in_parts() || format.decoder != Decoder::table) return std::nullopt;
  const VqFormat bare = without_entries(format);
  for (const std::string& name : format_names()) {
    VqFormat other = preset(name, values);
    if (other.in_parts() || other.entry_type == format.entry_type) continue;
    if (without_entries(other) != bare) continue;
    other.layout = format.layout;
    return OtherPreset{name, other};
  }
  return std::nullopt;
}

std::vector<OtherEntries> faster_entries(const Problem& problem, const GpuSpec& gpu, double us) {
  std::vector<OtherEntries> faster;
  if (!std::holds_alternative<AttentionDecode>(problem) && as_linear(problem) == nullptr) return {};
  // Keys alone, values alone, both; weights are the first operand of one.
  for (const unsigned taken : {1u, 2u, 3u}) {
    OtherEntries each{.problem = problem};
    unsigned changed = 0;
    const auto change = [&](Operand operand, VqFormat& format) {
      const unsigned bit = operand == Operand::values ? 2 : 1;
      if ((taken & bit) == 0) return;
      const auto other = other_entries(format, operand == Operand::values);
      if (!other) return;
      changed |= bit;
      format = other->format;
      each.formats +=
          fmt::format("{}{} {}", each.formats.empty() ? "" : ", ", enum_name(operand), other->name);
    };
    std::visit([&](auto& op) { for_each_operand(op, change); }, each.problem);
    if (changed == taken) add_expected(faster, std::move(each), gpu, us);
  }
  std::stable_sort(faster.begin(), faster.end(),
                   [](const auto& a, const auto& b) { return a.us < b.us; });
  return faster;
}

}  // namespace vqgen
