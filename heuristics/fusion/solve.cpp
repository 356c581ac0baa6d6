#include "heuristics/fusion/solve.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>

#include "core/error.h"
#include "heuristics/fusion/assign.h"
#include "heuristics/fusion/orders.h"

namespace vqgen::fusion {
namespace {

[[noreturn]] void refuse(const FragmentLayout& producer, const FragmentLayout& consumer,
                         const std::string& why) {
  throw Error(ErrorKind::bad_input,
              fmt::format("fusion of '{}' into '{}': {}", producer.name, consumer.name, why));
}

OrderProblem checked(const FragmentLayout& producer, const FragmentLayout& consumer,
                     const Options& options) {
  if (producer.axes != consumer.axes || producer.threads != consumer.threads ||
      producer.registers != consumer.registers || producer.slots != consumer.slots) {
    refuse(producer, consumer,
           fmt::format("{} threads x {} registers of {} over another tile than {} x {} of {}; give "
                       "both the same axes and sizes",
                       producer.threads, producer.registers, producer.slots, consumer.threads,
                       consumer.registers, consumer.slots));
  }
  OrderProblem problem{producer, consumer, std::vector<bool>(producer.axes.size(), false),
                       options.pinned};
  for (const std::string& name : options.free_axes) {
    const auto found = std::find_if(producer.axes.begin(), producer.axes.end(),
                                    [&](const Axis& axis) { return axis.name == name; });
    if (found == producer.axes.end()) {
      refuse(producer, consumer,
             fmt::format("there is no axis '{}' to be free; name one of the tile", name));
    }
    problem.free[index_of(static_cast<int>(found - producer.axes.begin()))] = true;
  }
  return problem;
}

void add_pick(Choice& choice, int source, int thread) {
  const auto found = std::find_if(choice.begin(), choice.end(),
                                  [&](const Pick& pick) { return pick.source == source; });
  Pick& pick = found == choice.end() ? choice.emplace_back(Pick{source, 0}) : *found;
  pick.threads |= std::uint32_t{1} << thread;
}

// The k-th word that a thread is brought by a mask comes with the mask's k-th shuffle, in order of
// the registers that they go to.
void schedule(Exchange& exchange, const std::vector<int>& sources) {
  const int registers = exchange.consumer.registers;
  const int entry_registers = exchange.producer.entry_registers;
  std::vector<int> place(sources.size());  // [producer's word]: thread * registers + register
  for (std::size_t at = 0; at < exchange.entries.size(); ++at) {
    for (int part = 0; part < entry_registers; ++part) {
      place[index_of(exchange.entries[at] * entry_registers + part)] =
          static_cast<int>(at) * entry_registers + part;
    }
  }
  std::map<std::pair<int, int>, Shuffle> shuffles;   // by mask and number within it
  std::map<std::pair<int, int>, int> number_within;  // by thread and mask
  struct Brought {
    int thread, result;
    std::pair<int, int> shuffle;
  };
  std::vector<Brought> brought;
  exchange.results.resize(index_of(registers));
  for (int word = 0; word < exchange.consumer.words(); ++word) {
    const int thread = word / registers;
    const int from = place[index_of(sources[index_of(word)])];
    const int mask = from / registers ^ thread;
    if (mask == 0) {
      add_pick(exchange.results[index_of(word % registers)], from % registers, thread);
      continue;
    }
    const std::pair<int, int> key{mask, number_within[{thread, mask}]++};
    shuffles[key].mask = mask;
    add_pick(shuffles[key].sent, from % registers, from / registers);
    brought.push_back({thread, word % registers, key});
  }
  std::map<std::pair<int, int>, int> number;
  for (auto& [key, shuffle] : shuffles) {
    number[key] = static_cast<int>(exchange.shuffles.size());
    exchange.shuffles.push_back(std::move(shuffle));
  }
  for (const Brought& each : brought) {
    add_pick(exchange.results[index_of(each.result)], registers + number[each.shuffle],
             each.thread);
  }
}

Exchange exchange_for(const OrderProblem& problem, Orders orders, const Options& options) {
  Exchange exchange;
  exchange.producer = problem.producer;
  exchange.consumer = problem.consumer;
  exchange.orders = std::move(orders);
  const auto sources = word_sources(problem, exchange.orders);
  if (!sources) {
    exchange.impossible =
        "registers hold other pairs of elements than the consumer's; repack them byte by byte";
    return exchange;
  }
  Demand demand{problem.producer.threads, problem.producer.registers,
                problem.producer.entry_registers, std::vector<int>(sources->size())};
  for (std::size_t word = 0; word < sources->size(); ++word) {
    demand.targets[index_of((*sources)[word])] = static_cast<int>(word);
  }
  if (options.pinned) {
    exchange.entries.resize(index_of(demand.entries()));
    std::iota(exchange.entries.begin(), exchange.entries.end(), 0);
    exchange.fewest = fewest_shuffles(demand, exchange.entries);
  } else {
    exchange.entries = assign_entries(demand);
    exchange.fewest = fewest_shuffles(demand);
  }
  schedule(exchange, *sources);
  if (static_cast<int>(exchange.shuffles.size()) < options.shuffle_threshold) {
    exchange.fusion = Fusion::registers;
  }
  return exchange;
}

bool better(const Exchange& a, const Exchange& b) {
  if (a.impossible.empty() != b.impossible.empty()) return a.impossible.empty();
  if (a.shuffles.size() != b.shuffles.size()) return a.shuffles.size() < b.shuffles.size();
  return selects(a) < selects(b);
}

}  // namespace

Exchange solve(const FragmentLayout& given, const FragmentLayout& consumer,
               const Options& options) {
  validate(given);
  validate(consumer);
  const FragmentLayout producer = with_axes(given, consumer.axes);
  const OrderProblem problem = checked(producer, consumer, options);
  Exchange best = exchange_for(problem, natural_orders(consumer.axes), options);
  const bool done = best.impossible.empty() && best.shuffles.empty();
  if (done || options.free_axes.empty()) return best;
  std::optional<Orders> orders = bit_orders(problem);
  if (!orders) orders = shuffle_free_orders(problem);
  if (!orders && !best.impossible.empty()) {
    // Any order that makes whole registers agree is better than none: each may come from anywhere.
    FragmentLayout loose = producer;
    loose.entry_registers = 1;
    orders = shuffle_free_orders({loose, consumer, problem.free, false});
  }
  if (!orders) return best;
  Exchange ordered = exchange_for(problem, std::move(*orders), options);
  return better(ordered, best) ? ordered : best;
}

}  // namespace vqgen::fusion
