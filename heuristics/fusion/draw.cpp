#include "heuristics/fusion/draw.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

namespace vqgen::fusion {
namespace {

// "m8 k4-5": the coordinate on each axis, those of all slots where they differ.
std::string word_name(const std::vector<Axis>& axes, const std::vector<std::vector<int>>& slots) {
  std::string name;
  for (std::size_t axis = 0; axis < axes.size(); ++axis) {
    const std::vector<int>& at = slots[axis];
    const int last = static_cast<int>(at.size()) - 1;
    bool same = true, run = true;
    for (int slot = 0; slot <= last; ++slot) {
      same = same && at[index_of(slot)] == at[0];
      run = run && at[index_of(slot)] == at[0] + slot;
    }
    name += fmt::format("{}{}", axis == 0 ? "" : " ", axes[axis].name);
    if (same) {
      name += std::to_string(at[0]);
    } else {
      name += run ? fmt::format("{}-{}", at[0], at.back()) : fmt::format("{}", fmt::join(at, "/"));
    }
  }
  return name;
}

// The name of the word of data that `layout` has at `word` once its axes are ordered.
std::string word_name(const FragmentLayout& layout, const Orders& orders, int word) {
  std::vector<std::vector<int>> slots(layout.axes.size());
  for (int slot = 0; slot < layout.slots; ++slot) {
    for (std::size_t axis = 0; axis < slots.size(); ++axis) {
      const int at = coordinate(layout.axes, layout.element(word, slot), static_cast<int>(axis));
      slots[axis].push_back(orders.empty() ? at : orders[axis][index_of(at)]);
    }
  }
  return word_name(layout.axes, slots);
}

using Cells = std::vector<std::string>;

std::string table(const std::string& title, const std::vector<int>& threads,
                  const std::vector<Cells>& rows) {
  std::vector<std::size_t> width(rows.front().size(), 0);
  for (const Cells& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size() + 2);
  }
  const auto line = [](const std::string& head, const Cells& cells,
                       const std::vector<std::size_t>& widths) {
    std::string text = fmt::format("  {:<12}", head);
    for (std::size_t i = 0; i < cells.size(); ++i) {
      text += fmt::format("{:<{}}", cells[i], widths[i]);
    }
    return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  };
  Cells heads;
  for (std::size_t i = 0; i < width.size(); ++i) heads.push_back(fmt::format("r{}", i));
  std::string text = line(title, heads, width);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    text += line(fmt::format("thread {}", threads[i]), rows[i], width);
  }
  return text;
}

// "xor 1: 0.r1 <-> 1.r0, 2.r3 <-> 3.r2": what the threads named are sent, by one shuffle.
std::string moves(const Exchange& exchange, std::size_t number, const std::vector<int>& threads) {
  const Shuffle& shuffle = exchange.shuffles[number];
  const int source = exchange.consumer.registers + static_cast<int>(number);
  const auto result_of = [&](int thread) {
    for (std::size_t r = 0; r < exchange.results.size(); ++r) {
      if (picked(exchange.results[r], thread) == source) return static_cast<int>(r);
    }
    return -1;
  };
  std::vector<std::string> found;
  for (const int thread : threads) {
    const int other = thread ^ shuffle.mask;
    const int into = result_of(thread);
    if (into < 0) continue;
    const int from = picked(shuffle.sent, other);
    const bool swap = result_of(other) == from && picked(shuffle.sent, thread) == into;
    if (swap && other < thread) continue;
    found.push_back(swap ? fmt::format("{}.r{} <-> {}.r{}", thread, into, other, from)
                         : fmt::format("{}.r{} <- {}.r{}", thread, into, other, from));
  }
  return fmt::format("  xor {}: {}\n", shuffle.mask, fmt::join(found, ", "));
}

std::string draw_mini_warp(const Exchange& exchange, const std::vector<int>& threads) {
  const int registers = exchange.consumer.registers;
  const int seats = exchange.producer.entries_per_thread();
  std::vector<Cells> produced, consumed;
  for (const int thread : threads) {
    Cells& has = produced.emplace_back();
    Cells& wants = consumed.emplace_back();
    for (int r = 0; r < registers; ++r) {
      const int entry_registers = exchange.producer.entry_registers;
      const int entry = exchange.entries[index_of(thread * seats + r / entry_registers)];
      const int word = entry * entry_registers + r % entry_registers;
      has.push_back(word_name(exchange.producer, {}, word));
      wants.push_back(word_name(exchange.consumer, exchange.orders, thread * registers + r));
    }
  }
  std::string text = table("dequantizes", threads, produced);
  if (exchange.fusion == Fusion::registers) {
    for (std::size_t i = 0; i < exchange.shuffles.size(); ++i) text += moves(exchange, i, threads);
  }
  return text + table("consumes", threads, consumed);
}

}  // namespace

std::string draw(const Exchange& exchange, int threads) {
  std::string text = fmt::format("{} -> {}\n", exchange.producer.name, exchange.consumer.name);
  if (!exchange.impossible.empty()) {
    return text + fmt::format("fusion in shared memory: {}\n", exchange.impossible);
  }
  const auto groups = mini_warps(exchange);
  text += fmt::format(
      "fusion in {} {} shuffles in {} steps (bound {}), {} selects; mini-warps: {}\n",
      exchange.fusion == Fusion::registers ? "registers:" : "shared memory instead of",
      exchange.shuffles.size(), steps(exchange), exchange.fewest, selects(exchange), groups.size());
  for (std::size_t axis = 0; axis < exchange.orders.size(); ++axis) {
    std::vector<int> natural(exchange.orders[axis].size());
    std::iota(natural.begin(), natural.end(), 0);
    if (exchange.orders[axis] == natural) continue;
    text += fmt::format("order of {}, which whoever shares it must follow: {}\n",
                        exchange.consumer.axes[axis].name, fmt::join(exchange.orders[axis], " "));
  }
  std::size_t drawn = 0;
  for (std::size_t i = 0; i < groups.size() && drawn < index_of(threads); ++i) {
    std::vector<int> members = groups[i];
    // Threads that trade with nobody are drawn together.
    while (exchange.shuffles.empty() && i + 1 < groups.size() &&
           members.size() < index_of(threads)) {
      members.push_back(groups[++i].front());
    }
    drawn += members.size();
    text += draw_mini_warp(exchange, members);
  }
  return text;
}

}  // namespace vqgen::fusion
