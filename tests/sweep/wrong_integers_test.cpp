// Wrong integers in device memory: whatever they are, kernels write only to their results and
// workspace, and read only their arguments. The library's host backend refuses them; these launches
// bypass it, as nothing checks them on a GPU.
//
// Caches are full, so that each entry of a block table is a page.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
constexpr std::size_t kGuard = 4096;

class WrongIntegers : public SweepTest<> {
 protected:
  // One launch with `wrong` as the integers of `args.*member`.
  template <class Args>
  struct Change {
    const std::int32_t* Args::*member;
    std::vector<std::int32_t> wrong;
  };

  template <class Op>
  static Problem problem_of(const Op& op) {
    if constexpr (std::is_same_v<Op, Linear>)
      return as_problem(op);
    else
      return op;
  }

  // Integers that no caller should pass to attention.
  static std::vector<Change<vq::AttentionDecodeArgs>> changes_of(int query_tokens) {
    std::vector<Change<vq::AttentionDecodeArgs>> changes{
        {&vq::AttentionDecodeArgs::lengths, {kMost, 200, 5}},
        {&vq::AttentionDecodeArgs::lengths, {201, kLeast, kMost - 1}},
        {&vq::AttentionDecodeArgs::recent_counts, {-1, kLeast, kMost}},
        {&vq::AttentionDecodeArgs::sinks, {-40, kLeast, kMost}}};
    if (query_tokens > 1) {
      changes.push_back({&vq::AttentionDecodeArgs::query_start, {0, kMost, 2, 3}});
      changes.push_back({&vq::AttentionDecodeArgs::query_start, {kLeast, -1, 0, 2}});
      changes.push_back({&vq::AttentionDecodeArgs::query_start, {2, 1, 0, -5}});
      changes.push_back({&vq::AttentionDecodeArgs::query_start, {kMost, kLeast, kMost, 3}});
      changes.push_back({&vq::AttentionDecodeArgs::query_start, {3, 0, 3, 0}});
    }
    return changes;
  }

  // A read or a write elsewhere is a fault on the host, and under memcheck.
  template <class Args, class Op, class Data>
  static void expect_kept(const Op& op, const Plan& plan, const Data& data,
                          const std::vector<Change<Args>>& changes) {
    Backend& backend = *sweep_backend();
    const Problem problem = problem_of(op);
    const Verdict verdict = check(plan, problem, sweep_gpu());
    ASSERT_TRUE(verdict.ok) << verdict.reason;
    Kernel kernel(backend, problem, plan, sweep_gpu());
    for (const Change<Args>& change : changes) {
      SCOPED_TRACE(to_json(plan).dump() + " " + testing::PrintToString(change.wrong));
      DeviceCall call(backend, op, data, {}, {}, kGuard);
      std::vector<std::byte> bytes = call.args(plan).front();
      const DeviceBuffer wrong(backend, change.wrong.size() * sizeof(std::int32_t));
      backend.upload(wrong.data(), std::as_bytes(std::span(change.wrong)));
      Args args;
      std::memcpy(&args, bytes.data(), sizeof(args));
      args.*change.member = static_cast<const std::int32_t*>(wrong.data());
      std::memcpy(bytes.data(), &args, sizeof(args));
      ASSERT_NO_THROW(kernel.launch(bytes));
      // Counters that a stopped kernel left are not damage.
      const auto damage = call.take_damage().value_or("");
      EXPECT_TRUE(damage.empty() || damage.find("counters") != std::string::npos) << damage;
    }
  }
};

AttentionDecode attention(int query_tokens) {
  AttentionDecode op;
  op.shape = {.batch = 3,
              .query_heads = 4,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 200,
              .recent_tokens = 20,
              .sinks = 3,
              .query_tokens = query_tokens};
  op.keys = op.values = {.vector_size = 4, .index_bits = 6};
  return op;
}

std::vector<Plan> plans_of(const AttentionDecode& op) {
  AttentionSimt lanes{.splits = 3};
  AttentionMma fragments{.splits = 3};
  auto by_length = rules_plan<AttentionMma>(op, sweep_gpu());
  by_length.splits = 4;
  by_length.schedule = Schedule::balanced;
  AttentionMma whole{.splits = 1};
  auto lut = rules_plan<AttentionLut>(op, sweep_gpu());
  lut.splits = 2;
  return {lanes, fragments, by_length, whole, AttentionChannels{.splits = 2}, lut};
}

// Two halves of a head's channels, each with such codebooks.
VqFormat two_parts(const VqFormat& half, int head_dim) {
  std::vector<VqFormat> parts{half, half};
  for (int i = 0; i < head_dim; ++i) {
    parts[static_cast<std::size_t>(2 * i / head_dim)].channels.push_back(i);
  }
  return in_parts(std::move(parts));
}

// What changes the code that looks at tokens: pages, blocks that leave the window at once, and
// rows in a basis or in parts.
template <class Op>
std::vector<Op> kinds_of(const Op& plain) {
  std::vector<Op> kinds;
  const auto add = [&](const auto& change) {
    kinds.push_back(plain);
    change(kinds.back());
    validate(kinds.back(), "wrong integers");
  };
  add([](Op& op) { op.shape.page_tokens = 16; });
  add([](Op& op) { op.shape.flush_block = 4; });
  add([](Op& op) {
    op.shape.page_tokens = 32;
    op.shape.flush_block = 4;
  });
  add([](Op& op) {
    for (VqFormat* each : {&op.keys, &op.values}) each->center = each->klt = true;
  });
  add([](Op& op) {
    for (VqFormat* each : {&op.keys, &op.values}) {
      *each = two_parts(*each, op.shape.head_dim);
      each->center = each->klt = true;
    }
  });
  return kinds;
}

TEST_F(WrongIntegers, OfAttentionWriteNothingElsewhere) {
  std::uint64_t number = 0;
  for (const int query_tokens : {1, 3}) {
    for (const bool fresh : {false, true}) {
      if (fresh && query_tokens == 1) continue;
      const AttentionDecode op = attention(query_tokens);
      const AttentionData data =
          make_attention_data(op, {.seed = 7, .lengths = LengthPattern::full, .fresh = fresh});
      for (const Plan& plan : a_third(plans_of(op), third_after(number++))) {
        expect_kept(op, plan, data, changes_of(query_tokens));
      }
    }
  }
}

TEST_F(WrongIntegers, OfAttentionByBytesWriteNothingElsewhere) {
  for (const int query_tokens : {1, 3}) {
    AttentionDecode op = attention(query_tokens);
    op.keys = op.values = {.vector_size = 4, .index_bits = 8};
    with_integers(op.keys, true);
    with_integers(op.values, true);
    const AttentionData data = make_attention_data(
        op, {.seed = 7, .lengths = LengthPattern::full, .fresh = query_tokens > 1});
    const auto changes = changes_of(query_tokens);
    AttentionInt8Mma plan{.threads = 64, .heads_per_block = 2};
    if (query_tokens > 1) plan.heads_per_block = op.group() * std::min(3, 8 / op.group());
    expect_kept(op, plan, data, changes);
    plan.splits = 3;
    expect_kept(op, plan, data, changes);
    plan.schedule = Schedule::balanced;
    expect_kept(op, plan, data, changes);
  }
}

TEST_F(WrongIntegers, OfAttentionOfEachKindWriteNothingElsewhere) {
  for (const AttentionDecode& op : a_third(kinds_of(attention(3)))) {
    const AttentionData data =
        make_attention_data(op, {.seed = 7, .lengths = LengthPattern::full, .fresh = true});
    for (const Plan& plan : plans_of(op)) {
      const Verdict verdict = check(plan, op, sweep_gpu());
      if (!verdict.ok) {
        EXPECT_TRUE(op.keys.in_parts()) << verdict.reason;  // which are simt's and int8_mma's
        continue;
      }
      expect_kept(op, plan, data, changes_of(3));
    }
  }
}

TEST_F(WrongIntegers, OfAttentionByBytesOfEachKindWriteNothingElsewhere) {
  AttentionDecode plain = attention(1);
  plain.keys = plain.values = {.vector_size = 4, .index_bits = 8};
  with_integers(plain.keys, true);
  with_integers(plain.values, true);
  for (const AttentionDecode& op : a_third(kinds_of(plain))) {
    const AttentionData data = make_attention_data(op, {.seed = 7, .lengths = LengthPattern::full});
    expect_kept(op, Plan(AttentionInt8Mma{.threads = 64, .splits = 3, .heads_per_block = 2}), data,
                changes_of(1));
  }
}

TEST_F(WrongIntegers, OfAttentionByHistogramWriteNothingElsewhere) {
  AttentionDecode op = attention(1);
  op.keys = wide(16, 3, 6);
  op.values = wide(64, 2, 5);
  for (const bool parts : {false, true}) {
    if (parts) op.keys = two_parts(wide(16, 3, 6), op.shape.head_dim);
    const AttentionData data = make_attention_data(op, {.seed = 7, .lengths = LengthPattern::full});
    auto plan = rules_plan<AttentionHistogram>(op, sweep_gpu());
    plan.splits = 2;
    expect_kept(op, plan, data, changes_of(1));
  }
}

TEST_F(WrongIntegers, OfAppendsWriteNothingElsewhere) {
  using Args = vq::KvAppendArgs;
  KvAppend op;
  op.shape = {.batch = 3,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 70,
              .new_tokens = 5,
              .recent_tokens = 9,
              .sinks = 2};
  op.keys = op.values = {.vector_size = 4, .index_bits = 6};
  const std::vector<Change<Args>> changes{{&Args::positions, {kMost, kMost - 3, kLeast}},
                                          {&Args::positions, {69, 70, 71}},
                                          {&Args::counts, {kMost, kLeast, 6}}};
  const auto expect_all = [&](const KvAppend& each, const std::vector<Plan>& dataflows) {
    const AppendData data = make_append_data(each, {.seed = 8});
    for (const Plan& plan : dataflows) {
      expect_kept(each, rules_plan(plan, each, sweep_gpu()), data, changes);
    }
  };
  expect_all(op, {AppendSimt{}, AppendMma{}});
  for (const KvAppend& each : a_third(kinds_of(op))) {
    expect_all(each, {AppendSimt{}});
    if (!each.keys.in_parts()) expect_all(each, {AppendMma{}});
  }
  op.keys = wide(32, 3, 6);
  op.values = wide(64, 2, 5);
  expect_all(op, {AppendGemm{}});
  op.shape.page_tokens = 16;
  op.shape.flush_block = 4;
  expect_all(op, {AppendGemm{}});
}

TEST_F(WrongIntegers, OfDecodingWriteNothingElsewhere) {
  using Args = vq::KvDequantizeArgs;
  KvDequantize op;
  op.shape = {
      .batch = 3, .kv_heads = 2, .head_dim = 64, .tokens = 70, .recent_tokens = 9, .sinks = 2};
  op.keys = op.values = {.vector_size = 4, .index_bits = 6};
  const AttentionData data = make_dequantize_data(op, {.seed = 9, .lengths = LengthPattern::full});
  const std::vector<Change<Args>> changes{{&Args::lengths, {kMost, kLeast, 71}},
                                          {&Args::recent_counts, {-1, kLeast, kMost}},
                                          {&Args::sinks, {-40, kLeast, kMost}}};
  expect_kept(op, rules_plan(DequantizeSimt{}, op, sweep_gpu()), data, changes);
  for (const KvDequantize& each : a_third(kinds_of(op))) {
    expect_kept(each, rules_plan(DequantizeSimt{}, each, sweep_gpu()),
                make_dequantize_data(each, {.seed = 9, .lengths = LengthPattern::full}), changes);
  }
}

TEST_F(WrongIntegers, OfExpertsWriteNothingElsewhere) {
  using Args = vq::LinearArgs;
  const auto product = [](int index_bits, int num_codebooks) {
    Linear op = small_product(3, index_bits, num_codebooks);
    op.shape.experts = 4;
    op.shape.total_rows = 9;
    return op;
  };
  const std::vector<Change<Args>> changes{{&Args::expert_rows, {0, kMost, kLeast, 9, 9}},
                                          {&Args::expert_rows, {9, 6, 3, 0, -1}},
                                          {&Args::expert_rows, {0, 9, 0, 9, 0}},
                                          {&Args::expert_rows, {-5, 4, 4, 4, kMost}}};
  Linear bytes = product(8, 2);
  with_integers(bytes.weights, true);
  bytes.weights.common_scale = true;
  const std::vector<std::pair<Plan, Linear>> cases{
      {LinearSimt{}, product(6, 1)},  {LinearMma{}, product(6, 1)},
      {LinearLut{}, product(6, 1)},   {LinearSlicedCodebook{}, product(8, 1)},
      {LinearWgmma{}, product(8, 1)}, {LinearWgmmaLargeM{}, product(8, 2)},
      {LinearInt8Mma{}, bytes},       {LinearInt8Wgmma{}, bytes}};
  for (const auto& [plan, op] : cases) {
    if (needs_warpgroups(plan) && !sweep_gpu().warpgroup_products) continue;
    const LinearData data = make_linear_data(op, {.seed = 10});
    Plan own = rules_plan(plan, as_problem(op), sweep_gpu());
    for (const bool last : {false, true}) {
      if (last) {
        change_own(
            own, [](auto& each) requires requires {
              each.combine = Combine{};
              each.splits = 1;
            } {
              each.splits = 2;
              each.combine = Combine::last_block;
            });
        if (!check(own, as_problem(op), sweep_gpu()).ok) continue;
      }
      expect_kept(op, own, data, changes);
    }
  }
}

}  // namespace
}  // namespace vqgen::test
