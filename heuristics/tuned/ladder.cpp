#include "heuristics/tuned/ladder.h"

#include <fmt/format.h>

#include <algorithm>

#include "heuristics/check.h"
#include "heuristics/choose.h"

namespace vqgen {
namespace {

bool borrowed(Rung rung) {
  return rung == Rung::bucket || rung == Rung::nearest || rung == Rung::family;
}

// Judges neighbours. The model's own choice takes a search of the space, so it is made once and
// only if a neighbour gets as far as that.
class Borrowing {
 public:
  Borrowing(const Config& config, const GpuSpec& gpu, std::span<const HotnessProfile> profiles)
      : config_(config), gpu_(gpu), profiles_(profiles), model_(config.problem, gpu, profiles) {}

  // Why it is not borrowed; empty where it is.
  std::string refusal(const Neighbour& neighbour) {
    const Plan& plan = neighbour.row.plan;
    const MeasurePolicy& policy = neighbour.row.policy;
    if (!policy.of_gpu()) {
      return fmt::format("was timed by '{}', which says nothing of a GPU", policy.timer);
    }
    if (!has_fixed_fields(plan)) return "the config fixes fields of the plan that it has otherwise";
    const Verdict verdict = check(plan, config_.problem, gpu_);
    if (!verdict.ok) return "cannot run here: " + verdict.reason;
    if (!borrowed(neighbour.rung)) return "";
    // Where splits follow from the size, another size is a grid that nobody measured: products by
    // tables, 11008 x 4096 in 2 x 8 bits, took 9.8 us so, 8.6 by the model's choice (H200).
    const int splits = call_shape(plan, config_.problem).splits;
    const int measured = call_shape(plan, neighbour.row.problem).splits;
    if (splits != measured) {
      return fmt::format("has {} splits here, {} where it was measured", splits, measured);
    }
    const std::optional<Cost> cost = model_(plan);
    if (!cost) {
      if (neighbour.rung == Rung::bucket) return "";
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
  // Error(bad_input) for a field that no dataflow of the op has.
  bool has_fixed_fields(const Plan& plan) const {
    const JsonCursor fields = config_.plan_cursor();
    if (!has_fields(plan, fields) && !dataflows_with(fields, config_.problem).empty()) return false;
    return with_overrides(plan, config_) == plan;
  }

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
  std::span<const HotnessProfile> profiles_;
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
