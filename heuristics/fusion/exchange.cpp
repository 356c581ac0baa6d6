#include "heuristics/fusion/exchange.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <map>
#include <set>

namespace vqgen::fusion {

namespace {

using Lines = std::vector<std::string>;

constexpr int kDrawn = 4;  // lanes

// Two-way choices of all shuffles and results: one less than the registers to choose from.
int selects(const Exchange& exchange) {
  std::size_t count = 0;
  const auto add = [&](const ByLane<int>& choice) {
    count += std::set<int>(choice.begin(), choice.end()).size() - 1;
  };
  for (const Shuffle& shuffle : exchange.shuffles) add(shuffle.sent);
  for (const ByLane<int>& result : exchange.results) add(result);
  return static_cast<int>(count);
}

// No exchange of these words, over however many hops, has fewer shuffles: the most words that any
// lane must be brought.
std::ptrdiff_t bound(const Exchange& exchange) {
  std::ptrdiff_t most = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    most = std::max(
        most, std::count_if(exchange.results.begin(), exchange.results.end(),
                            [&](const auto& result) { return result[lane] >= exchange.rows; }));
  }
  return most;
}

template <class WordOf>
void add_table(Lines& lines, const char* title, int first, int end, int rows, WordOf&& word_of) {
  std::string head = fmt::format("  {:<12}", title);
  Lines table;
  for (int lane = first; lane < end; ++lane) table.push_back(fmt::format("  thread {:<5}", lane));
  for (int number = 0; number < rows; ++number) {
    Lines cells;
    std::size_t width = 0;
    for (int lane = first; lane < end; ++lane) {
      const Word word = word_of(lane, number);
      cells.push_back(fmt::format("m{} k{}-{}", word.output, word.column, word.column + 1));
      width = std::max(width, cells.back().size() + 2);
    }
    head += fmt::format("{:<{}}", fmt::format("r{}", number), width);
    for (std::size_t i = 0; i < cells.size(); ++i) {
      table[i] += fmt::format("{:<{}}", cells[i], width);
    }
  }
  table.insert(table.begin(), head);
  for (const std::string& line : table) {
    lines.push_back(line.substr(0, line.find_last_not_of(' ') + 1));
  }
}

// "xor 1: 0.r1 <-> 1.r0, 2.r3 <-> 3.r2": what the lanes named are brought by shuffle `number`.
std::string moves(const Exchange& exchange, int number, int first, int end) {
  const Shuffle& shuffle = exchange.shuffles[static_cast<std::size_t>(number)];
  const auto sent_by = [&](int lane) { return shuffle.sent[static_cast<std::size_t>(lane)]; };
  const auto result_of = [&](int lane) { return shuffle.into[static_cast<std::size_t>(lane)]; };
  Lines found;
  for (int lane = first; lane < end; ++lane) {
    const int other = lane ^ shuffle.mask;
    const auto into = result_of(lane);
    const int from = sent_by(other);
    const bool swap = result_of(other) == from && sent_by(lane) == into;
    if (swap && other < lane) continue;
    found.push_back(fmt::format("{}.r{} {} {}.r{}", lane, into, swap ? "<->" : "<-", other, from));
  }
  return fmt::format("  xor {}: {}", shuffle.mask, fmt::join(found, ", "));
}

}  // namespace

Word looked_up(LinearFusion fusion, int vector_size, int lane, int number) {
  const int c = lane % 4;
  const int words = vector_size / 2;
  const int entry = number % 4 / words;
  const bool shares = fusion == LinearFusion::registers;
  const int octet = shares ? entry * words + c % words : c;
  const int entry_of_octet = shares ? c / words : entry;
  return {lane / 4 + number / 4 * 8, octet * 8 + entry_of_octet * vector_size + number % words * 2};
}

int ordered(LinearFusion fusion, int column) {
  if (fusion != LinearFusion::permute) return column;
  const int octet = column / 8;
  const int word = octet % 2 * 2 + octet / 2;
  return column % 8 / 2 * 8 + word * 2 + column % 2;
}

Word multiplied(LinearFusion fusion, int rows, int lane, int number) {
  const int octet = rows == 8 ? number / 2 : number % 2 * 2 + number / 2;
  return {lane / 4 + (rows == 8 ? number % 2 * 8 : 0), ordered(fusion, octet * 8 + lane % 4 * 2)};
}

Exchange exchange_of(LinearFusion fusion, int vector_size, int rows) {
  struct Place {
    int lane;
    int number;
  };
  std::map<std::pair<int, int>, Place> places;  // keyed by output and column
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int number = 0; number < rows; ++number) {
      const Word word = looked_up(fusion, vector_size, lane, number);
      places[{word.output, word.column}] = {lane, number};
    }
  }
  Exchange exchange{fusion, vector_size, rows, {}, {}};
  exchange.results.resize(static_cast<std::size_t>(rows));
  for (int mask = 0; mask < kLanes; ++mask) {
    const std::size_t first = exchange.shuffles.size();
    for (int lane = 0; lane < kLanes; ++lane) {
      std::size_t next = first;  // next shuffle that brings the lane a word
      for (int number = 0; number < rows; ++number) {
        const Word word = multiplied(fusion, rows, lane, number);
        const Place from = places[{word.output, word.column}];
        if ((from.lane ^ lane) != mask) continue;
        int source = from.number;
        if (mask != 0) {
          if (next == exchange.shuffles.size()) exchange.shuffles.push_back({mask, {}, {}});
          exchange.shuffles[next].sent[static_cast<std::size_t>(from.lane)] = from.number;
          exchange.shuffles[next].into[static_cast<std::size_t>(lane)] = number;
          source = rows + static_cast<int>(next++);
        }
        exchange.results[static_cast<std::size_t>(number)][static_cast<std::size_t>(lane)] = source;
      }
    }
  }
  return exchange;
}

Lines draw(const Exchange& exchange) {
  const auto& [fusion, vector_size, rows, shuffles, results] = exchange;
  std::set<int> masks;
  for (const Shuffle& shuffle : shuffles) masks.insert(shuffle.mask);
  const unsigned widest = masks.empty() ? 0 : static_cast<unsigned>(*masks.rbegin());
  const int mini_warp = static_cast<int>(std::bit_ceil(widest + 1));
  Lines lines{
      fmt::format("entries of {} along k -> A of mma.m16n8k16{}", vector_size,
                  rows == 8 ? "" : " by halves"),
      fmt::format("fusion in {} {} shuffles in {} steps (bound {}), {} selects; mini-warps: {}",
                  fusion == LinearFusion::shared ? "shared memory instead of" : "registers:",
                  shuffles.size(), masks.size(), bound(exchange), selects(exchange),
                  kLanes / mini_warp)};
  if (fusion == LinearFusion::permute) {
    std::vector<int> order;
    for (int column = 0; column < kColumns; ++column) order.push_back(ordered(fusion, column));
    lines.push_back(
        fmt::format("order of k, which whoever shares it must follow: {}", fmt::join(order, " ")));
  }
  const int together = shuffles.empty() ? kDrawn : mini_warp;
  for (int first = 0; first < kDrawn; first += together) {
    const int end = first + together;
    add_table(lines, "dequantizes", first, end, rows, [&](int lane, int number) {
      return looked_up(exchange.fusion, exchange.vector_size, lane, number);
    });
    for (std::size_t i = 0; i < shuffles.size() && fusion != LinearFusion::shared; ++i) {
      lines.push_back(moves(exchange, static_cast<int>(i), first, end));
    }
    add_table(lines, "consumes", first, end, rows, [&](int lane, int number) {
      return multiplied(exchange.fusion, exchange.rows, lane, number);
    });
  }
  return lines;
}

}  // namespace vqgen::fusion
