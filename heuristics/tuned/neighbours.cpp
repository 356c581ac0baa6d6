#include "heuristics/tuned/neighbours.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/profiles.h"

namespace vqgen {
namespace {

struct Size {
  const char* name;
  std::int64_t value;
};

// What may differ on bucket and nearest; the first is what may on bucket. Query heads follow from
// KV heads, whose group is equal.
std::vector<Size> sizes_of(const Problem& problem) {
  if (const auto* op = std::get_if<AttentionDecode>(&problem)) {
    return {
        {"tokens", op->shape.tokens}, {"batch", op->shape.batch}, {"kv_heads", op->shape.kv_heads}};
  }
  const LinearShape& shape = as_linear(problem)->shape;
  return {{"rows", shape.rows},
          {"out_features", shape.out_features},
          {"in_features", shape.in_features}};
}

// Whether all but those sizes is equal.
bool same_kind(const Problem& a, const Problem& b) {
  if (a.index() != b.index()) return false;
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

// How skewed codes are: the exponent of Zipf's law, 0 for uniform ones; a profile has none, and
// stands behind all that have.
double skew_of(const std::string& codes) {
  constexpr std::string_view kZipf = "zipf:";
  if (codes == "uniform") return 0;
  double skew = 0;
  const char* const end = codes.data() + codes.size();
  if (codes.starts_with(kZipf)) {
    const auto read = std::from_chars(codes.data() + kZipf.size(), end, skew);
    if (read.ec == std::errc{} && read.ptr == end && std::isfinite(skew)) return skew;
  }
  return HUGE_VAL;
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

std::string differences(const TunedRow& row, const Problem& problem, const GpuSpec& gpu,
                        const std::string& codes) {
  Differences all;
  const std::vector<Size> there = sizes_of(row.problem);
  const std::vector<Size> here = sizes_of(problem);
  for (std::size_t i = 0; i < here.size(); ++i) {
    all.add(here[i].name, there[i].value, here[i].value);
  }
  all.add("device class", row.gpu, gpu.name);
  all.add("codes", row.policy.codes, codes);
  return all.text();
}

double volume(const Problem& problem) {
  double product = 1;
  for (const Size& size : sizes_of(problem)) product *= static_cast<double>(size.value);
  return product;
}

void sort(std::vector<Neighbour>& neighbours, const std::string& codes) {
  const auto place = [&](const Neighbour& each) {
    const TunedRow& row = each.found.row;
    return std::tuple(each.rung, each.steps, -volume(row.problem),
                      codes_distance(row.policy.codes, codes), each.found.order, tuned_key(row));
  };
  std::sort(neighbours.begin(), neighbours.end(),
            [&](const Neighbour& a, const Neighbour& b) { return place(a) < place(b); });
}

}  // namespace

std::vector<Neighbour> same_problem(const TunedTables& tables, const Problem& problem,
                                    const GpuSpec& gpu, const std::string& codes) {
  std::vector<Neighbour> all;
  for (FoundRow& found : tables.of(problem)) {
    Neighbour each{.found = std::move(found)};
    const TunedRow& row = each.found.row;
    if (row.gpu == gpu.name) {
      each.rung = row.policy.codes == codes ? Rung::exact : Rung::codes;
    } else {
      const std::optional<GpuSpec> other = gpu_of_class(row.gpu);
      if (!other || other->arch != gpu.arch) continue;
      each.rung = Rung::family;
      each.steps = steps_between(other->sms, gpu.sms);
    }
    each.differs = differences(row, problem, gpu, codes);
    all.push_back(std::move(each));
  }
  sort(all, codes);
  return all;
}

std::vector<Neighbour> other_sizes(const TunedTables& tables, const Problem& problem,
                                   const GpuSpec& gpu, const std::string& codes) {
  const std::vector<Size> here = sizes_of(problem);
  std::vector<Neighbour> all;
  for (FoundRow& found : tables.like(problem)) {
    const TunedRow& row = found.row;
    if (row.gpu != gpu.name || row.problem == problem || !same_kind(row.problem, problem)) continue;
    const std::vector<Size> there = sizes_of(row.problem);
    Neighbour each{.rung = Rung::bucket};
    for (std::size_t i = 0; i < here.size(); ++i) {
      const double steps = steps_between(there[i].value, here[i].value);
      each.steps += steps;
      if (i > 0 ? steps > 0 : steps > 1) each.rung = Rung::nearest;
    }
    if (each.steps > kMostSteps) continue;
    each.differs = differences(row, problem, gpu, codes);
    each.found = std::move(found);
    all.push_back(std::move(each));
  }
  sort(all, codes);
  return all;
}

}  // namespace vqgen
