// The naive judge of an exchange: it moves numbered words by it and compares coordinates, axis by
// axis.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "heuristics/fusion/solve.h"

namespace vqgen::fusion {

inline std::size_t at(int value) { return static_cast<std::size_t>(value); }

inline bool is_order(std::vector<int> order) {
  std::sort(order.begin(), order.end());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] != static_cast<int>(i)) return false;
  }
  return true;
}

inline std::vector<int> coordinates(const std::vector<Axis>& axes, int element) {
  std::vector<int> result(axes.size());
  for (std::size_t i = axes.size(); i-- > 0; element /= axes[i].extent) {
    result[i] = element % axes[i].extent;
  }
  return result;
}

// Why `exchange` does not bring the producer's words to their consumers; empty where it does.
inline std::string fault_of(const Exchange& exchange, const std::set<std::string>& free_axes) {
  const FragmentLayout& producer = exchange.producer;
  const FragmentLayout& consumer = exchange.consumer;
  if (!exchange.impossible.empty()) return exchange.impossible;
  for (std::size_t axis = 0; axis < consumer.axes.size(); ++axis) {
    if (!is_order(exchange.orders[axis])) return "an order that is none";
    const bool natural = std::is_sorted(exchange.orders[axis].begin(), exchange.orders[axis].end());
    if (!natural && !free_axes.contains(consumer.axes[axis].name))
      return "an axis that is not free";
  }
  if (!is_order(exchange.entries)) return "an entry is dequantized twice or never";
  const auto disjoint = [](const Choice& choice) {
    std::uint32_t seen = 0;
    for (const Pick& pick : choice) {
      if ((seen & pick.threads) != 0) return false;
      seen |= pick.threads;
    }
    return !choice.empty();
  };
  for (const Shuffle& shuffle : exchange.shuffles) {
    if (shuffle.mask < 1 || shuffle.mask > 31 || !disjoint(shuffle.sent)) return "a bad shuffle";
    for (const Pick& pick : shuffle.sent) {
      if (pick.source < 0 || pick.source >= producer.registers) return "a bad source";
    }
  }
  const int sources = producer.registers + static_cast<int>(exchange.shuffles.size());
  for (const Choice& result : exchange.results) {
    if (!disjoint(result)) return "a bad choice";
    for (const Pick& pick : result) {
      if (pick.source < 0 || pick.source >= sources) return "a bad source";
    }
  }
  Registers registers(at(producer.threads));
  for (int thread = 0; thread < producer.threads; ++thread) {
    for (int r = 0; r < producer.registers; ++r) {
      const int seat = thread * producer.entries_per_thread() + r / producer.entry_registers;
      registers[at(thread)].push_back(static_cast<std::uint32_t>(
          exchange.entries[at(seat)] * producer.entry_registers + r % producer.entry_registers));
    }
  }
  const Registers results = exchanged(exchange, registers);
  for (int word = 0; word < consumer.words(); ++word) {
    const std::uint32_t got = results[at(word / consumer.registers)][at(word % consumer.registers)];
    if (got >= static_cast<std::uint32_t>(producer.words())) return "a register of nothing";
    for (int slot = 0; slot < consumer.slots; ++slot) {
      const int element = producer.element(static_cast<int>(got), slot);
      std::vector<int> wanted = coordinates(consumer.axes, consumer.element(word, slot));
      for (std::size_t axis = 0; axis < wanted.size(); ++axis) {
        wanted[axis] = exchange.orders[axis][at(wanted[axis])];
      }
      if (coordinates(producer.axes, element) != wanted) {
        return "thread " + std::to_string(word / consumer.registers) + " register " +
               std::to_string(word % consumer.registers) + " has another word than it consumes";
      }
    }
  }
  return "";
}

inline void shuffle_all(std::vector<int>& values, std::mt19937& random) {
  for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random() % i]);
}

inline std::vector<int> counted(int count) {
  std::vector<int> values(at(count));
  for (int i = 0; i < count; ++i) values[at(i)] = i;
  return values;
}

}  // namespace vqgen::fusion
