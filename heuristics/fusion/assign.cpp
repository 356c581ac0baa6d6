#include "heuristics/fusion/assign.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "heuristics/fusion/layout.h"

namespace vqgen::fusion {
namespace {

constexpr int kMostExact = 8;  // 8! assignments at most

int thread_of(const Demand& d, int entry, int part) {
  return d.targets[index_of(entry * d.entry_registers + part)] / d.registers;
}

int words_to(const Demand& d, int entry, int thread) {
  int words = 0;
  for (int part = 0; part < d.entry_registers; ++part) words += thread_of(d, entry, part) == thread;
  return words;
}

// Words sent from thread to thread, and the shuffles that this takes.
class Traffic {
 public:
  explicit Traffic(const Demand& demand)
      : demand_(demand),
        side_(static_cast<int>(std::bit_ceil(static_cast<unsigned>(demand.threads)))),
        words_(index_of(side_ * side_), 0) {}

  void add(int entry, int thread, int words) {
    for (int part = 0; part < demand_.entry_registers; ++part) {
      words_[index_of(thread * side_ + thread_of(demand_, entry, part))] += words;
    }
  }
  int shuffles() const {
    int sum = 0;
    for (int mask = 1; mask < side_; ++mask) {
      int most = 0;
      for (int t = 0; t < side_; ++t)
        most = std::max(most, words_[index_of(t * side_ + (t ^ mask))]);
      sum += most;
    }
    return sum;
  }
  int kept(int thread) const { return words_[index_of(thread * side_ + thread)]; }

 private:
  const Demand& demand_;
  int side_;
  std::vector<int> words_;  // [from][to]
};

Traffic traffic_of(const Demand& d, const std::vector<int>& entries) {
  Traffic traffic(d);
  for (std::size_t at = 0; at < entries.size(); ++at) {
    traffic.add(entries[at], static_cast<int>(at) / d.seats(), 1);
  }
  return traffic;
}

// Entries and threads that trade with each other, directly or not: [entry] to the lowest thread of
// its group, and [thread] likewise.
struct Groups {
  std::vector<int> of_entry;
  std::vector<int> of_thread;
};
Groups groups_of(const Demand& d) {
  Groups groups{std::vector<int>(index_of(d.entries())), std::vector<int>(index_of(d.threads))};
  std::iota(groups.of_thread.begin(), groups.of_thread.end(), 0);
  for (int entry = 0; entry < d.entries(); ++entry) {
    for (int part = 1; part < d.entry_registers; ++part) {
      const int a = groups.of_thread[index_of(thread_of(d, entry, 0))];
      const int b = groups.of_thread[index_of(thread_of(d, entry, part))];
      std::replace(groups.of_thread.begin(), groups.of_thread.end(), std::max(a, b),
                   std::min(a, b));
    }
  }
  for (int entry = 0; entry < d.entries(); ++entry) {
    groups.of_entry[index_of(entry)] = groups.of_thread[index_of(thread_of(d, entry, 0))];
  }
  return groups;
}

// Kept words first, then those that are in the consumer's register already.
int gain(const Demand& d, int entry, int seat_number) {
  const int thread = seat_number / d.seats();
  const int seat = seat_number % d.seats();
  int in_place = 0;
  for (int part = 0; part < d.entry_registers; ++part) {
    const int reached = thread * d.registers + seat * d.entry_registers + part;
    in_place += d.targets[index_of(entry * d.entry_registers + part)] == reached;
  }
  return words_to(d, entry, thread) * (d.registers + 1) + in_place;
}

// The assignment of rows to columns of the greatest sum: Hungarian method with potentials, O(n^3).
// [column] to row.
std::vector<int> best_matching(const std::vector<std::vector<int>>& gains) {
  const std::size_t n = gains.size();
  constexpr int kFar = std::numeric_limits<int>::max() / 2;
  std::vector<int> row_potential(n + 1, 0), column_potential(n + 1, 0);
  std::vector<std::size_t> row_of(n + 1, 0),
      before(n + 1, 0);  // column 0 is the start, rows from 1
  for (std::size_t row = 1; row <= n; ++row) {
    std::vector<int> least(n + 1, kFar);
    std::vector<bool> seen(n + 1, false);
    std::size_t column = 0;
    row_of[0] = row;
    while (row_of[column] != 0) {
      seen[column] = true;
      const std::size_t from = row_of[column];
      std::size_t next = 0;
      int step = kFar;
      for (std::size_t c = 1; c <= n; ++c) {
        if (seen[c]) continue;
        const int cost = -gains[from - 1][c - 1] - row_potential[from] - column_potential[c];
        if (cost < least[c]) {
          least[c] = cost;
          before[c] = column;
        }
        if (least[c] < step) {
          step = least[c];
          next = c;
        }
      }
      for (std::size_t c = 0; c <= n; ++c) {
        if (seen[c]) {
          row_potential[row_of[c]] += step;
          column_potential[c] -= step;
        } else {
          least[c] -= step;
        }
      }
      column = next;
    }
    for (; column != 0; column = before[column]) row_of[column] = row_of[before[column]];
  }
  std::vector<int> rows;
  for (std::size_t c = 1; c <= n; ++c) rows.push_back(static_cast<int>(row_of[c]) - 1);
  return rows;
}

std::vector<int> most_kept(const Demand& d) {
  const Groups groups = groups_of(d);
  std::vector<int> entries(index_of(d.entries()));
  for (int group = 0; group < d.threads; ++group) {
    std::vector<int> rows;     // entries
    std::vector<int> columns;  // seats of all threads of the group
    for (int i = 0; i < d.entries(); ++i) {
      if (groups.of_entry[index_of(i)] == group) rows.push_back(i);
      if (groups.of_thread[index_of(i / d.seats())] == group) columns.push_back(i);
    }
    std::vector<std::vector<int>> gains;
    for (const int entry : rows) {
      std::vector<int>& row = gains.emplace_back();
      for (const int seat_number : columns) row.push_back(gain(d, entry, seat_number));
    }
    const std::vector<int> chosen = best_matching(gains);
    for (std::size_t c = 0; c < chosen.size(); ++c) {
      entries[index_of(columns[c])] = rows[index_of(chosen[c])];
    }
  }
  return entries;
}

// All assignments, entry by entry, but for those that are no better than the best so far already.
class ExactSearch {
 public:
  ExactSearch(const Demand& demand, std::vector<int> start)
      : demand_(demand),
        traffic_(demand),
        best_(std::move(start)),
        fewest_(shuffles_of(demand, best_)),
        bound_(fewest_shuffles(demand)),
        seated_(index_of(demand.threads)) {}

  std::vector<int> best() {
    if (fewest_ > bound_) place(0);
    return best_;
  }

 private:
  void place(int entry) {
    if (entry == demand_.entries()) {
      fewest_ = traffic_.shuffles();
      best_.clear();
      for (const auto& seats : seated_) best_.insert(best_.end(), seats.begin(), seats.end());
      return;
    }
    for (int thread = 0; thread < demand_.threads && fewest_ > bound_; ++thread) {
      std::vector<int>& seats = seated_[index_of(thread)];
      if (seats.size() == index_of(demand_.seats())) continue;
      seats.push_back(entry);
      traffic_.add(entry, thread, 1);
      if (traffic_.shuffles() < fewest_) place(entry + 1);
      traffic_.add(entry, thread, -1);
      seats.pop_back();
    }
  }

  const Demand& demand_;
  Traffic traffic_;
  std::vector<int> best_;
  int fewest_;
  int bound_;
  std::vector<std::vector<int>> seated_;  // [thread]: its entries so far
};

}  // namespace

int shuffles_of(const Demand& demand, const std::vector<int>& entries) {
  return traffic_of(demand, entries).shuffles();
}

int fewest_shuffles(const Demand& demand, const std::vector<int>& entries) {
  const Traffic traffic = traffic_of(demand, entries);
  int fewest = 0;
  for (int thread = 0; thread < demand.threads; ++thread) {
    fewest = std::max(fewest, demand.registers - traffic.kept(thread));
  }
  return fewest;
}

int fewest_shuffles(const Demand& demand) {
  int kept = 0;
  for (int entry = 0; entry < demand.entries(); ++entry) {
    int most = 0;
    for (int part = 0; part < demand.entry_registers; ++part) {
      most = std::max(most, words_to(demand, entry, thread_of(demand, entry, part)));
    }
    kept += most;
  }
  return demand.registers - kept / demand.threads;  // some thread keeps no more than the mean
}

std::vector<int> assign_entries(const Demand& demand) {
  std::vector<int> entries = most_kept(demand);
  if (demand.entries() > kMostExact) return entries;
  return ExactSearch(demand, std::move(entries)).best();
}

}  // namespace vqgen::fusion
