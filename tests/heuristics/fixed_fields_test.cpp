// propose() around the fields that a config fixes: which dataflow it takes for them.
#include <algorithm>
#include <map>
#include <regex>

#include "core/plan/plan_name.h"
#include "core/profiles.h"
#include "heuristics/choose.h"
#include "heuristics/kernels/slice.h"
#include "heuristics/remedy.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

Plan by_rules(const Json& json, const Json& plan) {
  return propose(with_plan(json, plan), find_gpu("h200"), {.chooser = Chooser::rules});
}

struct Fixed {
  Json plan;
  const char* dataflow;  // that has the fields
};

TEST(FixedFields, AreOfTheRulesDataflowOrTheFirstThatHasThem) {
  const std::vector<Fixed> attention = {
      {{{"threads", 64}}, "mma"},
      {{{"step_tokens", 8}}, "mma"},
      {{{"tile_tokens", 32}}, "simt"},
      {{{"lanes_per_token", 4}}, "simt"},
      {{{"table_bits", 32}}, "lut"},
      {{{"tile_tokens", 32}, {"table_bits", 32}}, "lut"},
      {{{"tile_tokens", 32}, {"key_channel_splits", 2}}, "channels"},
      {{{"dataflow", "lut"}, {"tile_tokens", 32}}, "lut"}};
  for (const Fixed& each : attention) {
    SCOPED_TRACE(each.plan.dump());
    const Plan plan = by_rules(attention_json(), each.plan);
    EXPECT_EQ(dataflow_name(plan), each.dataflow);
    EXPECT_TRUE(is_plan_of(plan, read_config(attention_json(), "c.json").problem));
    for (const auto& [field, value] : each.plan.items()) EXPECT_EQ(to_json(plan)[field], value);
  }
  const std::vector<Fixed> products = {{{{"threads", 64}}, "mma"},
                                       {{{"warps_along_columns", 2}}, "mma"},
                                       {{{"sub_vectors_per_lane", 2}}, "lut"},
                                       {{{"prefetch_steps", 1}}, "wgmma"},
                                       {{{"code_words", 1}, {"fetch_only_warps", 0}}, "wgmma"},
                                       {{{"entry_slices", 2}}, "sliced_codebook"},
                                       {{{"byte_sums", 0}}, "wgmma_large_m"},
                                       {{{"dataflow", "simt"}, {"chunk_columns", 512}}, "simt"}};
  for (const Fixed& each : products) {
    SCOPED_TRACE(each.plan.dump());
    const Plan plan = by_rules(gemv_json(), each.plan);
    EXPECT_EQ(dataflow_name(plan), each.dataflow);
    for (const auto& [field, value] : each.plan.items()) EXPECT_EQ(to_json(plan)[field], value);
  }
}

// The other fields come from that dataflow's own plan, not from the rules' dataflow.
TEST(FixedFields, LieOverTheDataflowsOwnPlan) {
  const auto op = std::get<Gemv>(read_config(gemv_json(), "c.json").problem);
  LinearLut own = choose_plan(LinearLut{}, op, find_gpu("h200"));
  own.sub_vectors_per_lane = 2;
  EXPECT_EQ(by_rules(gemv_json(), {{"sub_vectors_per_lane", 2}}), Plan(own));
  EXPECT_EQ(by_rules(gemv_json(), {{"dataflow", "lut"}, {"sub_vectors_per_lane", 2}}), Plan(own));
}

TEST(FixedFields, OfNoDataflowAreRefused) {
  const auto refused = [](const Json& json, const Json& plan, Chooser chooser) {
    return message_of(
        [&] { propose(with_plan(json, plan), find_gpu("h200"), {.chooser = chooser}); });
  };
  for (const Chooser chooser : {Chooser::rules, Chooser::model}) {
    expect_words(refused(attention_json(), {{"step_tokens", 8}, {"table_bits", 16}}, chooser),
                 {"c.json: /plan/table_bits: unknown field", "dataflow mma has "});
    expect_words(refused(attention_json(), {{"dataflow", "lut"}, {"step_tokens", 8}}, chooser),
                 {"c.json: /plan/step_tokens: unknown field", "dataflow lut has "});
    expect_words(refused(gemv_json(), {{"dataflow", "channels"}}, chooser),
                 {"c.json: /plan/dataflow: 'channels' is none of simt, mma, lut"});
    expect_words(refused(gemv_json(), {{"threads", 8}}, chooser),
                 {"c.json: /plan/threads: ", "from 32 to 1024"});
    expect_words(refused(append_json(), {{"combine", "kernel"}}, chooser),
                 {"c.json: /plan/combine: unknown field", "dataflow simt has "});
  }
}

// Each "use dataflow X" of a refusal is followed here, with every preset, by every op that has
// several dataflows.
TEST(FixedFields, ADataflowThatARefusalNamesTakesTheConfig) {
  const std::regex remedy("use dataflow (\\w+)(?:,? or (?:dataflow )?(\\w+))?");
  int refused = 0, followed = 0;
  const auto follow = [&](const Json& json, const GpuSpec& gpu) {
    Config config;
    try {
      config = read_config(json, "c.json");
    } catch (const Error&) {
      return;  // a format for other operands
    }
    if (!check(config.problem).ok) return;
    std::map<std::string, Verdict> verdicts;
    for (const Plan& each : dataflows_with(config.plan_cursor(), config.problem)) {
      config.plan = {{"dataflow", dataflow_name(each)}};
      const Plan plan = propose(config, gpu, {.chooser = Chooser::rules});
      verdicts[std::string(dataflow_name(each))] = check(plan, config.problem, gpu);
      config.plan = Json::object();
    }
    std::vector<std::string> can;
    for (const auto& [dataflow, verdict] : verdicts) {
      if (verdict.ok) can.push_back(dataflow);
    }
    for (const auto& [dataflow, verdict] : verdicts) {
      if (verdict.ok) continue;
      ++refused;
      const std::string said = with_remedy(verdict.reason, can);
      std::smatch words;
      if (!std::regex_search(said, words, remedy)) continue;
      ++followed;
      for (const std::string& name : {words[1].str(), words[2].str()}) {
        EXPECT_TRUE(name.empty() || name == "dtype" || verdicts[name].ok)
            << gpu.name << " " << json.dump() << "\n"
            << said << "\n"
            << name << ": " << verdicts[name].reason;
      }
    }
  };
  for (const char* gpu : {"t4", "a100", "h200"}) {
    for (const std::string& preset : format_names()) {
      for (const char* dtype : {"f16", "bf16"}) {
        if (find_gpu(gpu).bf16_products && dtype == std::string("bf16")) continue;  // as f16
        for (const int rows : {1, 64}) {
          if (rows == 1 && gpu != std::string("t4")) continue;
          Json product = gemv_json();
          product["op"] = rows > 8 ? "gemm" : "gemv";
          product["dtype"] = dtype;
          product["weights"] = preset;
          product["shape"] = {{"m", rows}, {"out_features", 4096}, {"in_features", 4096}};
          follow(product, find_gpu(gpu));
        }
        if (gpu == std::string("a100")) continue;  // as h200
        Json attention = attention_json();
        attention["dtype"] = dtype;
        attention["keys"] = attention["values"] = preset;
        attention["shape"].update({{"head_dim", 128}, {"recent_tokens", 64}});
        follow(attention, find_gpu(gpu));
        attention["keys"] = "vecinfer-d4b8";
        follow(attention, find_gpu(gpu));
        Json append = append_json();
        append["dtype"] = dtype;
        append["keys"] = append["values"] = preset;
        append["shape"].update({{"head_dim", 128}, {"recent_tokens", 64}});
        follow(append, find_gpu(gpu));
      }
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(followed, 50);
}

TEST(FixedFields, ARemedyThatCannotWorkGivesWay) {
  const std::vector<std::string> can{"simt", "lut"};
  EXPECT_EQ(with_remedy("the rows are 3; use dataflow simt", can),
            "the rows are 3; use dataflow simt");
  EXPECT_EQ(with_remedy("the rows are 3; use dataflow mma, or f16", can),
            "the rows are 3; dataflows that can: simt, lut");
  EXPECT_EQ(with_remedy("the rows are 3; use dataflow lut or simt", can),
            "the rows are 3; use dataflow lut or simt");
  EXPECT_EQ(with_remedy("the rows are 3; use dataflow simt or mma", can),
            "the rows are 3; dataflows that can: simt, lut");
  EXPECT_EQ(with_remedy("the rows are 3", can), "the rows are 3; dataflows that can: simt, lut");
  EXPECT_EQ(with_remedy("the rows are 3; use dataflow mma", {}), "the rows are 3");
}

TEST(FixedFields, RunnableDataflowsAreThoseThatTakeTheConfig) {
  Json product = gemv_json();
  product["weights"] = "aqlm-1x16";
  const Problem problem = read_config(product, "c.json").problem;
  EXPECT_EQ(runnable_dataflows(problem, find_gpu("a100")),
            (std::vector<std::string>{"simt", "mma", "sliced_codebook"}));
  const std::vector<std::string> on_hopper = runnable_dataflows(problem, find_gpu("h200"));
  EXPECT_TRUE(std::find(on_hopper.begin(), on_hopper.end(), "wgmma") != on_hopper.end());
}

// Copies of codebooks are kept: attention by mma has 16 of each entry here.
TEST(FixedFields, TheRulesOwnDataflowNamedChangesNothing) {
  const GpuSpec gpu = find_gpu("h200");
  Json json = attention_json();
  json["shape"]["tokens"] = 16384;
  for (const Json& each : {json, gemv_json()}) {
    const ChooseOptions rules{.chooser = Chooser::rules};
    const Plan plan = propose(read_config(each, "c.json"), gpu, rules);
    const Json named = {{"dataflow", dataflow_name(plan)}};
    EXPECT_EQ(propose(with_plan(each, named), gpu, rules), plan);
  }
}

// The model does not consider plans of other dataflows.
TEST(FixedFields, HoldForTheModelToo) {
  const Json json = edited(gemv_json(), {{"/shape/out_features", "4096"}});
  for (const Fixed& each :
       {Fixed{{{"sub_vectors_per_lane", 1}}, "lut"}, Fixed{{{"warps_along_columns", 2}}, "mma"}}) {
    const Config config = with_plan(json, each.plan);
    const Plan plan = propose(config, find_gpu("h200"), {.chooser = Chooser::model});
    EXPECT_EQ(dataflow_name(plan), each.dataflow);
    EXPECT_TRUE(has_fields(plan, config.plan_cursor()));
    EXPECT_TRUE(check(plan, config.problem, find_gpu("h200")).ok);
    EXPECT_EQ(with_overrides(plan, config), plan);
  }
}

// A batch of sequences of up to `tokens`, with these fields of its shape and its plan.
Config long_batch(std::int64_t tokens, const Json& plan, const Json& shape = Json::object()) {
  Json json = attention_json();
  json["shape"] = {{"batch", 32}, {"query_heads", 32}, {"kv_heads", 8}, {"head_dim", 128}};
  json["shape"]["tokens"] = tokens;
  json["shape"].update(shape);
  return with_plan(json, plan);
}

AttentionMma by_length(const Config& config, Chooser chooser, const char* gpu = "h200") {
  const Plan chosen = propose(config, find_gpu(gpu), {.chooser = chooser});
  EXPECT_TRUE(check(chosen, config.problem, find_gpu(gpu)).ok);
  return std::get<AttentionMma>(chosen);
}

const Json kNoFields = Json::object();
const Json kByLength = {{"schedule", "balanced"}};

// Balanced blocks, which share all sequences, fill the GPU once, two per SM, whatever the capacity.
// Batches of short sequences must ask for them; long ones have them by default.
TEST(FixedFields, BlocksByLengthFillTheGpuOnce) {
  for (const Chooser chooser : {Chooser::rules, Chooser::model}) {
    SCOPED_TRACE(enum_name(chooser));
    const AttentionMma plan = by_length(long_batch(32768, kByLength), chooser);
    EXPECT_EQ(plan.schedule, Schedule::balanced);
    EXPECT_EQ(plan.threads, 256);
    EXPECT_EQ(plan.splits, 2 * 132 / 8);
    EXPECT_EQ(by_length(long_batch(131072, kNoFields), chooser), plan);
    EXPECT_EQ(by_length(long_batch(131072, kByLength), chooser), plan);
    for (const Config& each :
         {long_batch(32768, kNoFields), long_batch(131072, {{"schedule", "per_sequence"}})}) {
      EXPECT_EQ(by_length(each, chooser).schedule, Schedule::per_sequence);
    }
  }
}

TEST(FixedFields, BlocksByLengthAreFittedAroundFixedFields) {
  Json asked = {{"schedule", "balanced"}, {"threads", 512}};
  EXPECT_EQ(by_length(long_batch(32768, asked), Chooser::model).splits, 132 / 8);
  asked["splits"] = 7;
  const AttentionMma plan = by_length(long_batch(32768, asked), Chooser::model);
  EXPECT_EQ(plan.splits, 7);
  EXPECT_EQ(plan.threads, 512);
}

// Blocks of 16 heads take too many registers for a second block per SM. If two blocks would have
// half of the codebook copies, one of 16 warps has all.
TEST(FixedFields, BlocksByLengthStandAloneWhereTwoHaveNoRoom) {
  for (const Chooser chooser : {Chooser::rules, Chooser::model}) {
    const auto plan = by_length(long_batch(131072, kNoFields, {{"query_tokens", 4}}), chooser);
    EXPECT_EQ(plan.schedule, Schedule::balanced);
    EXPECT_EQ(plan.heads_per_block, 16);
    EXPECT_EQ(plan.splits, 132 / 8);
  }
  const AttentionMma plan = by_length(long_batch(131072, kNoFields), Chooser::model, "l40s");
  EXPECT_EQ(plan.threads, 512);
  EXPECT_EQ(plan.splits, find_gpu("l40s").sms / 8);
  EXPECT_EQ(plan.key_codebook.copies, 16);
}

// INT8 spills more registers, the more tokens a step has.
TEST(FixedFields, StepsByLengthLeaveInt8ItsRegisters) {
  Config config = long_batch(131072, kNoFields, {{"query_heads", 64}});
  auto& op = std::get<AttentionDecode>(config.problem);
  op.keys = op.values = find_format("int8-channel", "test");
  EXPECT_EQ(by_length(config, Chooser::model).step_tokens, 8);
}

// The rules have placements that the space lacks: copies of values beside keys without copies.
TEST(FixedFields, TheRulesPlanByLengthIsAmongThoseCompared) {
  Config config = long_batch(131072, kNoFields, {{"batch", 4}});
  auto& op = std::get<AttentionDecode>(config.problem);
  op.keys = find_format("cq-8c8b", "test");
  const GpuSpec gpu = find_gpu("h200");
  const Plan rules = propose(op, gpu, {.chooser = Chooser::rules});
  ASSERT_TRUE(is_by_length(rules));
  CostModel model(op, gpu, {});
  EXPECT_LE(model(propose(op, gpu))->us, model(rules)->us);
}

// If fixed fields rule out the balanced schedule, the plan has another dataflow or goes by
// sequence.
TEST(FixedFields, ThatBlocksByLengthCannotHaveAreOfOthers) {
  const GpuSpec gpu = find_gpu("h200");
  for (const Json& shape : {kNoFields, Json({{"query_tokens", 4}})}) {
    const Config config = long_batch(131072, {{"splits", 1}}, shape);
    const Plan plan = propose(config, gpu, {.chooser = Chooser::model});
    EXPECT_FALSE(is_by_length(plan));
    EXPECT_TRUE(check(plan, config.problem, gpu).ok);
  }
  EXPECT_TRUE(is_by_length(propose(long_batch(131072, kNoFields), gpu)));
  const Json wide = {{"schedule", "balanced"}, {"threads", 512}};
  for (const Chooser chooser : {Chooser::rules, Chooser::model}) {
    const auto plan = by_length(long_batch(131072, wide, {{"query_tokens", 4}}), chooser);
    EXPECT_LE(plan.heads_per_block, 8);
  }
}

}  // namespace
}  // namespace vqgen
