#include "heuristics/tuned/ladder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/profiles.h"
#include "heuristics/choose.h"

namespace vqgen {
namespace {

struct Size {
  const char* name;
  std::int64_t value;
  bool counts = true;  // for what is fast
};

// Sizes that may differ on rungs bucket and nearest; the first is the one that may on bucket. Query
// heads follow from KV heads, as the group is equal.
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
  if (const auto* op = std::get_if<KvDequantize>(&problem)) {
    return {
        {"tokens", op->shape.tokens}, {"batch", op->shape.batch}, {"kv_heads", op->shape.kv_heads}};
  }
  if (const auto* op = std::get_if<AttentionMerge>(&problem)) {
    return {{"rows", op->shape.rows}, {"heads", op->shape.heads}};
  }
  if (const ScalarMatrix* op = as_scalar(problem)) {
    return {{"tokens", op->shape.tokens}, {"channels", op->shape.channels}};
  }
  if (const auto* op = std::get_if<WeightDequantize>(&problem)) {
    const WeightRowsShape& s = op->shape;
    return {{"rows", s.rows}, {"out_features", s.out_features}, {"in_features", s.in_features}};
  }
  const LinearShape& shape = as_linear(problem)->shape;
  return {
      {"m", shape.rows}, {"out_features", shape.out_features}, {"in_features", shape.in_features}};
}

std::string_view dtype_of(const Problem& problem) {
  return std::visit([](const auto& op) { return enum_name(op.dtype); }, problem);
}

int page_tokens_of(const Problem& problem) {
  return std::visit(
      [](const auto& op) {
        if constexpr (requires { op.shape.page_tokens; }) return op.shape.page_tokens;
        return 0;
      },
      problem);
}

// True if all but those sizes is equal; pages change no plan.
bool same_kind(const Problem& a, const Problem& b) {
  if (a.index() != b.index()) return false;
  const auto same_but_sizes = [](const auto& one, auto other) {
    other.shape.batch = one.shape.batch;
    other.shape.kv_heads = one.shape.kv_heads;
    other.shape.tokens = one.shape.tokens;
    other.shape.page_tokens = one.shape.page_tokens;
    other.shape.raw_page_tokens = one.shape.raw_page_tokens;
    return other == one;
  };
  if (const auto* append = std::get_if<KvAppend>(&a)) {
    return same_but_sizes(*append, std::get<KvAppend>(b));
  }
  if (const auto* decode = std::get_if<KvDequantize>(&a)) {
    return same_but_sizes(*decode, std::get<KvDequantize>(b));
  }
  if (const auto* merge = std::get_if<AttentionMerge>(&a)) {
    AttentionMerge other = std::get<AttentionMerge>(b);
    other.shape.rows = merge->shape.rows;
    other.shape.heads = merge->shape.heads;
    return other == *merge;
  }
  if (const ScalarMatrix* matrix = as_scalar(a)) {
    const ScalarMatrix& other = *as_scalar(b);
    return other.dtype == matrix->dtype && other.shape.scales == matrix->shape.scales;
  }
  if (const auto* rows = std::get_if<WeightDequantize>(&a)) {
    const auto& other = std::get<WeightDequantize>(b);
    return other.dtype == rows->dtype && other.weights == rows->weights;
  }
  const auto* one = std::get_if<AttentionDecode>(&a);
  if (one == nullptr) {
    const Linear& there = *as_linear(a);
    const Linear& here = *as_linear(b);
    return there.dtype == here.dtype && there.weights == here.weights &&
           there.shape.experts == here.shape.experts &&
           (!here.shape.grouped() || there.shape.call_rows() == here.shape.call_rows());
  }
  const auto& other = std::get<AttentionDecode>(b);
  const AttentionShape& s = one->shape;
  const AttentionShape& t = other.shape;
  return one->dtype == other.dtype && one->keys == other.keys && one->values == other.values &&
         s.head_dim == t.head_dim && one->group() == other.group() &&
         s.recent_tokens == t.recent_tokens && s.flush_block == t.flush_block &&
         s.sinks == t.sinks && s.query_tokens == t.query_tokens &&
         s.batch_invariant == t.batch_invariant && s.sliding_window == t.sliding_window &&
         s.attention_chunk == t.attention_chunk && s.logit_softcap == t.logit_softcap &&
         s.sink_logits == t.sink_logits;
}

// Doublings between two sizes. A division rounds equal ratios alike, so that half and twice are
// equally far.
double steps_between(std::int64_t a, std::int64_t b) {
  return std::log2(static_cast<double>(std::max(a, b)) / static_cast<double>(std::min(a, b)));
}

// Doublings of each size.
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

// Skew of the codes: the exponent of Zipf's law, 0 if uniform; a profile has none and sorts last.
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

std::string row_differences(const FoundRow& row, const Problem& problem, const GpuSpec& gpu,
                            const std::string& codes) {
  std::vector<std::string> texts;
  const auto add = [&](const char* name, const auto& there, const auto& here) {
    if (there != here) texts.push_back(fmt::format("{} {} instead of {}", name, there, here));
  };
  const std::vector<Size> sizes = sizes_of(problem);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    add(sizes[i].name, sizes_of(row.problem)[i].value, sizes[i].value);
  }
  add("page_tokens", page_tokens_of(row.problem), page_tokens_of(problem));
  add("dtype", dtype_of(row.problem), dtype_of(problem));
  add("device class", row.gpu, gpu.name);
  add("codes", row.codes, codes);
  return fmt::format("{}", fmt::join(texts, "; "));
}

double volume(const Problem& problem) {
  double product = 1;
  for (const Size& size : sizes_of(problem)) product *= static_cast<double>(size.value);
  return product;
}

// Sorts in the order of trial: by rung, steps, the larger size, nearer codes, the earlier table,
// the key. Each key is computed once; no row is read yet.
void sort(std::vector<Neighbour>& neighbours, const std::string& codes) {
  const auto place_of = [&](const Neighbour& each) {
    const FoundRow& row = each.found;
    return std::tuple(each.rung, each.steps, -volume(row.problem), codes_distance(row.codes, codes),
                      row.order, row.key);
  };
  std::vector<std::pair<decltype(place_of(neighbours.front())), Neighbour>> places;
  for (Neighbour& each : neighbours) places.emplace_back(place_of(each), std::move(each));
  std::ranges::sort(
      places, {}, [](const auto& each) -> const auto& { return each.first; });
  for (std::size_t i = 0; i < places.size(); ++i) neighbours[i] = std::move(places[i].second);
}

// Rows of exactly this problem on the rungs exact, codes and family.
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

// Rows of rung dtype: the same problem with the other element type.
std::vector<Neighbour> other_dtype(const TunedTables& tables, const Problem& problem,
                                   const GpuSpec& gpu, const std::string& codes) {
  std::vector<Neighbour> all;
  Problem twin = problem;
  const bool has_twin = std::visit(
      [](auto& op) {
        using Type = decltype(op.dtype);
        if (enum_name(op.dtype) == "f32") return false;
        op.dtype = op.dtype == Type::f16 ? Type::bf16 : Type::f16;
        return true;
      },
      twin);
  if (!has_twin) return all;
  for (FoundRow& found : tables.of(twin)) {
    if (found.gpu != gpu.name) continue;
    Neighbour each{.rung = Rung::dtype, .found = std::move(found)};
    each.differs = row_differences(each.found, problem, gpu, codes);
    all.push_back(std::move(each));
  }
  sort(all, codes);
  return all;
}

// Rows of rungs bucket and nearest: other sizes.
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

// Judges neighbours. The model's own choice takes a search of the space, so it is made once and
// only if a neighbour gets as far as that.
class Borrowing {
 public:
  Borrowing(const Config& config, const GpuSpec& gpu, std::span<const AccessCounts> profiles)
      : config_(config), gpu_(gpu), profiles_(profiles), model_(config.problem, gpu, profiles) {}

  // Why it is not borrowed; empty where it is.
  std::string refusal(const Neighbour& neighbour) {
    const Plan& plan = neighbour.row.plan;
    const MeasurePolicy& policy = neighbour.row.policy;
    if (!policy.of_gpu()) {
      return fmt::format("was timed by '{}', which says nothing of a GPU", policy.timer);
    }
    if (!has_fixed_fields(plan, config_))
      return "the config fixes fields of the plan that it has otherwise";
    const Verdict verdict = check(plan, config_.problem, gpu_);
    if (!verdict.ok) return "cannot run here: " + verdict.reason;
    const Rung rung = neighbour.rung;
    const bool borrowed = rung == Rung::bucket || rung == Rung::nearest || rung == Rung::family;
    if (!borrowed) return "";
    // If splits follow from the size, another size has a grid that nobody measured, and such plans
    // lose to the model's choice.
    const int splits = call_shape(plan, config_.problem).splits;
    const int measured = call_shape(plan, neighbour.row.problem).splits;
    if (splits != measured) {
      return fmt::format("has {} splits here, {} where it was measured", splits, measured);
    }
    // Measured with sequences of equal length, which tells nothing of a batch of long and short
    // ones.
    const bool attends = std::holds_alternative<AttentionDecode>(config_.problem);
    if (attends && !is_by_length(plan) && own_us() && is_by_length(*own)) {
      return "splits each sequence by itself, where a batch may hold long and short ones";
    }
    const std::optional<Cost> cost = model_(plan);
    if (!cost) {
      if (rung == Rung::bucket) return "";
      return "the cost model knows nothing of its dataflow, so it may lose at other sizes";
    }
    const std::optional<double> least = own_us();
    if (!least || cost->us <= kBorrowMargin * *least) return "";
    return fmt::format(
        "expected to take {:.2f} times as long as the cost model's own choice, more "
        "than {}",
        cost->us / *least, kBorrowMargin);
  }

  std::optional<Plan> own;

 private:
  // Nothing where the choice cannot run or has no cost.
  std::optional<double> own_us() {
    if (!own) {
      own = propose(config_, gpu_, {Chooser::model, profiles_});
      const bool runs = check(*own, config_.problem, gpu_).ok;
      const std::optional<Cost> cost = runs ? model_(*own) : std::nullopt;
      if (cost) own_us_ = cost->us;
    }
    return own_us_;
  }

  const Config& config_;
  const GpuSpec& gpu_;
  std::span<const AccessCounts> profiles_;
  CostModel model_;
  std::optional<double> own_us_;
};

}  // namespace

LadderAnswer look_up(const TunedTables& tables, const Config& config, const GpuSpec& gpu,
                     const LadderOptions& options) {
  LadderAnswer answer;
  if (tables.empty()) return answer;
  Borrowing borrowing(config, gpu, options.profiles);
  const auto done = [&] { return answer.taken && !options.all; };
  const auto consider = [&](Neighbour neighbour, bool too_many = false) {
    if (done()) return;
    std::optional<TunedRow> row = tables.read(neighbour.found);
    if (!row) return;
    neighbour.row = std::move(*row);
    if (answer.taken) {
      neighbour.refused = "a nearer row was taken";
    } else if (too_many) {
      neighbour.refused = fmt::format("{} nearer ones of other sizes did not serve", kMostTried);
    } else {
      neighbour.refused = borrowing.refusal(neighbour);
      if (neighbour.refused.empty()) {
        answer.taken = std::move(neighbour);
        return;
      }
    }
    answer.passed.push_back(std::move(neighbour));
  };
  std::vector<Neighbour> same = same_problem(tables, config.problem, gpu, options.codes);
  const auto family = std::find_if(same.begin(), same.end(),
                                   [](const Neighbour& each) { return each.rung == Rung::family; });
  std::for_each(same.begin(), family, [&](Neighbour& each) { consider(std::move(each)); });
  if (!done()) {
    for (Neighbour& each : other_dtype(tables, config.problem, gpu, options.codes)) {
      consider(std::move(each));
    }
  }
  if (!done()) {
    std::vector<Neighbour> others = other_sizes(tables, config.problem, gpu, options.codes);
    if (!options.all) others.resize(std::min(others.size(), kMostTried));
    for (std::size_t i = 0; i < others.size(); ++i) consider(std::move(others[i]), i >= kMostTried);
    std::for_each(family, same.end(), [&](Neighbour& each) { consider(std::move(each)); });
  }
  answer.own = std::move(borrowing.own);
  return answer;
}

PlanSource source_of(const Neighbour& taken) {
  const TunedRow& row = taken.row;
  std::string why = fmt::format("{}: {:.2f} us there, {:.2f} us by the default plan",
                                taken.found.where, row.time_us, row.default_us);
  if (!taken.differs.empty()) why += "; " + taken.differs;
  return {taken.rung, std::move(why)};
}

Json to_json(const PlanSource& source) {
  return {{"rung", std::string(enum_name(source.rung))}, {"why", source.why}};
}

}  // namespace vqgen
