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
  Cheapest(const Problem& of, const GpuSpec& on, std::span<const AccessCounts> profiles,
           bool last_block, const CostProfile& coefficients)
      : Candidates(of, on), model_(of, on, profiles, coefficients), last_block_(last_block) {}

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
  double us_ = 0;  // of the best
};

// Of one sequence 64 tokens take lanes 0.6 times as long, 256 twice (H200). Of several, of which
// fragments takes a few into one block, us on an H100 by lanes and fragments: a token of 32
// sequences 6.4 and 7.4, of 64 10.5 and 8.2, of 128 19.4 and 8.9; 64 tokens of 8 sequences 10.2
// and 11.2, of 2 10.2 and 13.5. Where tokens leave the window in batches, most calls encode none.
constexpr int kManyNewTokens = 128;
constexpr int kManySequences = 64;

bool many_new_tokens(const KvAppend& op) {
  if (vq::visited_tokens(facts(op)) >= kManyNewTokens) return true;
  const std::int64_t of_all = std::int64_t{op.shape.new_tokens} * op.shape.batch;
  return op.shape.flush_block == 1 &&
         (of_all >= kManyNewTokens || op.shape.batch >= kManySequences);
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
  // Those on tensor cores are bound by passes through shared memory, of which copies spare some.
  const bool on_tensor_cores = std::holds_alternative<AttentionMma>(plan) ||
                               std::holds_alternative<LinearMma>(plan) ||
                               std::holds_alternative<LinearWgmma>(plan);
  if (!on_tensor_cores || !check(plan, problem, gpu).ok) return plan;
  const bool attention = std::holds_alternative<AttentionDecode>(problem);
  return with_copies_where_they_win(plan, problem, gpu, attention ? kWorthwhile : kClearly);
}

// Whether this plan of attention by bytes is expected to be faster than fragments, by what was
// measured beside it (docs/lab/attention-int8.md): by 2 to 37 % where all blocks stand side
// by side, by 7 % where they stand in line (64 x 8192, H200), unless they are short (128 x 512 took
// 27 us where fragments took 23, H100), or long ones that leave most of a second wave empty (144 of
// 16384 tokens 78.0 and 66.7, 192 of 20000 94.8 and 85.5, H200; docs/lab/attention-int8.md).
// Blocks of more than a quad of heads were slower where they
// share a sequence and have few tokens of it (64 query and 8 KV heads, 1 x 32768: 15.6 and 14.8 us,
// but 40 and 5, 3 x 50000, 26.5 and 28.0), or have not all heads of their KV head, as those of
// fragments may (120 and 8, 2 x 38275, head_dim 64: 26.6 and 21.7). Sequences that may be long and
// of different lengths are shared by length, which fragments alone do.
bool prefers_bytes(const AttentionInt8Mma& plan, const AttentionDecode& op, const GpuSpec& gpu) {
  constexpr int kShort = 1024;  // tokens
  constexpr std::int64_t kFewTokens = 4096;
  if (plan.heads_per_block > 4 && plan.heads_per_block < op.group()) return false;
  constexpr std::int64_t kLong = 8192;
  const std::int64_t blocks = call_shape(plan, op).blocks();
  const bool in_line = blocks > gpu.sms;
  const bool begins_a_wave = in_line && 2 * blocks <= std::int64_t{3} * gpu.sms;
  if (begins_a_wave && plan.splits == 1 && op.shape.tokens >= kLong) return false;
  return gpu.warpgroup_products && (!in_line || op.shape.tokens >= kShort) &&
         (plan.heads_per_block <= 4 || plan.splits == 1 ||
          op.shape.tokens > kFewTokens * plan.splits) &&
         !is_by_length(choose_plan(AttentionMma{}, op, gpu));
}

// Whether bins, which multiply all entries once, take less than lanes, which decode all rows: from
// so many rows of the cache on, these of each entry, and some more with raw tokens, which are a
// kernel of their own with bins. Measured at one sequence on an H100, 8 heads, 4096 entries (VQKV's
// stages), lanes / bins: 0.73 at 4096 tokens, 1.18 at 8192, 2.1 at 16,384; with 1024 raw tokens
// 0.56, 0.94, 1.69. Of 65,536 entries 1.0 at 32,768 tokens, by kernels before these.
bool bins_pay(const AttentionDecode& op) {
  constexpr std::int64_t kLeastRows = 32768;
  constexpr std::int64_t kRowsPerEntry = 4;
  constexpr std::int64_t kRowsOfRaw = 20480;
  int entries = op.values.entries();
  for_each_part(op.keys, op.shape.head_dim,
                [&](const VqFormat& part, int) { entries = std::max(entries, part.entries()); });
  return std::int64_t{op.shape.batch} * op.shape.kv_heads * op.shape.tokens >=
         kLeastRows + kRowsPerEntry * entries + (op.raw_slots() > 0 ? kRowsOfRaw : 0);
}

// The one that is expected to be the fastest: bytes and fragments where they can run, else bins of
// more than few tokens, else lanes; to append few tokens lanes.
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
  if (std::holds_alternative<KvDequantize>(problem))
    return of_dataflow(DequantizeSimt{}, problem, gpu);
  if (std::holds_alternative<AttentionMerge>(problem)) {
    return of_dataflow(MergeSimt{}, problem, gpu);
  }
  if (as_scalar(problem) != nullptr) return of_dataflow(ScalarForms{}, problem, gpu);
  const auto* attention = std::get_if<AttentionDecode>(&problem);
  if (attention == nullptr) {
    const Plan fragments = of_dataflow(LinearMma{}, problem, gpu);
    if (check(fragments, problem, gpu).ok) return fragments;
    return of_dataflow(LinearSimt{}, problem, gpu);
  }
  const AttentionInt8Mma bytes = choose_plan(AttentionInt8Mma{}, *attention, gpu);
  if (check(bytes, *attention, gpu).ok && prefers_bytes(bytes, *attention, gpu)) return bytes;
  const Plan fragments = of_dataflow(AttentionMma{}, problem, gpu);
  if (check(fragments, problem, gpu).ok) return fragments;
  if (bins_pay(*attention)) {
    const Plan bins = of_dataflow(AttentionHistogram{}, problem, gpu);
    if (check(bins, problem, gpu).ok) return bins;
  }
  return of_dataflow(AttentionSimt{}, problem, gpu);
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
  const Plan fixed = with_overrides(plan, config);
  if (!is_by_length(fixed) || is_by_length(plan)) return fixed;
  const AttentionMma by_length{.schedule = Schedule::balanced};
  return with_overrides(of_dataflow(by_length, config.problem, gpu), config);
}

// The rules' plan with the last block merging where it may and can and no cluster does.
Plan with_last_block(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                     const ChooseOptions& options) {
  if (!options.last_block || merged_as_cluster(plan, problem, gpu) == plan) return plan;
  return merged_by_last_block(plan, problem, gpu).value_or(plan);
}

// The rules place codebooks in ways that the space has not: keys shared once beside copies of
// values.
Plan cheaper_of(const Plan& of_space, const Plan& by_rule, const Problem& problem,
                const GpuSpec& gpu, const ChooseOptions& options) {
  if (!check(by_rule, problem, gpu).ok) return of_space;
  CostModel model(problem, gpu, options.profiles);
  const std::optional<Cost> cost = model(by_rule);
  return cost && cost->us < model(of_space)->us ? by_rule : of_space;
}

// Of the plans with the config's own fields over them that check() accepts, the one of the least
// score, the first of equals; score() may have none.
template <class Score>
std::optional<Plan> least_with_overrides(std::span<const Plan> plans, const Config& config,
                                         const GpuSpec& gpu, Score&& score) {
  const std::vector<Plan> dataflows = dataflows_with(config.plan_cursor(), config.problem);
  std::optional<Plan> best;
  double least = 0;
  for (const Plan& plan : plans) {
    const auto same = [&](const Plan& each) { return each.index() == plan.index(); };
    if (std::none_of(dataflows.begin(), dataflows.end(), same)) continue;
    const Plan changed = with_overrides(plan, config);
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

// Of the plans whose blocks share all sequences, the rules' among them, the one that is expected to
// be the fastest with the fields that the config fixes; nothing where none can run with them. The
// model takes sequences to be equally long, and does not know the gaps where a block goes from one
// to the next, which two blocks of 8 warps fill for each other. Blocks of 16 warps, which are
// alone, it has a few percent ahead; in batches of long and short sequences they took 0.92 to 1.20
// times as long, 1.06 in the mean of 22 (H200, docs/lab/mixed-lengths.md).
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

// The one most like the rules' plan of the space's plans of its dataflow; that plan where there is
// none.
Plan nearest_with_overrides(const Plan& rules, const Config& config, const GpuSpec& gpu) {
  std::vector<Plan> plans = space(config.problem, gpu, {.most = 0}).plans;
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
  return fragments != nullptr && fragments->schedule == Schedule::balanced;
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
  if (is_by_length(by_rule)) {
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
  // Before the search, so that what is wrong with the fields is said.
  const Plan by_rule = by_rules(config, gpu);
  if (is_by_length(by_rule)) {
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
  constexpr double kFactorOfTwo = 0.9;  // of small numbers, which count from one on
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
