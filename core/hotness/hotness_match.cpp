#include "core/hotness/hotness_match.h"

#include <fmt/format.h>

#include <numeric>

#include "core/error.h"

namespace vqgen {
namespace {

struct Wanted {
  Operand operand;
  VqFormat format;
  std::int64_t units;
};

std::vector<Wanted> operands_of(const Problem& problem, const std::string& source) {
  if (const auto* op = std::get_if<AttentionDecode>(&problem)) {
    const AttentionShape& shape = op->shape;
    return {{Operand::keys, op->keys, kv_units(op->keys, shape.kv_heads, shape.head_dim)},
            {Operand::values, op->values, kv_units(op->values, shape.kv_heads, shape.head_dim)}};
  }
  if (std::holds_alternative<KvAppend>(problem)) {
    throw Error(ErrorKind::bad_input,
                source +
                    ": kv_append compares with every entry alike, so a profile says nothing of "
                    "where they should stand; remove the hotness");
  }
  const Linear& op = *as_linear(problem);
  return {{Operand::weights, op.weights,
           weight_units(op.weights, op.shape.out_features, op.shape.in_features)}};
}

void require_fit(const HotnessProfile& profile, const Wanted& wanted, const std::string& source) {
  const std::string name = fmt::format("{}: the profile of {}", source, profile.name());
  if (without_layout(profile.format) != without_layout(wanted.format)) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{} is of format {} where the config has {}; profile a bundle of the "
                            "config's format",
                            name, to_json(profile.format).dump(), to_json(wanted.format).dump()));
  }
  if (profile.units != wanted.units) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{} has {} units where the config's shape has {}; profile a tensor of "
                            "that shape",
                            name, profile.units, wanted.units));
  }
}

}  // namespace

std::vector<HotnessProfile> match_hotness(const std::vector<HotnessProfile>& profiles,
                                          const Problem& problem, const std::string& source) {
  std::vector<HotnessProfile> matched;
  for (const Wanted& wanted : operands_of(problem, source)) {
    HotnessProfile all;
    int items = 0;
    std::int64_t accesses = 0;
    for (const HotnessProfile& profile : profiles) {
      if (profile.operand != wanted.operand) continue;
      require_fit(profile, wanted, source);
      accesses = std::accumulate(profile.counts.begin(), profile.counts.end(), accesses);
      if (accesses > kMostAccesses) {
        throw Error(ErrorKind::bad_input,
                    fmt::format("{}: the items have more than {} accesses to {} in all; profile "
                                "fewer of them",
                                source, kMostAccesses, enum_name(wanted.operand)));
      }
      if (items++ == 0) {
        all = profile;
        all.parts = {};
        continue;
      }
      all.item = fmt::format("{} items", items);
      all.units += profile.units;
      all.counts.insert(all.counts.end(), profile.counts.begin(), profile.counts.end());
    }
    if (items == 0) {
      throw Error(
          ErrorKind::bad_input,
          fmt::format("{}: holds no profile of {}, which {} has; profile a bundle that does",
                      source, enum_name(wanted.operand), op_name(problem)));
    }
    matched.push_back(std::move(all));
  }
  return matched;
}

}  // namespace vqgen
