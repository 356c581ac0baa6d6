// Plans and kernels: equal plans give equal kernels, each field of a plan is in its kernel, and
// names distinguish kernels.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>

#include "core/plan/plan_name.h"
#include "core/profiles.h"
#include "generator/generate.h"
#include "heuristics/kernels/slice.h"
#include "heuristics/space.h"
#include "tests/core/support.h"
#include "tests/thirds.h"

namespace vqgen {
namespace {

GpuSpec h200() { return find_gpu("h200"); }

KernelSource kernel(const Plan& plan, const Problem& problem) {
  return generate(problem, plan, h200(), Machine::cuda, {});
}
std::string name_of(const Plan& plan, const Problem& problem) {
  return kernel(plan, problem).entries.front().name;
}

Problem product(const char* format, LinearShape shape) {
  Gemm op;
  op.shape = shape;
  op.weights = find_format(format, "test");
  return op;
}

// The spaces of these problems have plans of all dataflows.
std::vector<Problem> problems() {
  AttentionDecode attention;
  attention.shape = {2, 32, 8, 128, 4096};
  attention.keys = find_format("cq-2c8b", "test");
  attention.values = for_values(attention.keys);
  AttentionDecode integers = attention;
  integers.keys = integers.values = find_format("vecinfer-d4b8i8", "test");
  integers.values.smooth = integers.values.hadamard = false;
  AttentionDecode wide = attention;
  wide.keys = find_format("vqkv-llama-3.1-8b-keys", "test");
  wide.values = find_format("vqkv-llama-3.1-8b-values", "test");
  for (VqFormat& part : wide.keys.parts) part.index_bits = 12;
  wide.keys.take_alone();
  wide.values.index_bits = 12;
  KvAppend append;
  append.shape = {.batch = 2, .kv_heads = 8, .head_dim = 128, .tokens = 4096, .new_tokens = 4};
  append.keys = attention.keys;
  append.values = attention.values;
  KvAppend wide_append = append;
  wide_append.shape.new_tokens = 512;
  wide_append.keys = wide.keys;
  wide_append.values = wide.values;
  KvDequantize decode;
  decode.shape = {.batch = 2, .kv_heads = 8, .head_dim = 128, .tokens = 4096};
  decode.keys = attention.keys;
  decode.values = attention.values;
  Int8Quantize matrix;
  matrix.shape = {.tokens = 16384, .channels = 512, .scales = Scales::computed};
  AttentionDecode rotated = integers;
  for (VqFormat* format : {&rotated.keys, &rotated.values}) {
    format->smooth = format->hadamard = false;
    format->center = format->klt = true;
  }
  return {attention,
          integers,
          rotated,
          wide,
          append,
          wide_append,
          decode,
          matrix,
          AttentionMerge{DType::f16, {.rows = 4096, .heads = 32, .head_dim = 128, .parts = 2}},
          WeightDequantize{DType::f16, {4096, 4096, 4096}, find_format("aqlm-2x8", "test")},
          product("aqlm-2x8", {1, 4096, 4096}),
          product("aqlm-2x8", {16, 4096, 4096}),
          product("aqlm-1x16", {1, 4096, 4096}),
          product("aqlm-2x8i8", {16, 4096, 4096}),
          product("aqlm-2x8i8", {4, 256, 16384})};
}

TEST(KernelNames, OfTheSpaceAreDistinctWhereThePlansAre) {
  std::set<std::string> dataflows;
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(to_json(problem).dump());
    const auto [plans, feasible] = space(problem, h200(), {.most = 40, .papers = true});
    ASSERT_EQ(plans.size(), std::min<std::size_t>(feasible, 40));
    ASSERT_GE(plans.size(), 15u);
    std::map<std::string, Plan> by_name;
    for (const Plan& plan : plans) {
      dataflows.insert(std::string(kernel_name(plan)));
      const auto [known, added] = by_name.emplace(name_of(plan, problem), plan);
      EXPECT_TRUE(added) << plan_name(plan) << " and " << plan_name(known->second);
    }
    // A plan gives one kernel, to the byte, whether it is read from its name or from its JSON.
    for (const Plan& plan : plans) {
      const Json name = plan_name(plan);
      const Plan named = read_plan_name(JsonCursor(name, "test"));
      EXPECT_EQ(kernel(named, problem).text, kernel(plan, problem).text);
      const Json json = to_json(plan);
      EXPECT_EQ(name_of(read_plan(JsonCursor(json, "test"), problem), problem),
                name_of(plan, problem));
    }
  }
  EXPECT_EQ(dataflows.size(), kDataflows) << fmt::format("{}", fmt::join(dataflows, " "));
}

// Other values to try for a value.
std::vector<int> other_values(int value) {
  return {value * 2, value / 2, value + 1, value - 1, value + 4, 0, 1, 2, 4, 8, 16, 32, 256};
}
template <class Member>
std::vector<Member> others(const Member& value) {
  if constexpr (std::is_same_v<Member, int>) {
    return other_values(value);
  } else if constexpr (std::is_enum_v<Member>) {
    std::vector<Member> all;
    for (std::size_t i = 0; i < enum_names<Member>.size(); ++i) {
      if (static_cast<Member>(i) != value) all.push_back(static_cast<Member>(i));
    }
    return all;
  } else {
    std::vector<Member> all;
    for_each_field<Member>([&](const auto& field) {
      for (const int each : other_values(value.*field.member)) {
        all.push_back(value);
        all.back().*field.member = each;
      }
    });
    return all;
  }
}

// Two plans that check() accepts and that differ only in `field`; one is from `plans`.
template <class P, class Member>
std::optional<std::pair<P, P>> neighbours(const std::vector<Plan>& plans, const Problem& problem,
                                          const Field<P, Member>& field) {
  for (const Plan& each : plans) {
    const P* plan = std::get_if<P>(&each);
    if (plan == nullptr || !check(each, problem, h200()).ok) continue;
    for (const Member& value : others(plan->*field.member)) {
      P other = *plan;
      other.*field.member = value;
      if (other == *plan || !check(Plan(other), problem, h200()).ok) continue;
      return std::pair(*plan, other);
    }
  }
  return std::nullopt;
}

// Every field has an effect: plans that differ in one field are different kernels.
TEST(KernelNames, TellOfEachFieldOfEachDataflow) {
  std::vector<std::pair<Problem, std::vector<Plan>>> spaces;
  for (const Problem& problem : problems()) {
    std::vector<Plan> plans = space(problem, h200(), {.most = 0, .papers = true}).plans;
    for_each_dataflow([&]<class P>(const P&) {
      if (const auto* op = op_of<P>(problem)) plans.push_back(choose_plan(P{}, *op, h200()));
    });
    spaces.emplace_back(problem, std::move(plans));
  }
  std::uint64_t number = 0;
  for_each_dataflow([&]<class P>(const P& usual) {
    for_each_field<P>([&]<class Member>(const Field<P, Member>& field) {
      if (!test::in_third(number++)) return;
      SCOPED_TRACE(std::string(usual.kName) + " " + field.name);
      bool tried = false;
      for (const auto& [problem, plans] : spaces) {
        const auto pair = neighbours<P, Member>(plans, problem, field);
        if (!pair) continue;
        tried = true;
        EXPECT_NE(Plan(pair->first), Plan(pair->second));
        EXPECT_NE(plan_name(pair->first), plan_name(pair->second));
        EXPECT_NE(name_of(pair->first, problem), name_of(pair->second, problem));
      }
      EXPECT_TRUE(tried);
    });
  });
}

}  // namespace
}  // namespace vqgen
