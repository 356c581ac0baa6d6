// Keys and values in parts (VQKV, section 3.1): every op of a cache by lanes, and what the kernels
// make of parts, their channels, words and codebooks.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "quantizer/parts.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/ops/kv_append/reference.h"
#include "runtime/ops/kv_dequantize/reference.h"
#include "runtime/verify/random.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

struct PartShape {
  int channels, vector_size, stages, bits;
  Scope scope = Scope::tensor;
};

struct PartsCase {
  const char* name;
  std::vector<PartShape> parts;
  std::vector<PartShape> values;  // several: in parts
  DType dtype = DType::f16;
  int page_tokens = 0;
  CodeLayout layout = {};
  bool basis = false;     // both centred and rotated
  bool integers = false;  // int8 entries with scales
};

VqFormat format_of(const PartShape& shape, bool integers = false) {
  VqFormat format;
  format.vector_size = shape.vector_size;
  format.num_codebooks = shape.stages;
  format.index_bits = shape.bits;
  format.scope = shape.scope;
  if (integers) with_integers(format, true);
  return format;
}

int head_dim_of(const PartsCase& from) {
  int channels = 0;
  for (const PartShape& part : from.parts) channels += part.channels;
  return channels;
}

// Channels in a random order where there are parts.
VqFormat in_parts(const PartsCase& from, const std::vector<PartShape>& shapes, std::uint64_t seed) {
  if (shapes.size() == 1) return with_layout(format_of(shapes.front(), from.integers), from.layout);
  std::vector<int> order(static_cast<std::size_t>(head_dim_of(from)));
  std::iota(order.begin(), order.end(), 0);
  Random random(seed, 0);
  random.shuffle(order);
  std::vector<VqFormat> parts;
  auto next = order.begin();
  for (const PartShape& shape : shapes) {
    parts.push_back(format_of(shape, from.integers));
    parts.back().channels.assign(next, next + shape.channels);
    next += shape.channels;
  }
  VqFormat format = with_layout(vqgen::in_parts(std::move(parts)), from.layout);
  format.center = format.klt = from.basis;
  return format;
}

// As VQKV has them; narrow beside wide; words that codes do not fill; one part as small as it may
// be; four parts; codebooks of each kind; values in parts; and the parts of KLT caches.
const std::vector<PartsCase>& parts_cases() {
  using enum Scope;
  static const std::vector<PartsCase> cases{
      {"vqkv", {{80, 80, 20, 6}, {48, 48, 16, 5}}, {{128, 128, 8, 6}}},
      {"narrow",
       {{24, 2, 1, 3}, {40, 8, 3, 7, head}},
       {{48, 4, 2, 8, head}, {16, 8, 1, 5}},
       DType::bf16,
       16},
      {"small", {{8, 8, 1, 5, channel_group}, {88, 4, 2, 5}}, {{96, 32, 5, 4}}, DType::f16, 32},
      {"four",
       {{64, 64, 3, 4, head}, {128, 16, 2, 9}, {16, 4, 5, 5, channel_group}, {48, 48, 2, 2}},
       {{64, 2, 1, 6}, {64, 4, 2, 5, head}, {96, 16, 2, 7}, {32, 8, 1, 8, channel_group}},
       DType::bf16},
      {"klt",
       {{32, 2, 1, 8, head}, {32, 4, 1, 8, head}, {64, 8, 1, 8, head}},
       {{32, 2, 1, 8, head}, {32, 4, 1, 8, head}, {64, 8, 1, 8, head}},
       DType::f16,
       16,
       {},
       true,
       true},
      {"klt, wide entries",
       {{16, 2, 1, 8, head}, {32, 4, 2, 8, channel_group}, {16, 16, 1, 8}},
       {{32, 4, 1, 8}, {32, 16, 1, 8, head}},
       DType::bf16,
       0,
       {},
       true,
       true},
      {"pages", {{32, 32, 7, 9, head}, {32, 16, 5, 8}}, {{64, 64, 4, 6}}, DType::f16, 64, {32, 1}},
      {"groups of rows", {{80, 16, 2, 7}, {48, 8, 3, 5}}, {{128, 32, 2, 6}}, DType::f16, 0, {4, 1}},
  };
  return cases;
}

template <class Op>
Op problem_of(const PartsCase& from, std::uint64_t seed) {
  Op op;
  op.dtype = from.dtype;
  op.keys = in_parts(from, from.parts, seed);
  op.values = in_parts(from, from.values, seed + 1000);
  op.shape.batch = 3;
  op.shape.kv_heads = 2;
  op.shape.head_dim = head_dim_of(from);
  op.shape.tokens = 70;
  op.shape.recent_tokens = seed % 3 == 0 ? 0 : 9;
  op.shape.sinks = seed % 4 == 0 ? 0 : 2;
  op.shape.page_tokens = from.page_tokens;
  if constexpr (std::is_same_v<Op, AttentionDecode>) {
    op.shape.query_heads = 6;
    op.shape.query_tokens = seed % 2 == 0 ? 1 : 3;
  }
  if constexpr (std::is_same_v<Op, KvAppend>) op.shape.new_tokens = 5;
  validate(op, from.name);
  return op;
}

class Parts : public SweepTest<> {
 protected:
  // Tests the rules' plan, and the plan with each of `changes`, for the cases that `takes` accepts.
  template <class Op, class P>
  static void expect_right(
      const std::vector<void (*)(P&)>& changes,
      bool (*takes)(const PartsCase&) = [](const PartsCase&) { return true; }) {
    std::uint64_t seed = 1;
    std::vector<SweepCase> cases;
    for (const PartsCase& from : parts_cases()) {
      if (!takes(from)) continue;
      for (std::size_t change = 0; change <= changes.size(); ++change, ++seed) {
        const Op op = problem_of<Op>(from, seed);
        SweepCase each;
        each.name = fmt::format("{}, change {}", from.name, change);
        each.problem = op;
        P plan = rules_plan<P>(op, sweep_gpu());
        if (change > 0) changes[change - 1](plan);
        each.plan = plan;
        ASSERT_TRUE(check(each.plan, op, sweep_gpu()).ok)
            << each.name << ": " << check(each.plan, op, sweep_gpu()).reason;
        each.input.seed = seed;
        each.input.lengths = seed % 5 == 0 ? LengthPattern::full : LengthPattern::ragged;
        each.input.fresh = seed % 4 == 1;
        each.aligned_results = seed % 2 == 0;
        if (from.page_tokens > 0) {
          each.input.page_order = kPageOrders[1 + seed % (kPageOrders.size() - 1)];
        }
        cases.push_back(each);
      }
    }
    for (const SweepCase& each : a_third(cases)) {
      EXPECT_EQ(failure_of(each, *sweep_backend(each.input.seed), sweep_gpu()), "") << each.name;
    }
  }
};

TEST_F(Parts, AttentionByLanes) {
  expect_right<AttentionDecode, AttentionSimt>({
      [](AttentionSimt& plan) {
        plan.splits = 3;
        plan.tiles_in_flight = 1;
        plan.tile_tokens = 8;
      },
      [](AttentionSimt& plan) {
        plan.lanes_per_token = 32;
        plan.splits = 2;
        plan.combine = Combine::last_block;
      },
      [](AttentionSimt& plan) {
        plan.lanes_per_token = 1;
        plan.heads_per_block = 2;
        plan.tile_tokens = 24;
      },
  });
}

TEST_F(Parts, DecodedByLanes) {
  expect_right<KvDequantize, DequantizeSimt>({
      [](DequantizeSimt& plan) { plan.tokens_per_block = 7; },
      [](DequantizeSimt& plan) {
        plan.threads = 96;
        plan.tokens_per_block = 64;
      },
  });
}

TEST_F(Parts, AppendedByLanes) {
  expect_right<KvAppend, AppendSimt>({
      [](AppendSimt& plan) {
        plan.splits = 7;
        plan.tokens_per_block = 2;
      },
      [](AppendSimt& plan) {
        plan.threads = 64;
        plan.warps_along_entries = 2;
        plan.sub_vectors_per_warp = 3;
        plan.tokens_per_block = 5;
      },
  });
}

// Tensor cores take narrow parts, of up to 4 stages and 8 entries at least, and wide ones beside
// them.
TEST_F(Parts, AppendedByEstimates) {
  expect_right<KvAppend, AppendMma>({
                                        [](AppendMma& plan) {
                                          plan.splits = 7;
                                          plan.tokens_per_block = 2;
                                          plan.row_tiles = 2;
                                        },
                                        [](AppendMma& plan) {
                                          plan.threads = 64;
                                          plan.tokens_per_block = 5;
                                          plan.sequences_per_block = 2;
                                        },
                                    },
                                    [](const PartsCase& from) {
                                      const std::string_view name = from.name;
                                      return name == "narrow" || name.starts_with("klt");
                                    });
}

// A format with a codebook per half head, and its equivalent in two parts.
template <class Op>
std::pair<Op, Op> whole_and_halves() {
  Op whole;
  whole.shape.batch = 2;
  whole.shape.kv_heads = 3;
  whole.shape.head_dim = 64;
  whole.shape.tokens = 50;
  whole.shape.recent_tokens = 4;
  whole.keys = format_of({64, 4, 2, 8, Scope::channel_group});
  whole.keys.group_channels = 32;
  whole.values = format_of({64, 8, 1, 6});
  Op halves = whole;
  std::vector<VqFormat> parts(2, format_of({32, 4, 2, 8, Scope::head}));
  for (int i = 0; i < 64; ++i) parts[static_cast<std::size_t>(i / 32)].channels.push_back(i);
  halves.keys = vqgen::in_parts(parts);
  return {whole, halves};
}

// Moves codebooks from [head][half] to [half][head]. The codes of both are equal words.
QuantizedTensor as_halves(const QuantizedTensor& whole, const VqFormat& format) {
  QuantizedTensor halves = whole;
  halves.format = format;
  const auto unit = static_cast<std::ptrdiff_t>(whole.codebooks.size()) / whole.units;
  halves.codebooks.clear();
  for (std::ptrdiff_t half = 0; half < 2; ++half) {
    for (std::ptrdiff_t head = 0; head < whole.heads; ++head) {
      const auto from = whole.codebooks.begin() + (head * 2 + half) * unit;
      halves.codebooks.insert(halves.codebooks.end(), from, from + unit);
    }
  }
  return halves;
}

TEST_F(Parts, OfConsecutiveChannelsAreChannelGroups) {
  const auto [whole, halves] = whole_and_halves<KvDequantize>();
  AttentionData data = make_dequantize_data(whole, {.seed = 3});
  const GpuSpec gpu = sweep_gpu();
  Kernel one(*sweep_backend(), whole, choose(whole, gpu), gpu);
  const DequantizeOutput expected = one.run_dequantize(data);
  data.keys = as_halves(data.keys, halves.keys);
  Kernel two(*sweep_backend(), halves, choose(halves, gpu), gpu);
  const DequantizeOutput actual = two.run_dequantize(data);
  EXPECT_EQ(actual.keys, expected.keys);
  EXPECT_EQ(actual.values, expected.values);
}

TEST_F(Parts, OfConsecutiveChannelsAreAppendedAsChannelGroups) {
  const auto [whole, halves] = whole_and_halves<KvAppend>();
  AppendData data = make_append_data(whole, {.seed = 4});
  const GpuSpec gpu = sweep_gpu();
  Kernel one(*sweep_backend(), whole, rules_plan(AppendSimt{}, whole, gpu), gpu);
  const AppendResult expected = one.run(data);
  data.keys = as_halves(data.keys, halves.keys);
  Kernel two(*sweep_backend(), halves, rules_plan(AppendSimt{}, halves, gpu), gpu);
  const AppendResult actual = two.run(data);
  EXPECT_EQ(actual.key_codes, expected.key_codes);
  EXPECT_EQ(actual.raw_keys, expected.raw_keys);
  EXPECT_EQ(actual.value_codes, expected.value_codes);
}

// Scores do not change if the channels of parts and of queries are reordered alike.
TEST_F(Parts, ChannelsMayHaveOtherNumbers) {
  const PartsCase& from = parts_cases()[1];
  auto op = problem_of<AttentionDecode>(from, 3);
  op.shape.recent_tokens = op.shape.sinks = 0;
  op.shape.query_tokens = 1;
  AttentionData data = make_attention_data(op, {.seed = 5});
  const GpuSpec gpu = sweep_gpu();
  const Plan plan = choose(op, gpu);
  const AttentionOutput expected = Kernel(*sweep_backend(), op, plan, gpu).run(data);
  const int dim = op.shape.head_dim;
  const auto renamed = [&](int channel) { return (channel * 5 + 3) % dim; };
  for (VqFormat& part : op.keys.parts) {
    for (int& channel : part.channels) channel = renamed(channel);
  }
  op.keys = vqgen::in_parts(op.keys.parts);
  data.keys.format = op.keys;
  const std::vector<std::uint16_t> before = data.queries;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const auto row = i / static_cast<std::size_t>(dim) * static_cast<std::size_t>(dim);
    data.queries[row + static_cast<std::size_t>(renamed(static_cast<int>(i - row)))] = before[i];
  }
  expect_same_bits(Kernel(*sweep_backend(), op, plan, gpu).run(data), expected);
}

// Each fault changes one place of the kernel's text.
TEST_F(Parts, WrongPartsAndChannelsAreFoundInAttention) {
  const auto op = problem_of<AttentionDecode>(parts_cases()[1], 2);
  const AttentionData data = make_attention_data(op, {.seed = 31});
  const AttentionResult reference = reference_of(op, data);
  const Plan plan = rules_plan(AttentionSimt{}, op, sweep_gpu());
  const Fault faults[] = {
      {"rest_.dot(lane, token, staged + kTileWords", "rest_.dot(lane, token, staged"},
      {"rest_.accumulate(first, count, codes + kTileWords)",
       "rest_.accumulate(first, count, codes)"},
      {"kPart.of_values ? Plan::config().value_parts", "false ? Plan::config().value_parts"},
      {"+ Rows::kFormat.part.first_channel", ""},
      {"tensor.codebooks += Format::config().part.first_element", "(void)tensor"},
      {" % kPageTokens) + word(kFirstWord)", " % kPageTokens)"},
      {"place_of(channel), row[j]", "channel, row[j]"},
      {"raw_query() + h * kHeadDim + i", "query() + h * kHeadDim + i"}};
  expect_faults_found(op, plan, faults, [&](Kernel& faulty) {
    return is_right(reference, faulty.run(data), op.dtype);
  });
}

TEST_F(Parts, WrongPartsAndChannelsAreFoundInDecodedKeys) {
  const auto op = problem_of<KvDequantize>(parts_cases()[0], 1);
  const AttentionData data = make_dequantize_data(op, {.seed = 32});
  const DequantizeResult reference = reference_dequantize(data);
  const Plan plan = rules_plan(DequantizeSimt{}, op, sweep_gpu());
  const Fault faults[] = {
      {"kChannels.at[kPart.first_channel + channel]", "kChannels.at[channel]"},
      {"kChannels.at[kPart.first_channel + channel]", "kPart.first_channel + channel"},
      {"pairs[i / 2] >> i % 2 * 16", "pairs[i / 2]"},
      {"kFormat.part.first_channel == 0", "kFormat.part.first_channel < 0"},
      {"tensor.codebooks += Format::config().part.first_element", "(void)tensor"},
      {"row(token) +\n             word(kFirstWord)", "row(token)"}};
  expect_faults_found(op, plan, faults, [&](Kernel& faulty) {
    return judge_dequantize(data, reference, faulty.run_dequantize(data)).comparison.ok;
  });
}

TEST_F(Parts, WrongPartsAndChannelsAreFoundInAppendedKeys) {
  const auto op = problem_of<KvAppend>(parts_cases()[0], 1);
  const AppendData data = make_append_data(op, {.seed = 33});
  const Plan plan = rules_plan(AppendSimt{}, op, sweep_gpu());
  const Fault faults[] = {
      {"kChannels.at[kPart.first_channel + channel]", "kChannels.at[channel]"},
      {"number_of(t), channel_of<Operand, Plan>(channel)", "number_of(t), channel"},
      {"load_global(row + channel_of<Operand, Plan>(channel))", "load_global(row + channel)"},
      {"tensor.codebooks += Format::config().part.first_element", "(void)tensor"},
      {"row(token) +\n             word(kFirstWord)", "row(token)"},
      {"share - kShares", "share"}};
  expect_faults_found(op, plan, faults,
                      [&](Kernel& faulty) { return judge_append(data, faulty.run(data)).ok; });
}

}  // namespace
}  // namespace vqgen::test
