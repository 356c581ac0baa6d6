#include "heuristics/fusion/exchange.h"

#include <numeric>
#include <set>

namespace vqgen::fusion {
namespace {

// A value that no result may take: what a thread has that no pick names.
constexpr std::uint32_t kNothing = 0xdeadbeef;

std::uint32_t value_of(const std::vector<std::uint32_t>& sources, const Choice& choice,
                       std::size_t thread) {
  const int source = picked(choice, static_cast<int>(thread));
  return source < 0 ? kNothing : sources.at(index_of(source));
}

}  // namespace

int picked(const Choice& choice, int thread) {
  for (const Pick& pick : choice) {
    if ((pick.threads >> thread & 1) != 0) return pick.source;
  }
  return -1;
}

int steps(const Exchange& exchange) {
  std::set<int> masks;
  for (const Shuffle& shuffle : exchange.shuffles) masks.insert(shuffle.mask);
  return static_cast<int>(masks.size());
}

int selects(const Exchange& exchange) {
  std::size_t count = 0;
  for (const Shuffle& shuffle : exchange.shuffles) count += shuffle.sent.size() - 1;
  for (const Choice& result : exchange.results) count += result.size() - 1;
  return static_cast<int>(count);
}

std::vector<std::vector<int>> mini_warps(const Exchange& exchange) {
  const int threads = exchange.consumer.threads;
  std::vector<int> first(index_of(threads));
  std::iota(first.begin(), first.end(), 0);
  const auto join = [&](int a, int b) {
    const int keep = std::min(first[index_of(a)], first[index_of(b)]);
    const int gone = std::max(first[index_of(a)], first[index_of(b)]);
    for (int& each : first) each = each == gone ? keep : each;
  };
  for (const Choice& result : exchange.results) {
    for (int thread = 0; thread < threads; ++thread) {
      const int shuffle = picked(result, thread) - exchange.consumer.registers;
      if (shuffle >= 0) join(thread, thread ^ exchange.shuffles[index_of(shuffle)].mask);
    }
  }
  std::vector<std::vector<int>> found;
  for (int head = 0; head < threads; ++head) {
    std::vector<int> members;
    for (int thread = head; thread < threads; ++thread) {
      if (first[index_of(thread)] == head) members.push_back(thread);
    }
    if (!members.empty()) found.push_back(std::move(members));
  }
  return found;
}

Registers exchanged(const Exchange& exchange, const Registers& registers) {
  const std::size_t threads = registers.size();
  Registers sources = registers;
  for (const Shuffle& shuffle : exchange.shuffles) {
    for (std::size_t thread = 0; thread < threads; ++thread) {
      const std::size_t from = thread ^ index_of(shuffle.mask);
      sources[thread].push_back(from < threads ? value_of(registers[from], shuffle.sent, from)
                                               : kNothing);
    }
  }
  Registers results(threads);
  for (std::size_t thread = 0; thread < threads; ++thread) {
    for (const Choice& result : exchange.results) {
      results[thread].push_back(value_of(sources[thread], result, thread));
    }
  }
  return results;
}

}  // namespace vqgen::fusion
