// Where pages stand, how many tokens they have, and who shares them changes nothing.
#include <gtest/gtest.h>

#include <cstring>

#include "generator/generate.h"
#include "tests/message_of.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

class Pages : public testing::Test {
 protected:
  void SetUp() override {
    if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
  }
};

AttentionDecode attention_problem(int page_tokens) {
  AttentionDecode op;
  op.shape = {.batch = 4,
              .query_heads = 8,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 600,
              .window = 30,
              .sinks = 3,
              .page_tokens = page_tokens};
  op.keys = {.vector_size = 4, .index_bits = 7, .residuals = 2, .scope = Scope::head};
  op.keys.smooth = op.keys.hadamard = true;
  op.values = {.vector_size = 8, .index_bits = 9};
  return op;
}

// Each dataflow's, for contiguous rows: pages change no plan.
std::vector<Plan> attention_plans() {
  const AttentionDecode op = attention_problem(0);
  std::vector<Plan> plans;
  for (const Plan& like : {Plan{AttentionLanes{}}, Plan{AttentionTables{}},
                           Plan{AttentionChannels{}}, Plan{AttentionFragments{}}}) {
    plans.push_back(rules_plan(like, op, sweep_gpu()));
    EXPECT_TRUE(check(plans.back(), op, sweep_gpu()).ok) << dataflow_name(like);
    change_own(
        plans.back(), [](auto& own) requires requires { own.splits; } {
          own.threads = 64;
          own.splits = 2;
        });
  }
  return plans;
}

// Each seed draws an order of the pool, places, and which equal pages are one.
TEST_F(Pages, OrderSizeAndSharingChangeNoBit) {
  const std::vector<Plan> plans = attention_plans();
  AttentionData data =
      make_attention_data(attention_problem(256), {.seed = 3, .lengths = LengthPattern::ragged});
  for (const Plan& plan : plans) {
    SCOPED_TRACE(dataflow_name(plan));
    std::optional<AttentionOutput> first;
    for (const int page_tokens : {256, 16, 64}) {
      Kernel kernel(*sweep_backend(), attention_problem(page_tokens), plan, sweep_gpu());
      for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        data.paging_seed = seed;
        const AttentionOutput out = kernel.run(data);
        if (first) expect_same_bits(*first, out);
        if (!first) first = out;
      }
    }
    // Without pages the last step of a sequence stands elsewhere: by fragments alone sums differ.
    const AttentionOutput plain =
        Kernel(*sweep_backend(), attention_problem(0), plan, sweep_gpu()).run(data);
    if (!std::holds_alternative<AttentionFragments>(plan)) expect_same_bits(*first, plain);
  }
}

TEST_F(Pages, ThoseOfAPrefixAreShared) {
  const AttentionDecode op = attention_problem(16);
  AttentionData data = make_attention_data(op, {.seed = 3, .lengths = LengthPattern::ragged});
  const auto pages_of = [&](bool shared) {
    return make_pool(data.keys, data.values, data.lengths, 16, shared, Random(1)).pages;
  };
  EXPECT_LT(pages_of(true), pages_of(false)) << "no two sequences begin alike";
}

TEST_F(Pages, DecodedRowsAreThoseOfContiguousCodes) {
  const AttentionDecode like = attention_problem(16);
  KvDecode op{.dtype = like.dtype, .shape = {}, .keys = like.keys, .values = like.values};
  op.shape = {.batch = 4, .kv_heads = 2, .head_dim = 64, .tokens = 600, .window = 30, .sinks = 3};
  AttentionData data = make_decode_data(op, {.seed = 8, .lengths = LengthPattern::ragged});
  const Plan plan = rules_plan(DecodeLanes{}, op, sweep_gpu());
  const DecodeOutput plain = Kernel(*sweep_backend(), op, plan, sweep_gpu()).run_decode(data);
  for (const int page_tokens : {16, 128}) {
    op.shape.page_tokens = page_tokens;
    Kernel kernel(*sweep_backend(), op, plan, sweep_gpu());
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      data.paging_seed = seed;
      const DecodeOutput out = kernel.run_decode(data);
      EXPECT_EQ(out.keys, plain.keys);
      EXPECT_EQ(out.values, plain.values);
    }
  }
}

TEST_F(Pages, AppendedRowsAreThoseOfContiguousCodes) {
  const AttentionDecode like = attention_problem(16);
  KvAppend op{.dtype = like.dtype, .shape = {}, .keys = like.keys, .values = like.values};
  op.shape = {.batch = 4, .kv_heads = 2, .head_dim = 64, .tokens = 100, .new_tokens = 40};
  AppendData data = make_append_data(op, {.seed = 8, .lengths = LengthPattern::ragged});
  const Plan plan = rules_plan(AppendLanes{}, op, sweep_gpu());
  const AppendResult plain = Kernel(*sweep_backend(), op, plan, sweep_gpu()).run(data);
  for (const int page_tokens : {16, 64}) {
    op.shape.page_tokens = page_tokens;
    Kernel kernel(*sweep_backend(), op, plan, sweep_gpu());
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      data.paging_seed = seed;
      const AppendResult out = kernel.run(data);
      EXPECT_EQ(out.key_codes, plain.key_codes);
      EXPECT_EQ(out.value_codes, plain.value_codes);
    }
  }
}

// A kernel that takes the next entry of the table reads another sequence's page or none.
TEST_F(Pages, AWrongPageIsFound) {
  if (sweep_backend()->machine() == Machine::cuda) GTEST_SKIP() << "it would read anywhere";
  const AttentionDecode op = attention_problem(16);
  const AttentionData data = make_attention_data(op, {.seed = 3});
  for (const Plan& plan : attention_plans()) {
    SCOPED_TRACE(dataflow_name(plan));
    KernelSource source = generate(op, plan, sweep_gpu(), Machine::host, {});
    const bool fragments = std::holds_alternative<AttentionFragments>(plan);
    const std::string right =
        fragments ? "number < last_page_ ? number : last_page_" : "number / kPageTokens);";
    const std::string wrong = fragments ? "number" : "number / kPageTokens + 1);";
    ASSERT_NE(source.text.find(right), std::string::npos);
    source.text.replace(source.text.find(right), right.size(), wrong);
    const auto kernel = sweep_backend()->load(sweep_backend()->compile(source), source);
    message_of([&] { execute(*sweep_backend(), *kernel, source, op, plan, data); },
               ErrorKind::device);
  }
}

// What is written beside the rows of a pool is found.
TEST_F(Pages, ARowInAPageOfNobodyIsFound) {
  if (sweep_backend()->machine() == Machine::cuda) GTEST_SKIP() << "it would write anywhere";
  const AttentionDecode like = attention_problem(16);
  KvAppend op{.dtype = like.dtype, .shape = {}, .keys = like.keys, .values = like.values};
  op.shape = {.batch = 1, .kv_heads = 1, .head_dim = 64, .tokens = 20, .page_tokens = 16};
  const AppendData data = make_append_data(op, {.seed = 8});
  const Plan plan = rules_plan(AppendLanes{}, op, sweep_gpu());
  KernelSource source = generate(op, plan, sweep_gpu(), Machine::host, {});
  const std::string right = "paged_row(tensor, number % kPageTokens)";
  ASSERT_NE(source.text.find(right), std::string::npos);
  source.text.replace(source.text.find(right), right.size(),
                      "paged_row(tensor, number % kPageTokens + 3)");  // past the last row
  const auto kernel = sweep_backend()->load(sweep_backend()->compile(source), source);
  const std::string why =
      message_of([&] { execute(*sweep_backend(), *kernel, source, op, plan, data); },
                 ErrorKind::verification_failed);
  EXPECT_NE(why.find("no row's of a sequence"), std::string::npos) << why;
}

}  // namespace
}  // namespace vqgen::test
