#include "heuristics/choose.h"

#include <algorithm>

#include "core/error.h"
#include "heuristics/kernels/attention.h"
#include "heuristics/placement/place.h"
#include "heuristics/space.h"

namespace vqgen {
namespace {

class Cheapest final : public Candidates {
 public:
  Cheapest(const Problem& for_problem, const GpuSpec& on_gpu,
           std::span<const AccessCounts> profiles, bool last_block, const CostProfile& coefficients)
      : Candidates(for_problem, on_gpu),
        model_(for_problem, on_gpu, profiles, coefficients),
        last_block_(last_block) {}

  void add_each(Plan plan, std::span<const Placement> placements) override {
    *placement_of(plan, Operand::weights) = all_global();
    add_placed(plan, placements);
    for (const Plan& each : merged_otherwise(plan, problem, gpu, last_block_)) {
      add_placed(each, placements);
    }
  }

  void add(const Plan& plan) override {
    add_one(plan);
    for (const Plan& each : merged_otherwise(plan, problem, gpu, last_block_)) add_one(each);
  }

  std::optional<Plan> best;

 private:
  bool below(double us) const { return !best || us < us_; }

  // Costs are of plans that check() accepts; it accepts no placement where it refuses none at all.
  void add_placed(Plan plan, std::span<const Placement> placements) {
    if (!check(plan, problem, gpu).ok || !below(model_.least_us(plan))) return;
    for (const Placement& each : placements) {
      *placement_of(plan, Operand::weights) = each;
      const std::optional<Cost> cost = model_(plan);
      if (cost && below(cost->us)) add_one(plan);
    }
  }

  // One that comes twice is not cheaper than itself.
  void add_one(const Plan& plan) {
    if (std::holds_alternative<AttentionInt8Mma>(plan)) return;  // the rules' alone
    if (!check(plan, problem, gpu).ok) return;
    const std::optional<Cost> cost = model_(plan);
    if (!cost || !below(cost->us)) return;
    best = plan;
    us_ = cost->us;
  }

  CostModel model_;
  bool last_block_;
  double us_ = 0;  // time of the best
};

// New tokens, of one sequence or of all, from which kv_append on tensor cores is faster. Parts have
// blocks of their own, which fill later. With batched flushing most calls encode nothing.
constexpr int kManyNewTokens = 128;
constexpr int kManyInParts = 256;

bool many_new_tokens(const KvAppend& op) {
  const bool parts = op.keys.in_parts() || op.values.in_parts();
  const int many = parts ? kManyInParts : kManyNewTokens;
  if (vq::visited_tokens(facts(op)) >= many) return true;
  const std::int64_t of_all = std::int64_t{op.shape.new_tokens} * op.shape.batch;
  return op.shape.flush_block == 1 && of_all >= many;
}

void require(const Verdict& verdict, const Problem& problem) {
  if (!verdict.ok) throw Error(ErrorKind::infeasible, op_name(problem) + ": " + verdict.reason);
}

// The rules' plan from `wanted`, a default plan of its dataflow or one by length; check() may
// refuse it.
Plan of_dataflow(const Plan& wanted, const Problem& problem, const GpuSpec& gpu) {
  const Plan plan = visit_plan(wanted, problem, [&]<class P>(const P& from, const OpOf<P>& op) {
    return Plan(choose_plan(from, op, gpu));
  });
  // Tensor-core plans are bound by shared-memory wavefronts, which copies reduce.
  const bool on_tensor_cores = std::holds_alternative<AttentionMma>(plan) ||
                               std::holds_alternative<LinearMma>(plan) ||
                               std::holds_alternative<LinearWgmma>(plan);
  if (!on_tensor_cores || !check(plan, problem, gpu).ok) return plan;
  const bool attention = std::holds_alternative<AttentionDecode>(problem);
  return with_copies_where_they_win(plan, problem, gpu, attention ? kWorthwhile : kClearly);
}

// True if this int8_mma attention plan is expected to beat mma (docs/lab/attention-int8.md):
// not with short sequences in several waves, a mostly empty second wave, mixed lengths that mma
// shares out and int8_mma does not, more than a quad of heads with short splits, several query
// tokens or part of a KV head's heads, or more than 4 rows of many channels, where mma takes 16.
bool prefers_bytes(const AttentionInt8Mma& plan, const AttentionDecode& op, const GpuSpec& gpu) {
  constexpr int kShort = 1024;  // tokens
  constexpr std::int64_t kFewTokens = 4096;
  if (longest_row(op.shape) > 160 && op.group() * op.shape.query_tokens > 4) return false;
  if (plan.schedule == Schedule::balanced) return gpu.warpgroup_products;
  if (plan.heads_per_block > 4 && plan.heads_per_block < op.group()) return false;
  if (plan.heads_per_block > 4 && op.shape.query_tokens > 1) return false;  // mma has room for 16
  const bool in_line = call_shape(plan, op).blocks() > gpu.sms;
  if (begins_a_wave(plan, op, gpu)) return false;
  return gpu.warpgroup_products && (!in_line || op.shape.tokens >= kShort) &&
         (plan.heads_per_block <= 4 || plan.splits == 1 ||
          op.shape.tokens > kFewTokens * plan.splits) &&
         !is_by_length(choose_plan(AttentionMma{}, op, gpu));
}

// True if histogram attention, which multiplies all entries once, is expected to be faster than
// simt, which decodes all rows: from this many cache rows on per entry count, and more with raw
// tokens, which need another kernel.
bool bins_pay(const AttentionDecode& op) {
  constexpr std::int64_t kLeastRows = 32768;
  constexpr std::int64_t kRowsPerEntry = 4;
  constexpr std::int64_t kRowsOfRaw = 20480;
  int entries = op.values.entries();
  for_each_part(op.keys, op.shape.head_dim,
                [&](const VqFormat& part, int) { entries = std::max(entries, part.entries()); });
  return std::int64_t{op.shape.batch} * op.shape.kv_heads * op.split_tokens() >=
         kLeastRows + kRowsPerEntry * entries + (op.raw_slots() > 0 ? kRowsOfRaw : 0);
}

// The fastest expected: int8_mma and mma where they run, else histogram or simt.
Plan by_rules(const Problem& problem, const GpuSpec& gpu) {
  if (const auto* append = std::get_if<KvAppend>(&problem)) {
    if (many_new_tokens(*append)) {
      const Plan fragments = of_dataflow(AppendMma{}, problem, gpu);
      if (check(fragments, problem, gpu).ok) return fragments;
    }
    if (vq::visited_tokens(facts(*append)) >= kManyNewTokens) {
      const Plan products = of_dataflow(AppendGemm{}, problem, gpu);
      if (check(products, problem, gpu).ok) return products;
    }
    return of_dataflow(AppendSimt{}, problem, gpu);
  }
  for (const Plan& only :
       {Plan(DequantizeSimt{}), Plan(MergeSimt{}), Plan(ScalarForms{}), Plan(WeightsSimt{})}) {
    if (is_plan_of(only, problem)) return of_dataflow(only, problem, gpu);
  }
  const auto* attention = std::get_if<AttentionDecode>(&problem);
  if (attention == nullptr) {
    const Plan fragments = of_dataflow(LinearMma{}, problem, gpu);
    if (check(fragments, problem, gpu).ok) return fragments;
    return of_dataflow(LinearSimt{}, problem, gpu);
  }
  const AttentionInt8Mma bytes = int8_mma_by_rules(*attention, gpu);
  const bool runs_bytes = check(bytes, *attention, gpu).ok;
  if (runs_bytes && prefers_bytes(bytes, *attention, gpu)) return bytes;
  const Plan fragments = of_dataflow(AttentionMma{}, problem, gpu);
  if (check(fragments, problem, gpu).ok) return fragments;
  if (runs_bytes) return bytes;
  if (bins_pay(*attention)) {
    const Plan bins = of_dataflow(AttentionHistogram{}, problem, gpu);
    if (check(bins, problem, gpu).ok) return bins;
  }
  return of_dataflow(AttentionSimt{}, problem, gpu);
}

// The plan with all fields that the config fixes; what depends on them is as the rules have it.
Plan overridden(const Plan& plan, const Config& config, const GpuSpec& gpu) {
  Plan fixed = with_overrides(plan, config);
  if (auto* bytes = std::get_if<AttentionInt8Mma>(&fixed);
      bytes && !config.plan.contains("fused_basis"))
    fit_basis(*bytes, std::get<AttentionDecode>(config.problem), gpu);
  return fixed;
}

// The plan by rules with all fields that the config fixes: of the dataflow that it names, or of the
// first that has the fields, the rules' own before the others; and where the fields have blocks
// share all sequences, around that.
Plan by_rules(const Config& config, const GpuSpec& gpu) {
  const JsonCursor fields = config.plan_cursor();
  Plan plan = by_rules(config.problem, gpu);
  auto wanted = named_dataflow(fields, config.problem);
  if (!wanted && !has_fields(plan, fields)) {
    const std::vector<Plan> others = dataflows_with(fields, config.problem);
    if (!others.empty()) wanted = others.front();
  }
  if (wanted && wanted->index() != plan.index()) plan = of_dataflow(*wanted, config.problem, gpu);
  const Plan fixed = overridden(plan, config, gpu);
  if (is_by_length(fixed) == is_by_length(plan)) return fixed;
  if (!is_by_length(fixed)) {
    if (!std::holds_alternative<AttentionInt8Mma>(fixed)) return fixed;
    return overridden(of_dataflow(AttentionInt8Mma{}, config.problem, gpu), config, gpu);
  }
  Plan by_length = AttentionMma{.schedule = Schedule::balanced};
  if (std::holds_alternative<AttentionInt8Mma>(fixed))
    by_length = AttentionInt8Mma{.schedule = Schedule::balanced};
  return overridden(of_dataflow(by_length, config.problem, gpu), config, gpu);
}

// The rules' plan with the last block merging where it may and can and no cluster does.
Plan with_last_block(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                     const ChooseOptions& options) {
  if (!options.last_block || merged_as_cluster(plan, problem, gpu) == plan) return plan;
  return merged_by_last_block(plan, problem, gpu).value_or(plan);
}

// The rules place codebooks as the space does not: keys shared once beside copies of values.
Plan cheaper_of(const Plan& of_space, const Plan& by_rule, const Problem& problem,
                const GpuSpec& gpu, const ChooseOptions& options) {
  if (!check(by_rule, problem, gpu).ok) return of_space;
  CostModel model(problem, gpu, options.profiles);
  const std::optional<Cost> cost = model(by_rule);
  return cost && cost->us < model(of_space)->us ? by_rule : of_space;
}

// Lays the config's fixed fields over each plan and returns the feasible one with the lowest score,
// the first on ties. score() returns nullopt for a plan that it cannot judge.
template <class Score>
std::optional<Plan> least_with_overrides(std::span<const Plan> plans, const Config& config,
                                         const GpuSpec& gpu, Score&& score) {
  const std::vector<Plan> dataflows = dataflows_with(config.plan_cursor(), config.problem);
  std::optional<Plan> best;
  double least = 0;
  for (const Plan& plan : plans) {
    const auto same = [&](const Plan& each) { return each.index() == plan.index(); };
    if (std::none_of(dataflows.begin(), dataflows.end(), same)) continue;
    const Plan changed = overridden(plan, config, gpu);
    if (!check(changed, config.problem, gpu).ok) continue;
    const std::optional<double> own = score(changed);
    if (!own || (best && *own >= least)) continue;
    best = changed;
    least = *own;
  }
  return best;
}

// The cheapest of the space's plans.
std::optional<Plan> cheapest_with_overrides(const Config& config, const GpuSpec& gpu,
                                            const ChooseOptions& options) {
  CostModel model(config.problem, gpu, options.profiles);
  const SpaceOptions all{.most = 0, .last_block = options.last_block};
  return least_with_overrides(space(config.problem, gpu, all).plans, config, gpu,
                              [&](const Plan& plan) -> std::optional<double> {
                                if (is_of_rules(plan)) return std::nullopt;
                                const std::optional<Cost> cost = model(plan);
                                return cost ? std::optional(cost->us) : std::nullopt;
                              });
}

// The plan with a balanced schedule that is expected to be fastest with the config's fixed fields;
// nullopt if none is feasible. The model assumes equal lengths and misses the gaps between
// sequences, which blocks of 16 warps, alone on their SM, cannot fill: these are charged kGaps.
std::optional<Plan> cheapest_by_length(const Plan& rules, const Config& config, const GpuSpec& gpu,
                                       const ChooseOptions& options) {
  constexpr double kGaps = 1.06;
  const auto& op = std::get<AttentionDecode>(config.problem);
  if (options.chooser == Chooser::rules) {
    return check(rules, op, gpu).ok ? std::optional(rules) : std::nullopt;
  }
  class ByLength final : public Candidates {
   public:
    using Candidates::Candidates;
    void add(const Plan& plan) override { plans.push_back(plan); }
    std::vector<Plan> plans;
  };
  ByLength all(config.problem, gpu);
  all.add(rules);
  add_candidates(all, AttentionMma{.schedule = Schedule::balanced}, op, SpacePlacement::any);
  if (!config.plan.contains("splits")) {
    for (Plan& each : all.plans) {
      auto fixed = std::get<AttentionMma>(with_overrides(each, config));
      fixed.splits = splits_by_length(op, fixed, gpu);
      each = fixed;
    }
  }
  CostModel model(config.problem, gpu, options.profiles);
  return least_with_overrides(
      all.plans, config, gpu, [&](const Plan& plan) -> std::optional<double> {
        const std::optional<Cost> cost = model(plan);
        if (!cost) return std::nullopt;
        const auto& each = std::get<AttentionMma>(plan);
        const bool filled = each.threads == 256 && resident_by_length(op, each, gpu) > 1 &&
                            call_shape(each, op).blocks() > gpu.sms;
        return filled ? cost->us : kGaps * cost->us;
      });
}

// The plan of the space most like the rules', of its dataflow; the rules' where there is none. The
// config's fields may ask for a paper's method.
Plan nearest_with_overrides(const Plan& rules, const Config& config, const GpuSpec& gpu) {
  std::vector<Plan> plans = space(config.problem, gpu, {.most = 0, .papers = true}).plans;
  std::erase_if(plans, [&](const Plan& plan) { return plan.index() != rules.index(); });
  return least_with_overrides(
             plans, config, gpu,
             [&](const Plan& plan) { return std::optional(distance(plan, rules)); })
      .value_or(rules);
}

}  // namespace

bool is_of_rules(const Plan& plan) {
  return std::holds_alternative<AttentionInt8Mma>(plan) || !knows_dataflow(plan);
}

bool is_by_length(const Plan& plan) {
  const auto* fragments = std::get_if<AttentionMma>(&plan);
  const auto* bytes = std::get_if<AttentionInt8Mma>(&plan);
  return (fragments != nullptr && fragments->schedule == Schedule::balanced) ||
         (bytes != nullptr && bytes->schedule == Schedule::balanced);
}

std::optional<Plan> cheapest_plan(const Problem& problem, const GpuSpec& gpu,
                                  std::span<const AccessCounts> profiles, bool last_block,
                                  const CostProfile& coefficients) {
  Cheapest cheapest(problem, gpu, profiles, last_block, coefficients);
  add_plans(cheapest, SpacePlacement::any);
  return cheapest.best;
}

Plan propose(const Problem& problem, const GpuSpec& gpu, const ChooseOptions& options) {
  require(check(problem), problem);
  const Plan by_rule = by_rules(problem, gpu);
  if (is_by_length(by_rule) && !is_of_rules(by_rule)) {
    Config config;
    config.problem = problem;
    if (const auto best = cheapest_by_length(by_rule, config, gpu, options)) return *best;
  }
  if (options.chooser == Chooser::model && !is_of_rules(by_rule)) {
    const auto best = cheapest_plan(problem, gpu, options.profiles, options.last_block);
    if (best) {
      const Plan merged = with_last_block(by_rule, problem, gpu, options);
      return cheaper_of(*best, merged, problem, gpu, options);
    }
  }
  return with_last_block(by_rule, problem, gpu, options);
}

Plan propose(const Config& config, const GpuSpec& gpu, const ChooseOptions& options) {
  if (config.plan.empty()) return propose(config.problem, gpu, options);
  require(check(config.problem), config.problem);
  // Before the search, to report wrong fields.
  const Plan by_rule = by_rules(config, gpu);
  if (is_by_length(by_rule) && !is_of_rules(by_rule)) {
    if (const auto best = cheapest_by_length(by_rule, config, gpu, options)) return *best;
  }
  if (options.chooser == Chooser::model && !is_of_rules(by_rule)) {
    const auto best = cheapest_with_overrides(config, gpu, options);
    if (best) return *best;
  }
  if (!check(by_rule, config.problem, gpu).ok) return nearest_with_overrides(by_rule, config, gpu);
  if (config.plan.contains("combine")) return by_rule;
  return with_last_block(by_rule, config.problem, gpu, options);
}

Plan choose(const Problem& problem, const GpuSpec& gpu, const ChooseOptions& options) {
  const Plan plan = propose(problem, gpu, options);
  require(check(plan, problem, gpu), problem);
  return plan;
}

std::vector<std::string> runnable_dataflows(const Problem& problem, const GpuSpec& gpu) {
  std::vector<std::string> names;
  Config config;
  config.problem = problem;
  for (const Plan& each : dataflows_with(config.plan_cursor(), problem)) {
    config.plan["dataflow"] = dataflow_name(each);
    const Plan plan = propose(config, gpu, {.chooser = Chooser::rules});
    if (check(plan, problem, gpu).ok) names.emplace_back(dataflow_name(each));
    config.plan = Json::object();
  }
  return names;
}

std::vector<RankedPlan> rank(const Problem& problem, const GpuSpec& gpu,
                             std::span<const AccessCounts> profiles) {
  CostModel model(problem, gpu, profiles);
  std::vector<RankedPlan> ranked;
  const SpaceOptions all{.most = 0, .last_block = kDefaultLastBlock};
  for (const Plan& plan : space(problem, gpu, all).plans) {
    if (const auto cost = model(plan)) ranked.push_back({plan, *cost});
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.cost.us < b.cost.us; });
  return ranked;
}

std::vector<Plan> likely_plans(const Config& config, const GpuSpec& gpu,
                               std::span<const AccessCounts> profiles, std::size_t most) {
  constexpr double kFactorOfTwo = 0.9;  // small numbers count from 1 on
  std::vector<Plan> likely;
  for (const RankedPlan& each : rank(config.problem, gpu, profiles)) {
    if (likely.size() == most) break;
    if (!has_fixed_fields(each.plan, config)) continue;
    const bool like = std::any_of(likely.begin(), likely.end(), [&](const Plan& taken) {
      return taken.index() == each.plan.index() && doublings(taken, each.plan) < kFactorOfTwo;
    });
    if (!like) likely.push_back(each.plan);
  }
  return likely;
}

}  // namespace vqgen
