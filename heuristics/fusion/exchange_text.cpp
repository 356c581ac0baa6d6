#include "heuristics/fusion/exchange_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace vqgen::fusion {
namespace {

class Printer {
 public:
  explicit Printer(const Exchange& exchange)
      : registers_(exchange.consumer.registers), threads_(exchange.consumer.threads) {}

  // `choice` as an expression; the last pick is what is left, so it needs no condition.
  std::string expression(const Choice& choice) {
    std::string text;
    for (std::size_t i = 0; i + 1 < choice.size(); ++i) {
      text += fmt::format("{} ? {} : ", condition(choice[i].threads), source(choice[i].source));
    }
    return text + source(choice.back().source);
  }

  // Declarations of the conditions used so far.
  std::string conditions() const {
    std::string text;
    for (std::size_t i = 0; i < conditions_.size(); ++i) {
      text += fmt::format("  const bool c{} = (0x{:08x}u >> lane & 1u) != 0;\n", i, conditions_[i]);
    }
    return text.empty() ? text : "  const int lane = vq::lane();\n" + text;
  }

 private:
  std::string source(int number) const {
    return number < registers_ ? fmt::format("r[{}]", number)
                               : fmt::format("x{}", number - registers_);
  }

  std::string condition(std::uint32_t threads) {
    const auto period = std::bit_ceil(static_cast<unsigned>(threads_));
    std::uint32_t lanes = 0;
    for (unsigned at = 0; at < 32; at += period) lanes |= threads << at;
    const auto found = std::find(conditions_.begin(), conditions_.end(), lanes);
    const auto number = found - conditions_.begin();
    if (found == conditions_.end()) conditions_.push_back(lanes);
    return fmt::format("c{}", number);
  }

  int registers_;
  int threads_;
  std::vector<std::uint32_t> conditions_;  // lanes
};

}  // namespace

std::string exchange_text(const Exchange& exchange, const std::string& name) {
  Printer printer(exchange);
  std::string body;
  for (std::size_t i = 0; i < exchange.shuffles.size(); ++i) {
    body += fmt::format("  const vq::u32 x{} = vq::shuffle_xor({}, {});\n", i,
                        printer.expression(exchange.shuffles[i].sent), exchange.shuffles[i].mask);
  }
  std::string stores;
  for (std::size_t r = 0; r < exchange.results.size(); ++r) {
    const std::string value = printer.expression(exchange.results[r]);
    if (value == fmt::format("r[{}]", r)) continue;
    body += fmt::format("  const vq::u32 y{} = {};\n", r, value);
    stores += fmt::format("  r[{0}] = y{0};\n", r);
  }
  return fmt::format(
      "// {} -> {}: {} shuffles, {} selects.\n"
      "VQ_DEVICE void {}({}vq::u32 (&r)[{}]) {{\n{}{}{}}}\n",
      exchange.producer.name, exchange.consumer.name, exchange.shuffles.size(), selects(exchange),
      name, body.empty() ? "[[maybe_unused]] " : "", exchange.consumer.registers,
      printer.conditions(), body, stores);
}

}  // namespace vqgen::fusion
