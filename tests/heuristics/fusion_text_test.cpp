// The printed device function, compiled and run on the host backend in several lane orders, against
// exchanged(): known, pinned and random exchanges.
#include "heuristics/fusion/exchange_text.h"

#include <fmt/format.h>

#include <bit>

#include "tests/heuristics/fusion_check.h"
#include "tests/host/trial.h"

namespace vqgen::fusion {
namespace {

// Runs all exchanges in one kernel of a warp: exchange i reads its registers behind those of the
// exchanges before it, [register][lane].
void expect_text_runs_alike(const std::vector<Exchange>& exchanges) {
  host_test::Trial trial;
  trial.threads = 32;
  std::string calls;
  std::vector<std::uint32_t> expected;
  std::mt19937 random(11);
  for (std::size_t i = 0; i < exchanges.size(); ++i) {
    const Exchange& exchange = exchanges[i];
    const auto registers = at(exchange.consumer.registers);
    const std::size_t period = std::bit_ceil(at(exchange.consumer.threads));
    trial.text += exchange_text(exchange, fmt::format("exchange{}", i));
    calls += fmt::format(
        "  {{\n    vq::u32 r[{0}];\n    for (int i = 0; i < {0}; ++i) r[i] = "
        "vq::load_global(args.in + {1} + i * 32 + lane);\n    exchange{2}(r);\n    for (int i = 0; "
        "i < {0}; ++i) vq::store_global(args.out + {1} + i * 32 + lane, r[i]);\n  }}\n",
        registers, trial.in.size(), i);
    const std::size_t start = trial.in.size();
    for (std::size_t n = 0; n < registers * 32; ++n)
      trial.in.push_back(static_cast<std::uint32_t>(random()));
    expected.resize(trial.in.size());
    for (std::size_t first = 0; first < 32; first += period) {
      Registers held(at(exchange.consumer.threads));
      for (std::size_t t = 0; t < held.size(); ++t) {
        for (std::size_t r = 0; r < registers; ++r) {
          held[t].push_back(trial.in[start + r * 32 + first + t]);
        }
      }
      const Registers results = exchanged(exchange, held);
      for (std::size_t t = 0; t < held.size(); ++t) {
        for (std::size_t r = 0; r < registers; ++r) {
          expected[start + r * 32 + first + t] = results[t][r];
        }
      }
    }
  }
  trial.text += "VQ_KERNEL(trial, 32, Args) {\n  const int lane = vq::lane();\n" + calls + "}\n";
  trial.out_words = expected.size();
  for (const HostOptions& options : host_test::all_orders()) {
    std::vector<std::uint32_t> got = host_test::run(trial, options);
    std::size_t start = 0;
    for (const Exchange& exchange : exchanges) {  // threads beyond the layout's are nobody's
      const std::size_t period = std::bit_ceil(at(exchange.consumer.threads));
      for (std::size_t n = 0; n < at(exchange.consumer.registers) * 32; ++n) {
        if (n % period >= at(exchange.consumer.threads)) got[start + n] = expected[start + n];
      }
      start += at(exchange.consumer.registers) * 32;
    }
    ASSERT_EQ(got, expected);
  }
}

TEST(ExchangeText, RunsAsTheSimulationSays) {
  const FragmentLayout a = mma_a(Mma::m16n8k16), b = mma_b(Mma::m16n8k16, 1, 2);
  std::vector<Exchange> exchanges;
  for (const int v : {2, 4, 8}) {
    exchanges.push_back(solve(dequantized({"m", 16}, {"k", 16}, v), a));
    exchanges.push_back(solve(dequantized({"m", 16}, {"k", 16}, v), a, {.pinned = true}));
    exchanges.push_back(solve(dequantized({"n", 8}, {"k", 32}, v), b, {.free_axes = {"k"}}));
  }
  exchanges.push_back(solve(dequantized({"n", 24}, {"k", 32}, 8), mma_b(Mma::m16n8k16, 3, 2)));
  std::mt19937 random(3);
  for (const auto& [threads, registers, entry] : std::vector<std::array<int, 3>>{{1, 3, 1},
                                                                                 {2, 2, 2},
                                                                                 {3, 4, 2},
                                                                                 {4, 4, 4},
                                                                                 {8, 3, 3},
                                                                                 {12, 2, 2},
                                                                                 {16, 6, 3},
                                                                                 {32, 5, 5}}) {
    FragmentLayout consumer;
    consumer.axes = {{"e", threads * registers}};
    consumer.threads = threads;
    consumer.registers = registers;
    consumer.slots = 1;
    consumer.elements = counted(threads * registers);
    FragmentLayout producer = consumer;
    producer.entry_registers = entry;
    shuffle_all(producer.elements, random);
    exchanges.push_back(solve(producer, consumer));
  }
  for (const Exchange& exchange : exchanges) EXPECT_EQ(fault_of(exchange, {"k"}), "");
  expect_text_runs_alike(exchanges);
}

TEST(ExchangeText, IsStraightLineCode) {
  const std::string text =
      exchange_text(solve(dequantized({"n", 8}, {"k", 16}, 4), mma_b(Mma::m16n8k16)), "exchange");
  EXPECT_EQ(text, R"(// entries of 4 along k -> B of mma.m16n8k16: 1 shuffles, 3 selects.
VQ_DEVICE void exchange(vq::u32 (&r)[2]) {
  const int lane = vq::lane();
  const bool c0 = (0xaaaaaaaau >> lane & 1u) != 0;
  const bool c1 = (0x55555555u >> lane & 1u) != 0;
  const vq::u32 x0 = vq::shuffle_xor(c0 ? r[0] : r[1], 1);
  const vq::u32 y0 = c1 ? r[0] : x0;
  const vq::u32 y1 = c0 ? r[1] : x0;
  r[0] = y0;
  r[1] = y1;
}
)");
}

}  // namespace
}  // namespace vqgen::fusion
