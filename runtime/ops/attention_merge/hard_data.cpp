#include <algorithm>
#include <limits>

#include "runtime/ops/attention_merge/reference.h"

namespace vqgen {
namespace {

enum MergeStream : std::uint64_t { kMergeOut = 10, kMergeLse = 30, kMergePlace = 31 };

// The log-sum-exps of one row and head; -inf for parts that are empty there.
std::vector<float> hard_lses(std::size_t parts, LengthPattern pattern, Random& random) {
  const bool ragged = pattern == LengthPattern::ragged;
  constexpr double kSpreads[] = {0, 4, 40, 400};
  const double spread = ragged ? kSpreads[random.below(4)] : 4;
  const double base = random.uniform(-100, 100);
  std::vector<float> lses(parts);
  for (float& each : lses) each = static_cast<float>(base + spread * random.uniform());
  if (!ragged || !random.chance(1.0 / 3)) return lses;
  const bool all = random.chance(0.25);
  for (float& each : lses) {
    if (all || random.chance(0.5)) each = -std::numeric_limits<float>::infinity();
  }
  return lses;
}

// The contents that an empty part's out may have.
std::uint16_t garbage(DType dtype, Random& random) {
  constexpr float kNone[] = {std::numeric_limits<float>::quiet_NaN(),
                             std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity(), 1};
  return element_from_float(dtype, kNone[random.below(4)]);
}

}  // namespace

MergeData make_merge_data(const AttentionMerge& problem, const HardInput& input) {
  const MergeShape& shape = problem.shape;
  MergeData data;
  data.dtype = problem.dtype;
  data.rows = shape.rows;
  data.heads = shape.heads;
  data.head_dim = shape.head_dim;
  const std::int64_t items = shape.rows * shape.heads;
  for (int i = 0; i < shape.parts; ++i) {
    Random random(input.seed, kMergeOut + static_cast<std::uint64_t>(i));
    data.parts.push_back({outlier_rows(problem.dtype, items, shape.head_dim, 0, random),
                          std::vector<float>(static_cast<std::size_t>(items))});
  }
  Random lse_random(input.seed, kMergeLse);
  for (std::int64_t item = 0; item < items; ++item) {
    const std::vector<float> lses = hard_lses(data.parts.size(), input.lengths, lse_random);
    for (std::size_t i = 0; i < lses.size(); ++i) {
      MergePart& part = data.parts[i];
      part.lse[static_cast<std::size_t>(item)] = lses[i];
      if (lses[i] != -std::numeric_limits<float>::infinity()) continue;
      std::generate_n(part.out.begin() + item * shape.head_dim, shape.head_dim,
                      [&] { return garbage(problem.dtype, lse_random); });
    }
  }
  Random place(input.seed, kMergePlace);
  if (input.lengths == LengthPattern::ragged) {
    data.in_place = static_cast<int>(place.below(shape.parts + 1)) - 1;
  }
  return data;
}

}  // namespace vqgen
