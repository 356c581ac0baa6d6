// Orders of free axes: candidates that may make shuffles unnecessary, and what an order does to
// words.
#pragma once

#include <optional>
#include <vector>

#include "heuristics/fusion/exchange.h"

namespace vqgen::fusion {

// What orders are sought for. Both layouts are valid and of the same tile and sizes.
struct OrderProblem {
  const FragmentLayout& producer;
  const FragmentLayout& consumer;
  std::vector<bool> free;  // [axis]
  bool pinned = false;
};

Orders natural_orders(const std::vector<Axis>& axes);

// For each word of the consumer the producer's word that holds the same elements in the same slots
// once axes are ordered; nullopt where some word has none.
std::optional<std::vector<int>> word_sources(const OrderProblem& problem, const Orders& orders);

// Where both layouts permute bits: of all orders that permute the bits of free axes, one with the
// fewest bits that tell threads apart in the consumer and words of one entry in the producer; each
// such bit doubles the mini-warp. nullopt for other layouts.
std::optional<Orders> bit_orders(const OrderProblem& problem);

// Orders that need no shuffle, sought by backtracking; nullopt where there are none, or none was
// found in `budget` steps.
std::optional<Orders> shuffle_free_orders(const OrderProblem& problem, int budget = 1 << 20);

}  // namespace vqgen::fusion
