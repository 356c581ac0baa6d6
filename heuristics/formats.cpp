#include "heuristics/formats.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/format/stored.h"
#include "core/profiles.h"

namespace vqgen {
namespace {

constexpr const char* kWhere = "presets";
// The cost model's search of a plan takes milliseconds. So it is made only of problems whose plan
// by the rules is fast already: the model's is at most about so many times as fast.
constexpr double kAttentionGain = 1.25;
constexpr double kWeightsGain = 5;

bool is_faster(const OtherFormats& a, const OtherFormats& b) { return a.us < b.us; }

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

// The time that the chosen plan is expected to take; nothing where no plan is feasible or modelled.
std::optional<double> expected_us(const Problem& problem, const GpuSpec& gpu, Chooser chooser) {
  if (!check(problem).ok) return std::nullopt;
  const Plan plan = propose(problem, gpu, {.chooser = chooser});
  if (!check(plan, problem, gpu).ok) return std::nullopt;
  const std::optional<Cost> cost = CostModel(problem, gpu, {})(plan);
  if (!cost) return std::nullopt;
  return cost->us;
}

bool has_formats(const Problem& problem) {
  return std::holds_alternative<AttentionDecode>(problem) || as_linear(problem) != nullptr;
}

bool is_valid(const Problem& problem) {
  try {
    validate(problem, kWhere);
  } catch (const Error&) {
    return false;
  }
  return true;
}

FormatUse use_of(Operand operand) {
  return operand == Operand::keys     ? FormatUse::keys
         : operand == Operand::values ? FormatUse::values
                                      : FormatUse::weights;
}

// Presets for the operand's use with as many bits per number of a row, in its layout if they can
// have it; of equal ones the first.
std::vector<OtherPreset> presets_beside(Operand operand, const VqFormat& format, int columns) {
  const double bits = stored_bits(format, columns);
  std::vector<OtherPreset> others;
  for (const std::string& name : formats_for(use_of(operand))) {
    VqFormat other = preset(name, operand == Operand::values);
    if (stored_bits(other, columns) != bits || has_basis(other)) continue;
    if (layout_problem(other, format.layout).empty()) other = with_layout(other, format.layout);
    const auto same = [&](const OtherPreset& each) { return each.format == other; };
    if (other == format || std::any_of(others.begin(), others.end(), same)) continue;
    others.push_back({name, std::move(other)});
  }
  return others;
}

int columns_of(const Problem& problem, Operand operand) {
  const Linear* const product = as_linear(problem);
  if (product != nullptr) return static_cast<int>(product->shape.in_features);
  return row_dim(std::get<AttentionDecode>(problem).shape, operand);
}

void add_name(std::string& formats, Operand operand, const std::string& name) {
  formats += fmt::format("{}{} {}", formats.empty() ? "" : ", ", enum_name(operand), name);
}

// The problem in each combination of such presets and its own formats that faster_entries() does
// not judge.
std::vector<OtherFormats> in_other_presets(const Problem& problem) {
  struct Combination {
    OtherFormats formats;
    bool entries_alone = true;  // nothing but entries differ
  };
  std::vector<Combination> all{{{.problem = problem}}};
  const auto extend = [&](Operand operand, const VqFormat& own) {
    const std::optional<OtherPreset> entries = other_entries(own, operand == Operand::values);
    const std::size_t before = all.size();
    for (const OtherPreset& other : presets_beside(operand, own, columns_of(problem, operand))) {
      for (std::size_t i = 0; i < before; ++i) {
        Combination each = all[i];
        const auto change = [&](Operand which, VqFormat& format) {
          if (which == operand) format = other.format;
        };
        std::visit([&](auto& op) { for_each_operand(op, change); }, each.formats.problem);
        add_name(each.formats.formats, operand, other.name);
        if (!entries || entries->format != other.format) each.entries_alone = false;
        all.push_back(std::move(each));
      }
    }
  };
  std::visit([&](const auto& op) { for_each_operand(op, extend); }, problem);
  std::vector<OtherFormats> judged;
  for (Combination& each : all) {
    if (!each.entries_alone) judged.push_back(std::move(each.formats));
  }
  return judged;
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

std::vector<OtherFormats> faster_entries(const Problem& problem, const GpuSpec& gpu, double us) {
  std::vector<OtherFormats> faster;
  if (!has_formats(problem)) return {};
  // Keys alone, values alone, both; weights are the first operand of one.
  for (const unsigned taken : {1u, 2u, 3u}) {
    OtherFormats each{.problem = problem};
    unsigned changed = 0;
    const auto change = [&](Operand operand, VqFormat& format) {
      const unsigned bit = operand == Operand::values ? 2 : 1;
      if ((taken & bit) == 0) return;
      const auto other = other_entries(format, operand == Operand::values);
      if (!other) return;
      changed |= bit;
      format = other->format;
      add_name(each.formats, operand, other->name);
    };
    std::visit([&](auto& op) { for_each_operand(op, change); }, each.problem);
    if (changed != taken) continue;
    const auto expected = expected_us(each.problem, gpu, kDefaultChooser);
    if (!expected || *expected * kWorthChanging > us) continue;
    each.us = *expected;
    faster.push_back(std::move(each));
  }
  std::stable_sort(faster.begin(), faster.end(), is_faster);
  return faster;
}

std::optional<OtherFormats> faster_presets(const Problem& problem, const GpuSpec& gpu, double us) {
  if (!has_formats(problem)) return std::nullopt;
  const bool weights = as_linear(problem) != nullptr;
  const double most_us = us / kWorthTraining * (weights ? kWeightsGain : kAttentionGain);
  std::vector<OtherFormats> others;
  for (OtherFormats& each : in_other_presets(problem)) {
    if (!is_valid(each.problem)) continue;
    const auto expected = expected_us(each.problem, gpu, Chooser::rules);
    if (!expected || *expected > most_us) continue;
    each.us = *expected;
    others.push_back(std::move(each));
  }
  // The rules put attention in the model's order, and products in another.
  std::stable_sort(others.begin(), others.end(), is_faster);
  if (!weights && !others.empty()) others.resize(1);
  for (OtherFormats& each : others) {
    if (const auto expected = expected_us(each.problem, gpu, kDefaultChooser)) each.us = *expected;
  }
  const auto best = std::min_element(others.begin(), others.end(), is_faster);
  if (best == others.end() || best->us * kWorthTraining > us) return std::nullopt;
  if (const auto own = expected_us(problem, gpu, kDefaultChooser)) us = std::min(us, *own);
  for (const OtherFormats& each : faster_entries(problem, gpu, us)) us = std::min(us, each.us);
  if (best->us * kWorthTraining > us) return std::nullopt;
  return std::move(*best);
}

}  // namespace vqgen
