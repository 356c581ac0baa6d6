// Backtracking over orders of free axes: thread after thread of the consumer is given whole
// entries, and each word laid down decides coordinates of the orders, which the next words must
// respect.
#include <utility>

#include "heuristics/fusion/orders.h"

namespace vqgen::fusion {
namespace {

class OrderSearch {
 public:
  OrderSearch(const OrderProblem& problem, int budget)
      : problem_(problem),
        producer_(problem.producer),
        consumer_(problem.consumer),
        budget_(budget),
        orders_(natural_orders(problem.consumer.axes)),
        backwards_(orders_),
        covered_(index_of(problem.consumer.words()), false),
        used_(index_of(problem.producer.entries()), false) {
    for (std::size_t axis = 0; axis < orders_.size(); ++axis) {
      if (!problem.free[axis]) continue;
      orders_[axis].assign(orders_[axis].size(), -1);
      backwards_[axis] = orders_[axis];
    }
  }

  std::optional<Orders> found() {
    if (!cover_from(0)) return std::nullopt;
    return orders_;
  }

 private:
  // Covers all words of the consumer from `word` on, each thread's by entries of its own.
  bool cover_from(int word) {
    while (word < consumer_.words() && covered_[index_of(word)]) ++word;
    if (word == consumer_.words()) return true;
    const int thread = word / consumer_.registers;
    const int seats = producer_.entries_per_thread();
    const int first = problem_.pinned ? thread * seats : 0;
    const int end = problem_.pinned ? first + seats : producer_.entries();
    for (int entry = first; entry < end; ++entry) {
      if (used_[index_of(entry)]) continue;
      used_[index_of(entry)] = true;
      for (int part = 0; part < producer_.entry_registers; ++part) {
        if (lay(word, entry, part, [&] { return lay_rest(word, entry, part, 0); })) return true;
      }
      used_[index_of(entry)] = false;
    }
    return false;
  }

  // Lays the words of `entry` from number `next` on, but for `laid`, into the thread's other
  // registers.
  bool lay_rest(int word, int entry, int laid, int next) {
    if (next == laid) ++next;
    if (next == producer_.entry_registers) return cover_from(word + 1);
    const int end = (word / consumer_.registers + 1) * consumer_.registers;
    for (int other = word + 1; other < end; ++other) {
      if (covered_[index_of(other)]) continue;
      if (lay(other, entry, next, [&] { return lay_rest(word, entry, laid, next + 1); }))
        return true;
    }
    return false;
  }

  // With word number `part` of the entry at `word`, whether `rest` succeeds; undone where it does
  // not.
  template <class Rest>
  bool lay(int word, int entry, int part, Rest&& rest) {
    if (--budget_ < 0) return false;
    const std::size_t before = decided_.size();
    covered_[index_of(word)] = true;
    if (agree(word, entry * producer_.entry_registers + part) && rest()) return true;
    covered_[index_of(word)] = false;
    while (decided_.size() > before) {
      const auto [axis, at] = decided_.back();
      backwards_[axis][index_of(orders_[axis][at])] = -1;
      orders_[axis][at] = -1;
      decided_.pop_back();
    }
    return false;
  }

  bool agree(int word, int source) {
    for (int slot = 0; slot < consumer_.slots; ++slot) {
      for (std::size_t axis = 0; axis < orders_.size(); ++axis) {
        const int number = static_cast<int>(axis);
        const int at = coordinate(consumer_.axes, consumer_.element(word, slot), number);
        const int to = coordinate(consumer_.axes, producer_.element(source, slot), number);
        int& forward = orders_[axis][index_of(at)];
        int& backward = backwards_[axis][index_of(to)];
        if (forward == to) continue;
        if (forward >= 0 || backward >= 0) return false;
        forward = to;
        backward = at;
        decided_.emplace_back(axis, index_of(at));
      }
    }
    return true;
  }

  const OrderProblem& problem_;
  const FragmentLayout& producer_;
  const FragmentLayout& consumer_;
  int budget_;
  Orders orders_;                                             // -1 where open
  Orders backwards_;                                          // its inverse
  std::vector<std::pair<std::size_t, std::size_t>> decided_;  // axis and coordinate, in order
  std::vector<bool> covered_;                                 // consumer's words
  std::vector<bool> used_;                                    // producer's entries
};

}  // namespace

std::optional<Orders> shuffle_free_orders(const OrderProblem& problem, int budget) {
  return OrderSearch(problem, budget).found();
}

}  // namespace vqgen::fusion
