// The exchange of the mma dataflow, for every size: it brings each word to its place in the fewest
// shuffles possible and matches the record. The device code of the permute fusion does it shuffle
// by shuffle.
#include "heuristics/fusion/exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "core/files/files.h"
#include "tests/host/trial.h"

namespace vqgen {
namespace {

using fusion::Exchange;
using fusion::exchange_of;
using fusion::kLanes;
using fusion::Word;

constexpr std::array kFusions{LinearFusion::permute, LinearFusion::registers, LinearFusion::shared};
constexpr std::array kVectorSizes{2, 4, 8};
constexpr std::array kForms{4, 8};

std::size_t at(int value) { return static_cast<std::size_t>(value); }

template <class Visit>
void for_each_size(Visit&& visit) {
  for (const LinearFusion fusion : kFusions) {
    for (const int v : kVectorSizes) {
      for (const int rows : kForms) {
        SCOPED_TRACE(fmt::format("{}, entries of {}, {} rows", enum_name(fusion), v, rows));
        visit(exchange_of(fusion, v, rows));
      }
    }
  }
}

// [lane][register] of all lanes after the exchange.
template <class T>
std::vector<std::vector<T>> exchanged(const Exchange& exchange,
                                      const std::vector<std::vector<T>>& held) {
  std::vector<std::vector<T>> sources = held;
  for (const fusion::Shuffle& shuffle : exchange.shuffles) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const std::size_t from = lane ^ at(shuffle.mask);
      sources[lane].push_back(held[from].at(at(shuffle.sent[from])));
    }
  }
  std::vector<std::vector<T>> results(kLanes);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    for (const auto& result : exchange.results) {
      results[lane].push_back(sources[lane].at(at(result[lane])));
    }
  }
  return results;
}

std::map<int, int> shuffles_by_mask(const Exchange& exchange) {
  std::map<int, int> counts;
  for (const fusion::Shuffle& shuffle : exchange.shuffles) ++counts[shuffle.mask];
  return counts;
}

// The operand layout of PTX: groupID = lane / 4, threadID in group = lane % 4; row + 8 for a2, a3,
// a6, a7, k + 8 from a4 on. Two products of 16 outputs, or one whose lower rows are the columns
// from 16 on.
TEST(FusionExchange, OperandsAreThoseOfPtx) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 16; i += 2) {
      const int row = lane / 4 + (i % 4 >= 2 ? 8 : 0);
      const int k = lane % 4 * 2 + (i % 8 >= 4 ? 8 : 0);
      EXPECT_EQ(fusion::multiplied(LinearFusion::shared, 8, lane, i / 2),
                (Word{row, k + i / 8 * 16}))
          << lane;
      if (i < 8) {
        EXPECT_EQ(fusion::multiplied(LinearFusion::shared, 4, lane, i / 2),
                  (Word{row % 8, k + row / 8 * 16}))
            << lane;
      }
    }
  }
}

// Each entry is whole in one lane; every word of the step is looked up once and multiplied once,
// and the columns are a permutation.
TEST(FusionExchange, EveryWordIsLookedUpAndMultipliedOnce) {
  for_each_size([](const Exchange& e) {
    std::set<std::pair<int, int>> looked_up, multiplied;
    std::set<int> columns;
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int number = 0; number < e.rows; ++number) {
        const Word word = fusion::looked_up(e.fusion, e.vector_size, lane, number);
        const int words = e.vector_size / 2;
        const int first = number / words * words;
        const Word entry = fusion::looked_up(e.fusion, e.vector_size, lane, first);
        EXPECT_EQ(word, (Word{entry.output, entry.column + (number - first) * 2}));
        EXPECT_EQ(entry.column % e.vector_size, 0);
        looked_up.emplace(word.output, word.column);
        const Word wanted = fusion::multiplied(e.fusion, e.rows, lane, number);
        multiplied.emplace(wanted.output, wanted.column);
      }
    }
    EXPECT_EQ(looked_up.size(), at(kLanes * e.rows));
    EXPECT_EQ(looked_up, multiplied);
    EXPECT_EQ(looked_up.rbegin()->first, 2 * e.rows - 1);
    for (int column = 0; column < fusion::kColumns; ++column) {
      const int of_data = fusion::ordered(e.fusion, column);
      columns.insert(of_data);
      if (e.fusion != LinearFusion::permute) {
        EXPECT_EQ(of_data, column);
      }
      if (column % 2 == 1) {
        EXPECT_EQ(of_data, fusion::ordered(e.fusion, column - 1) + 1);
      }
    }
    EXPECT_EQ(columns.size(), at(fusion::kColumns));
    EXPECT_EQ(*columns.rbegin(), fusion::kColumns - 1);
  });
}

TEST(FusionExchange, ExchangesBringEveryWordToItsPlace) {
  for_each_size([](const Exchange& e) {
    std::vector<std::vector<Word>> held(kLanes), wanted(kLanes);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int number = 0; number < e.rows; ++number) {
        held[at(lane)].push_back(fusion::looked_up(e.fusion, e.vector_size, lane, number));
        wanted[at(lane)].push_back(fusion::multiplied(e.fusion, e.rows, lane, number));
      }
    }
    EXPECT_EQ(exchanged(e, held), wanted);
  });
}

// A shuffle brings a lane one word. Whichever lane looks an entry up, in however many hops: some
// lane keeps at most the mean, over entries, of the words for the lane that an entry serves best.
TEST(FusionExchange, NoChoiceOfLanesTakesFewerShuffles) {
  for (const int v : kVectorSizes) {
    for (const int rows : kForms) {
      std::map<std::pair<int, int>, int> lane_of;  // [output, column]
      for (int lane = 0; lane < kLanes; ++lane) {
        for (int number = 0; number < rows; ++number) {
          const Word word = fusion::multiplied(LinearFusion::registers, rows, lane, number);
          lane_of[{word.output, word.column}] = lane;
        }
      }
      int kept = 0;
      for (int output = 0; output < 2 * rows; ++output) {
        for (int entry = 0; entry < fusion::kColumns; entry += v) {
          std::map<int, int> words;  // by lane
          for (int i = 0; i < v; i += 2) ++words[lane_of.at({output, entry + i})];
          int most = 0;
          for (const auto& [lane, count] : words) most = std::max(most, count);
          kept += most;
        }
      }
      EXPECT_EQ(exchange_of(LinearFusion::registers, v, rows).shuffles.size(),
                at(rows - kept / kLanes))
          << v << ' ' << rows;
    }
  }
}

struct Recorded {
  LinearFusion fusion;
  int vector_size;
  int rows;
  const char* figures;
  std::vector<std::string> moves;  // of the first mini-warp
};

// A search over all orders and assignments found these values; a formula gives them too.
std::vector<Recorded> recorded() {
  constexpr auto kPermute = LinearFusion::permute, kShared = LinearFusion::shared,
                 kRegisters = LinearFusion::registers;
  constexpr auto kNone =
      "fusion in registers: 0 shuffles in 0 steps (bound 0), 0 selects; mini-warps: 32";
  constexpr auto kSpared3 =
      "fusion in shared memory instead of 3 shuffles in 3 steps (bound 3), 21 selects; "
      "mini-warps: 8";
  constexpr auto kSpared6 =
      "fusion in shared memory instead of 6 shuffles in 3 steps (bound 6), 42 selects; "
      "mini-warps: 8";
  std::vector<Recorded> all{
      {kRegisters, 2, 4, kNone, {}},
      {kRegisters, 2, 8, kNone, {}},
      {kRegisters,
       4,
       4,
       "fusion in registers: 2 shuffles in 1 steps (bound 2), 6 selects; mini-warps: 16",
       {"xor 1: 0.r2 <- 1.r0, 1.r0 <- 0.r1", "xor 1: 0.r3 <- 1.r2, 1.r1 <- 0.r3"}},
      {kRegisters,
       4,
       8,
       "fusion in registers: 4 shuffles in 1 steps (bound 4), 12 selects; mini-warps: 16",
       {"xor 1: 0.r2 <- 1.r0, 1.r0 <- 0.r1", "xor 1: 0.r3 <- 1.r4, 1.r1 <- 0.r5",
        "xor 1: 0.r6 <- 1.r2, 1.r4 <- 0.r3", "xor 1: 0.r7 <- 1.r6, 1.r5 <- 0.r7"}},
      {kRegisters,
       8,
       4,
       "fusion in registers: 3 shuffles in 3 steps (bound 3), 21 selects; mini-warps: 8",
       {"xor 1: 0.r2 <- 1.r0, 1.r0 <- 0.r1, 2.r3 <- 3.r2, 3.r1 <- 2.r3",
        "xor 2: 0.r1 <- 2.r0, 1.r3 <- 3.r1, 2.r0 <- 0.r2, 3.r2 <- 1.r3",
        "xor 3: 0.r3 <-> 3.r0, 1.r1 <- 2.r1, 2.r2 <- 1.r2"}},
      {kRegisters,
       8,
       8,
       "fusion in registers: 6 shuffles in 3 steps (bound 6), 42 selects; mini-warps: 8",
       {"xor 1: 0.r2 <- 1.r0, 1.r0 <- 0.r1, 2.r6 <- 3.r2, 3.r4 <- 2.r3",
        "xor 1: 0.r3 <- 1.r4, 1.r1 <- 0.r5, 2.r7 <- 3.r6, 3.r5 <- 2.r7",
        "xor 2: 0.r4 <- 2.r0, 1.r6 <- 3.r1, 2.r0 <- 0.r2, 3.r2 <- 1.r3",
        "xor 2: 0.r5 <- 2.r4, 1.r7 <- 3.r5, 2.r1 <- 0.r6, 3.r3 <- 1.r7",
        "xor 3: 0.r6 <- 3.r0, 1.r4 <- 2.r1, 2.r2 <- 1.r2, 3.r0 <- 0.r3",
        "xor 3: 0.r7 <- 3.r4, 1.r5 <- 2.r5, 2.r3 <- 1.r6, 3.r1 <- 0.r7"}}};
  for (const int v : kVectorSizes) {
    for (const int rows : kForms) {
      all.push_back({kPermute, v, rows, kNone, {}});
      all.push_back({kShared, v, rows, rows == 4 ? kSpared3 : kSpared6, {}});
    }
  }
  return all;
}

TEST(FusionExchange, ExchangesAreTheRecordedOnes) {
  for (const Recorded& each : recorded()) {
    SCOPED_TRACE(fmt::format("{} {} {}", enum_name(each.fusion), each.vector_size, each.rows));
    const std::vector<std::string> lines =
        fusion::draw(exchange_of(each.fusion, each.vector_size, each.rows));
    EXPECT_EQ(lines.at(1), each.figures);
    std::vector<std::string> moves;
    for (const std::string& line : lines) {
      const bool next = moves.size() == each.moves.size();
      if (!next && line.starts_with("  xor ")) moves.push_back(line.substr(2));
    }
    EXPECT_EQ(moves, each.moves);
    const bool permutes = each.fusion == LinearFusion::permute;
    EXPECT_EQ(lines.at(2).starts_with("order of k"), permutes);
    if (permutes) {
      EXPECT_EQ(lines[2],
                "order of k, which whoever shares it must follow: 0 1 8 9 16 17 24 25 4 5 12 13 20 "
                "21 28 29 2 3 10 11 18 19 26 27 6 7 14 15 22 23 30 31");
    }
  }
}

// The figures that docs/internals/dataflows/gemm-mma.md shows.
TEST(FusionExchange, Drawing) {
  EXPECT_EQ(fmt::format("{}\n",
                        fmt::join(fusion::draw(exchange_of(LinearFusion::registers, 8, 4)), "\n")),
            R"(entries of 8 along k -> A of mma.m16n8k16 by halves
fusion in registers: 3 shuffles in 3 steps (bound 3), 21 selects; mini-warps: 8
  dequantizes r0         r1         r2         r3
  thread 0    m0 k0-1    m0 k2-3    m0 k4-5    m0 k6-7
  thread 1    m0 k8-9    m0 k10-11  m0 k12-13  m0 k14-15
  thread 2    m0 k16-17  m0 k18-19  m0 k20-21  m0 k22-23
  thread 3    m0 k24-25  m0 k26-27  m0 k28-29  m0 k30-31
  xor 1: 0.r2 <- 1.r0, 1.r0 <- 0.r1, 2.r3 <- 3.r2, 3.r1 <- 2.r3
  xor 2: 0.r1 <- 2.r0, 1.r3 <- 3.r1, 2.r0 <- 0.r2, 3.r2 <- 1.r3
  xor 3: 0.r3 <-> 3.r0, 1.r1 <- 2.r1, 2.r2 <- 1.r2
  consumes    r0       r1         r2         r3
  thread 0    m0 k0-1  m0 k16-17  m0 k8-9    m0 k24-25
  thread 1    m0 k2-3  m0 k18-19  m0 k10-11  m0 k26-27
  thread 2    m0 k4-5  m0 k20-21  m0 k12-13  m0 k28-29
  thread 3    m0 k6-7  m0 k22-23  m0 k14-15  m0 k30-31
)");
}

// The exchange of fragment_exchange.cuh, each shuffle reported to `counted`.
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

// 4 words of each lane in and out; then the number of shuffles per mask.
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

// One output per lane, in the registers' order of operand A by halves: words 0, 2, 1, 3.
TEST(FusionExchange, TheDeviceCodeIsThisExchange) {
  std::mt19937 random(17);
  std::vector<std::uint32_t> words(4 * kLanes);
  for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
  constexpr std::array kOrder{0, 2, 1, 3};
  for (const int v : kVectorSizes) {
    const Exchange exchange = exchange_of(LinearFusion::registers, v, 4);
    std::vector<std::vector<std::uint32_t>> held(kLanes);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      for (std::size_t i = 0; i < 4; ++i) held[lane].push_back(words[i * kLanes + lane]);
    }
    const auto wanted = exchanged(exchange, held);
    std::map<int, int> expected = shuffles_by_mask(exchange);
    for (const HostOptions& options : host_test::all_orders()) {
      const std::vector<std::uint32_t> got = run_exchange(words, v, options);
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        for (std::size_t r = 0; r < 4; ++r) {
          ASSERT_EQ(got[at(kOrder[r]) * kLanes + lane], wanted[lane][r]) << v << ' ' << lane;
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
