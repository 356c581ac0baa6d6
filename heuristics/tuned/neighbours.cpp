#include "heuristics/tuned/neighbours.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/profiles.h"

namespace vqgen {
namespace {

struct Size {
  const char* name;
  std::int64_t value;
  bool counts = true;  // for what is fast
};

// What may differ on bucket and nearest; the first is what may on bucket. Query heads follow from
// KV heads, whose group is equal.
std::vector<Size> sizes_of(const Problem& problem) {
  if (const auto* op = std::get_if<AttentionDecode>(&problem)) {
    return {
        {"tokens", op->shape.tokens}, {"batch", op->shape.batch}, {"kv_heads", op->shape.kv_heads}};
  }
  if (const auto* op = std::get_if<KvAppend>(&problem)) {
    return {{"batch", op->shape.batch},
            {"kv_heads", op->shape.kv_heads},
            {"tokens", op->shape.tokens, false}};
  }
  const LinearShape& shape = as_linear(problem)->shape;
  return {{"rows", shape.rows},
          {"out_features", shape.out_features},
          {"in_features", shape.in_features}};
}

DType dtype_of(const Problem& problem) {
  return std::visit([](const auto& op) { return op.dtype; }, problem);
}

// The problem with the other element type.
Problem twin_of(Problem problem) {
  std::visit([](auto& op) { op.dtype = op.dtype == DType::f16 ? DType::bf16 : DType::f16; },
             problem);
  return problem;
}

// Whether all but those sizes is equal.
bool same_kind(const Problem& a, const Problem& b) {
  if (a.index() != b.index()) return false;
  if (const auto* append = std::get_if<KvAppend>(&a)) {
    KvAppend other = std::get<KvAppend>(b);
    other.shape.batch = append->shape.batch;
    other.shape.kv_heads = append->shape.kv_heads;
    other.shape.tokens = append->shape.tokens;
    return other == *append;
  }
  const auto* one = std::get_if<AttentionDecode>(&a);
  if (one == nullptr) {
    return as_linear(a)->dtype == as_linear(b)->dtype &&
           as_linear(a)->weights == as_linear(b)->weights;
  }
  const auto& other = std::get<AttentionDecode>(b);
  const AttentionShape& s = one->shape;
  const AttentionShape& t = other.shape;
  return one->dtype == other.dtype && one->keys == other.keys && one->values == other.values &&
         s.head_dim == t.head_dim && one->group() == other.group() && s.window == t.window &&
         s.sinks == t.sinks && s.shared_cache == t.shared_cache;
}

// Doublings between two sizes. Of a division, which rounds equal ratios alike: half and twice are
// as far.
double steps_between(std::int64_t a, std::int64_t b) {
  return std::log2(static_cast<double>(std::max(a, b)) / static_cast<double>(std::min(a, b)));
}

// Of each size.
std::vector<double> steps_from(const Problem& there, const Problem& here) {
  const std::vector<Size> a = sizes_of(there);
  const std::vector<Size> b = sizes_of(here);
  std::vector<double> steps;
  for (std::size_t i = 0; i < a.size(); ++i) {
    steps.push_back(a[i].counts ? steps_between(a[i].value, b[i].value) : 0);
  }
  return steps;
}

double total(const std::vector<double>& steps) {
  return std::accumulate(steps.begin(), steps.end(), 0.0);
}

// How skewed codes are: the exponent of Zipf's law, 0 for uniform ones; a profile has none, and
// stands behind all that have.
double skew_of(const std::string& codes) {
  if (codes == "uniform") return 0;
  return zipf_skew(codes).value_or(HUGE_VAL);
}

// Codes that are no Zipf's law are taken for uniform ones, as the cost model takes them.
double codes_distance(const std::string& row, const std::string& wanted) {
  if (row == wanted) return -1;
  const double skew = skew_of(wanted);
  return std::abs(skew_of(row) - (std::isfinite(skew) ? skew : 0));
}

class Differences {
 public:
  template <class Value>
  void add(const char* name, const Value& there, const Value& here) {
    if (there != here) texts_.push_back(fmt::format("{} {} instead of {}", name, there, here));
  }
  std::string text() const { return fmt::format("{}", fmt::join(texts_, "; ")); }

 private:
  std::vector<std::string> texts_;
};

std::string row_differences(const FoundRow& row, const Problem& problem, const GpuSpec& gpu,
                            const std::string& codes) {
  Differences all;
  const std::vector<Size> there = sizes_of(row.problem);
  const std::vector<Size> here = sizes_of(problem);
  for (std::size_t i = 0; i < here.size(); ++i) {
    all.add(here[i].name, there[i].value, here[i].value);
  }
  all.add("dtype", enum_name(dtype_of(row.problem)), enum_name(dtype_of(problem)));
  all.add("device class", row.gpu, gpu.name);
  all.add("codes", row.codes, codes);
  return all.text();
}

double volume(const Problem& problem) {
  double product = 1;
  for (const Size& size : sizes_of(problem)) product *= static_cast<double>(size.value);
  return product;
}

// By what the header says; each place is worked out once.
void sort(std::vector<Neighbour>& neighbours, const std::string& codes) {
  const auto place_of = [&](const Neighbour& each) {
    const FoundRow& row = each.found;
    return std::tuple(each.rung, each.steps, -volume(row.problem), codes_distance(row.codes, codes),
                      row.order, row.key);
  };
  std::vector<std::pair<decltype(place_of(neighbours.front())), std::size_t>> places;
  for (const Neighbour& each : neighbours) places.emplace_back(place_of(each), places.size());
  std::sort(places.begin(), places.end());
  std::vector<Neighbour> sorted;
  for (const auto& [place, index] : places) sorted.push_back(std::move(neighbours[index]));
  neighbours = std::move(sorted);
}

}  // namespace

std::vector<Neighbour> same_problem(const TunedTables& tables, const Problem& problem,
                                    const GpuSpec& gpu, const std::string& codes) {
  std::vector<Neighbour> all;
  for (FoundRow& found : tables.of(problem)) {
    Neighbour each{.found = std::move(found)};
    const FoundRow& row = each.found;
    if (row.gpu == gpu.name) {
      each.rung = row.codes == codes ? Rung::exact : Rung::codes;
    } else {
      const std::optional<GpuSpec> other = gpu_of_class(row.gpu);
      if (!other || other->arch != gpu.arch) continue;
      each.rung = Rung::family;
      each.steps = steps_between(other->sms, gpu.sms);
    }
    each.differs = row_differences(row, problem, gpu, codes);
    all.push_back(std::move(each));
  }
  sort(all, codes);
  return all;
}

std::vector<Neighbour> other_dtype(const TunedTables& tables, const Problem& problem,
                                   const GpuSpec& gpu, const std::string& codes) {
  std::vector<Neighbour> all;
  for (FoundRow& found : tables.of(twin_of(problem))) {
    if (found.gpu != gpu.name) continue;
    Neighbour each{.rung = Rung::dtype, .found = std::move(found)};
    each.differs = row_differences(each.found, problem, gpu, codes);
    all.push_back(std::move(each));
  }
  sort(all, codes);
  return all;
}

std::vector<Neighbour> other_sizes(const TunedTables& tables, const Problem& problem,
                                   const GpuSpec& gpu, const std::string& codes) {
  const auto near = [&](const Problem& other) {
    return !(other == problem) && same_kind(other, problem) &&
           total(steps_from(other, problem)) <= kMostSteps;
  };
  std::vector<Neighbour> all;
  for (FoundRow& found : tables.like(problem, gpu.name, near)) {
    const std::vector<double> steps = steps_from(found.problem, problem);
    const bool bucket = steps.front() <= 1 && total(steps) == steps.front();
    all.push_back({.rung = bucket ? Rung::bucket : Rung::nearest,
                   .steps = total(steps),
                   .differs = row_differences(found, problem, gpu, codes)});
    all.back().found = std::move(found);
  }
  sort(all, codes);
  return all;
}

}  // namespace vqgen
