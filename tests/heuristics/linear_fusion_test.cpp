// The fusion of products: the solver's figures for what the kernels look up and multiply, the
// paper's choice, and that the device code of fusion registers is the solver's exchange, step by
// step.
#include "heuristics/ops/linear_fusion.h"

#include <fmt/format.h>

#include <map>

#include <vq/layout/linear.h>

#include "core/files.h"
#include "core/profiles.h"
#include "heuristics/explain_fusion.h"
#include "heuristics/ops/linear.h"
#include "tests/heuristics/fusion_check.h"
#include "tests/host/trial.h"

namespace vqgen {
namespace {

using fusion::at;
using fusion::Exchange;

constexpr std::array kVectorSizes{2, 4, 8};
constexpr std::array kForms{4, 8};

// Of one product; a step of pairs has two.
std::map<int, int> shuffles_by_mask(const Exchange& exchange) {
  std::map<int, int> counts;
  for (const fusion::Shuffle& shuffle : exchange.shuffles) ++counts[shuffle.mask];
  return counts;
}

// Entries of 8 take steps 1, 2, 3; of 4 one; of 2 none: and no other choice of who looks up what
// would take fewer.
TEST(LinearFusion, RegistersTakeThePapersSteps) {
  for (const int rows : kForms) {
    const int products = rows / 4;
    const std::map<int, std::map<int, int>> expected{
        {2, {}}, {4, {{1, 2 * products}}}, {8, {{1, products}, {2, products}, {3, products}}}};
    for (const int v : kVectorSizes) {
      SCOPED_TRACE(fmt::format("entries of {}, {} rows", v, rows));
      const Exchange exchange = fragment_exchange(LinearFusion::registers, v, rows);
      EXPECT_EQ(fault_of(exchange, {}), "");
      EXPECT_EQ(shuffles_by_mask(exchange), expected.at(v));
      EXPECT_EQ(exchange.fewest, static_cast<int>(exchange.shuffles.size()));
      EXPECT_EQ(enum_name(exchange.fusion), "registers");
      const Exchange loose =
          fusion::solve(looked_up(LinearFusion::registers, v, rows), multiplied(rows));
      EXPECT_EQ(loose.shuffles.size(), exchange.shuffles.size());
      EXPECT_EQ(loose.fewest, exchange.fewest);
    }
  }
}

// Whole octets a lane, as for other fusions, would make narrow entries as dear as wide ones.
TEST(LinearFusion, LookingUpOwnOctetsTakesThreeStepsWhateverTheEntry) {
  for (const int v : kVectorSizes) {
    const Exchange exchange = fragment_exchange(LinearFusion::shared, v, 4);
    EXPECT_EQ(fault_of(exchange, {}), "");
    EXPECT_EQ(shuffles_by_mask(exchange), (std::map<int, int>{{1, 1}, {2, 1}, {3, 1}})) << v;
    EXPECT_EQ(enum_name(exchange.fusion), "shared");
  }
}

TEST(LinearFusion, PermuteNeedsNoShuffle) {
  for (const int rows : kForms) {
    for (const int v : kVectorSizes) {
      const Exchange exchange = fragment_exchange(LinearFusion::permute, v, rows);
      EXPECT_EQ(fault_of(exchange, {"k"}), "");
      EXPECT_TRUE(exchange.shuffles.empty()) << v << ' ' << rows;
    }
  }
}

TEST(LinearFusion, TheThresholdDecidesForThePaper) {
  const std::map<int, int> shuffles{{2, 0}, {4, 2}, {8, 3}};
  for (const auto& [v, count] : shuffles) {
    EXPECT_EQ(fusion_by_shuffles(v), LinearFusion::registers) << v;
    EXPECT_EQ(fusion_by_shuffles(v, count + 1), LinearFusion::registers) << v;
    EXPECT_EQ(fusion_by_shuffles(v, count), LinearFusion::shared) << v;
  }
}

Gemm product(const char* format) {
  Gemm op;
  op.shape = {.rows = 8, .out_features = 512, .in_features = 1024};
  op.weights = find_format(format, "test");
  return op;
}

TEST(LinearFusion, ThePaperExchangesAndOursPermutes) {
  const GpuSpec gpu = find_gpu("h200");
  for (const char* format : {"aqlm-2x8", "gptvq-2", "quip-4"}) {
    const Gemm op = product(format);
    LinearPlan plan = choose_fragments(op, gpu).value();
    EXPECT_EQ(plan.fusion, LinearFusion::permute);
    const Plan papers = with_paper_fusion(plan, op, gpu);
    EXPECT_TRUE(check(papers, op, gpu).ok);
    plan.fusion = LinearFusion::registers;
    EXPECT_EQ(papers, Plan(plan));
  }
  const Gemm op = product("gptvq-2");
  EXPECT_EQ(with_paper_fusion(choose_lanes(op, gpu), op, gpu), Plan(choose_lanes(op, gpu)));
}

// Four lanes that share octets of 8 words a load each hold 32 words: too many to stream.
TEST(LinearFusion, WhatCheckRefusesGoesThroughSharedMemory) {
  const GpuSpec gpu = find_gpu("h200");
  Gemm op;
  op.shape = {.rows = 8, .out_features = 512, .in_features = 1024};
  op.weights = {.vector_size = 2, .index_bits = 16, .residuals = 4, .scope = Scope::tensor};
  LinearPlan plan{.dataflow = LinearDataflow::fragments, .outputs_per_warp = 16};
  plan.chunk_columns = 64;
  ASSERT_TRUE(check(plan, op, gpu).ok) << check(plan, op, gpu).reason;
  plan.fusion = LinearFusion::registers;
  const Verdict verdict = check(plan, op, gpu);
  EXPECT_FALSE(verdict.ok);
  EXPECT_NE(verdict.reason.find("32 words"), std::string::npos) << verdict.reason;
  EXPECT_NE(verdict.reason.find("another fusion"), std::string::npos) << verdict.reason;
  plan.fusion = LinearFusion::permute;
  EXPECT_EQ(std::get<LinearPlan>(with_paper_fusion(plan, op, gpu)).fusion, LinearFusion::shared);
}

TEST(LinearFusion, ExplainDrawsTheChosenOne) {
  const Gemm op = product("aqlm-2x8");
  LinearPlan plan{.dataflow = LinearDataflow::fragments};
  const auto text_of = [&](LinearFusion chosen) {
    plan.fusion = chosen;
    std::string text;
    for (const std::string& line : fusion_lines(plan, op)) text += line + "\n";
    return text;
  };
  const auto has = [](const std::string& text, const char* words) {
    return text.find(words) != std::string::npos;
  };
  const std::string permuted = text_of(LinearFusion::permute);
  EXPECT_TRUE(has(permuted, "0 shuffles between") && has(permuted, "order of k,")) << permuted;
  const std::string exchanged = text_of(LinearFusion::registers);
  EXPECT_TRUE(has(exchanged, "6 shuffles between lookup and tensor core, 3 a product"));
  EXPECT_TRUE(has(exchanged, "xor 3: ") && !has(exchanged, "order of k,")) << exchanged;
  const std::string shared = text_of(LinearFusion::shared);
  EXPECT_TRUE(has(shared, "1024 bytes of shared memory a warp")) << shared;
  EXPECT_TRUE(has(shared, "fusion in shared memory instead of 6 shuffles"));
  EXPECT_TRUE(has(shared, "dequantizes") && !has(shared, "xor")) << shared;
}

// Octets of 16 bytes that shared memory serves at once stand in 8 different groups of 4 banks.
TEST(LinearFusion, TilesHaveNoBankConflicts) {
  const auto expect_apart = [](const std::vector<int>& places) {
    std::set<int> groups;
    for (const int place : places) groups.insert(place % 8);
    EXPECT_EQ(groups.size(), 8u);
  };
  std::set<int> places;
  for (int at_once = 0; at_once < 4; ++at_once) {
    std::vector<int> stored, pairs, halves;
    for (int i = 0; i < 8; ++i) {
      stored.push_back(vq::tile_place(at_once * 2 + i / 4, i % 4));
      pairs.push_back(vq::tile_place(i, at_once));
      halves.push_back(vq::tile_place(i / 2, i % 2 * 2 + at_once % 2));
    }
    places.insert(stored.begin(), stored.end());
    expect_apart(stored);
    expect_apart(pairs);
    expect_apart(halves);
  }
  EXPECT_EQ(places.size(), 32u);
  EXPECT_EQ(*places.rbegin(), 31);
}

// The exchange of fragment_exchange.cuh, each shuffle told to `counted`.
std::string device_exchange() {
  std::string text =
      read_text(std::filesystem::path(VQGEN_SOURCE_DIR) / "templates/vq/ops/fragment_exchange.cuh");
  const std::size_t begin = text.find("namespace vq {");
  text = text.substr(begin, text.find("template <class Plan>") - begin) + "}\n";
  for (std::size_t i = text.find("shuffle_xor("); i != std::string::npos;
       i = text.find("shuffle_xor(", i + 20)) {
    text.replace(i, 11, "counted_shuffle");
  }
  return R"(
namespace vq {
static u32 counts[4];
VQ_DEVICE u32 counted_shuffle(u32 value, int mask) {
  if (lane() == 0) counts[mask] += 1;
  return shuffle_xor(value, mask);
}
}
)" + text;
}

// 4 words of each lane in, and out; then how many shuffles each mask had.
std::vector<std::uint32_t> run_exchange(const std::vector<std::uint32_t>& words, int vector_size,
                                        const HostOptions& options) {
  host_test::Trial trial;
  trial.threads = 32;
  trial.in = words;
  trial.out_words = 4 * 32 + 4;
  trial.text = device_exchange() + fmt::format(R"(
VQ_KERNEL(trial, 32, Args) {{
  if (vq::lane() == 0) for (vq::u32& count : vq::counts) count = 0;
  vq::u32 words[4];
  for (int i = 0; i < 4; ++i) words[i] = vq::load_global(args.in + i * 32 + vq::lane());
  vq::sync_block();
  vq::exchange_words<{}>(words);
  for (int i = 0; i < 4; ++i) vq::store_global(args.out + i * 32 + vq::lane(), words[i]);
  vq::sync_block();
  if (vq::lane() < 4) vq::store_global(args.out + 128 + vq::lane(), vq::counts[vq::lane()]);
}}
)",
                                               vector_size / 2);
  return host_test::run(trial, options);
}

// One output a lane, in the registers' order of operand A by halves: words 0, 2, 1, 3.
TEST(LinearFusion, TheDeviceCodeIsTheSolversExchange) {
  std::mt19937 random(17);
  std::vector<std::uint32_t> words(4 * 32);
  for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
  constexpr std::array kOrder{0, 2, 1, 3};
  for (const int v : kVectorSizes) {
    const Exchange exchange = fragment_exchange(LinearFusion::registers, v, 4);
    fusion::Registers held(32);
    for (std::size_t lane = 0; lane < 32; ++lane) {
      for (std::size_t i = 0; i < 4; ++i) held[lane].push_back(words[i * 32 + lane]);
    }
    const fusion::Registers wanted = fusion::exchanged(exchange, held);
    std::map<int, int> expected = shuffles_by_mask(exchange);
    for (const HostOptions& options : host_test::all_orders()) {
      const std::vector<std::uint32_t> got = run_exchange(words, v, options);
      for (std::size_t lane = 0; lane < 32; ++lane) {
        for (std::size_t r = 0; r < 4; ++r) {
          ASSERT_EQ(got[at(kOrder[r]) * 32 + lane], wanted[lane][r]) << v << ' ' << lane;
        }
      }
      for (int mask = 0; mask < 4; ++mask) {
        EXPECT_EQ(static_cast<int>(got[at(128 + mask)]), expected[mask]) << v << " xor " << mask;
      }
    }
  }
}

}  // namespace
}  // namespace vqgen
