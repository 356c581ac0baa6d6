// Which sizes an op has kernels for.
#include "runtime/library/record.h"

#include "core/profiles.h"
#include "heuristics/check.h"
#include "tests/library/fake_backend.h"

namespace vqgen::library::test {
namespace {

std::vector<std::int64_t> sizes(const std::vector<BucketPlan>& buckets) {
  std::vector<std::int64_t> sizes;
  for (const BucketPlan& each : buckets) sizes.push_back(each.most);
  return sizes;
}

using Sizes = std::vector<std::int64_t>;

Config gemm(int rows) {
  Json json = edited(gemv_json(), {{"/shape/m", std::to_string(rows)}});
  json["op"] = "gemm";
  return read_config(json, "gemm");
}
Config attention(std::int64_t tokens) {
  return read_config(edited(attention_json(), {{"/shape/tokens", std::to_string(tokens)}}),
                     "attention");
}

TEST(Buckets, RowsArePowersOfTwoAndTheLargest) {
  const GpuSpec gpu = find_gpu("h200");
  EXPECT_EQ(sizes(plan_buckets(gemm(20), gpu, 8)), (Sizes{1, 2, 4, 8, 16, 20}));
  EXPECT_EQ(sizes(plan_buckets(gemm(16), gpu, 8)), (Sizes{1, 2, 4, 8, 16}));
  EXPECT_EQ(sizes(plan_buckets(gemm(16), gpu, 2)), (Sizes{8, 16}));
  const auto all = plan_buckets(gemm(2), gpu, 8);
  ASSERT_EQ(sizes(all), (Sizes{1, 2}));
  EXPECT_EQ(op_name(all[0].config.problem), "gemv");
  EXPECT_EQ(op_name(all[1].config.problem), "gemm");
}

TEST(Buckets, TheDefaultKeepsTheOneRowOfTheLargestProduct) {
  vqgen_options options;
  vqgen_options_init(&options);
  EXPECT_EQ(options.max_buckets, RegistryOptions{}.max_buckets);
  const auto buckets = plan_buckets(gemm(256), find_gpu("h200"), options.max_buckets);
  EXPECT_EQ(sizes(buckets), (Sizes{1, 2, 4, 8, 16, 32, 64, 128, 256}));
}

TEST(Buckets, TokensHaveAKernelAPlanAndAllAreFeasible) {
  const GpuSpec gpu = find_gpu("h200");
  const auto buckets = plan_buckets(attention(100'000), gpu, 8);
  ASSERT_GE(buckets.size(), 2u);
  EXPECT_EQ(buckets.back().most, 100'000);
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    EXPECT_TRUE(check(buckets[i].plan, buckets[i].config.problem, gpu).ok);
    EXPECT_EQ(size_of(buckets[i].config.problem), buckets[i].most);
    if (i > 0) {
      EXPECT_LT(buckets[i - 1].most, buckets[i].most);
      EXPECT_NE(buckets[i - 1].plan, buckets[i].plan);
    }
  }
  // A fixed plan is one plan for all sizes.
  Config fixed = attention(100'000);
  fixed.plan = to_json(buckets.back().plan);
  EXPECT_EQ(sizes(plan_buckets(fixed, gpu, 8)), Sizes{100'000});
}

TEST(Buckets, SizesThatAFixedFieldForbidsAreLeftToTheNext) {
  Config config = gemm(16);
  config.plan = parse_json(R"({"rows_per_block": 16})", "plan");
  const auto buckets = plan_buckets(config, find_gpu("h200"), 8);
  EXPECT_EQ(buckets.back().most, 16);
  for (const BucketPlan& each : buckets) {
    EXPECT_EQ(to_json(each.plan)["rows_per_block"], 16);
  }
}

TEST(Buckets, TheScanFindsTheLeastThatHoldsTheSize) {
  const auto all = plan_buckets(gemm(20), find_gpu("h200"), 8);
  for (std::int64_t rows = 0; rows <= 21; ++rows) {
    const std::size_t index = bucket_index(all, rows);
    if (rows > 20) {
      EXPECT_EQ(index, all.size());
      continue;
    }
    EXPECT_GE(all[index].most, rows);
    EXPECT_TRUE(index == 0 || all[index - 1].most < rows);
  }
}

TEST(Buckets, EnumerateGivesThePlansThatARangeReaches) {
  FakeRuntime fake({.max_buckets = 8});
  const std::string config = to_json(gemm(20).problem).dump();
  const auto enumerate = [&](std::int64_t least, std::int64_t most) {
    return sizes(fake.registry().enumerate(config, least, most));
  };
  EXPECT_EQ(enumerate(1, 20), (Sizes{1, 2, 4, 8, 16, 20}));
  EXPECT_EQ(enumerate(3, 8), (Sizes{4, 8}));
  EXPECT_EQ(enumerate(9, 9), (Sizes{16}));
  EXPECT_NE(message_of([&] { enumerate(1, 21); }), "");
  EXPECT_NE(message_of([&] { enumerate(0, 4); }), "");
  EXPECT_NE(message_of([&] { enumerate(5, 4); }), "");
  EXPECT_EQ(fake.backend->compilations, 0);
  char* text = nullptr;
  ASSERT_EQ(vqgen_enumerate(&fake.runtime, config.c_str(), 1, 2, &text), VQGEN_OK);
  EXPECT_EQ(parse_json(text, "enumerated").size(), 2u);
  vqgen_text_free(text);
  EXPECT_EQ(vqgen_enumerate(&fake.runtime, config.c_str(), 2, 1, &text), VQGEN_BAD_INPUT);
  EXPECT_EQ(text, nullptr);
}

}  // namespace
}  // namespace vqgen::library::test
