#include "heuristics/fusion/orders.h"

#include <bit>
#include <numeric>

namespace vqgen::fusion {
namespace {

bool power_of_two(int value) { return std::has_single_bit(static_cast<unsigned>(value)); }
int log2_of(int value) { return std::countr_zero(static_cast<unsigned>(value)); }

// For each bit of the place (slot, register, thread; the lowest first) the one bit of the element's
// index that it sets; nullopt where the layout is not of this kind.
std::optional<std::vector<int>> element_bits(const FragmentLayout& layout) {
  bool sizes = power_of_two(layout.threads) && power_of_two(layout.registers) &&
               power_of_two(layout.entry_registers);
  for (const Axis& axis : layout.axes) sizes = sizes && power_of_two(axis.extent);
  if (!sizes || layout.elements[0] != 0) return std::nullopt;
  std::vector<int> bits;
  for (std::size_t place = 1; place < layout.elements.size(); place *= 2) {
    if (!power_of_two(layout.elements[place])) return std::nullopt;
    bits.push_back(log2_of(layout.elements[place]));
  }
  for (std::size_t place = 0; place < layout.elements.size(); ++place) {
    int element = 0;
    for (std::size_t bit = 0; bit < bits.size(); ++bit) {
      if ((place >> bit & 1) != 0) element |= 1 << bits[bit];
    }
    if (element != layout.elements[place]) return std::nullopt;
  }
  return bits;
}

// Pairs each place bit of the consumer with a place bit of the producer whose element bits are then
// the same. Bits of an axis that is not free are paired as they are; others by rule after rule.
class BitPairing {
 public:
  BitPairing(const OrderProblem& problem, std::vector<int> consumer, std::vector<int> producer)
      : problem_(problem),
        consumer_(std::move(consumer)),
        producer_(std::move(producer)),
        partner_(consumer_.size(), -1),
        taken_(consumer_.size(), false) {
    slots_end_ = log2_of(problem.producer.slots);
    entry_end_ = slots_end_ + log2_of(problem.producer.entry_registers);
    registers_end_ = slots_end_ + log2_of(problem.producer.registers);
    // Where threads are as they are, no register bit can become a thread bit.
    fixed_end_ = problem.pinned ? registers_end_ : entry_end_;
  }

  // Only counts matter for how many bits clash, so each rule may take the first pair that it finds;
  // within a rule a bit that stays where it is goes first, which keeps orders and registers
  // natural.
  Orders orders() {
    pair([&](int c, int p) { return !free_axis(c) && same_bit(c, p); });
    pair([&](int c, int p) { return c < slots_end_ && c == p; });
    if (problem_.pinned) pair([&](int c, int p) { return is_thread(c) && c == p; });
    pair([&](int c, int p) { return is_thread(c) && p >= fixed_end_ && same_bit(c, p); });
    pair([&](int c, int p) { return is_thread(c) && p >= fixed_end_; });
    pair([&](int c, int p) { return is_register(c) && c == p; });
    pair([&](int c, int p) { return is_register(c) && p >= slots_end_ && same_bit(c, p); });
    pair([&](int c, int p) { return is_register(c) && p >= slots_end_; });
    pair([&](int, int) { return true; });
    return as_orders();
  }

 private:
  bool is_thread(int bit) const { return bit >= registers_end_; }
  bool is_register(int bit) const { return bit >= slots_end_ && bit < registers_end_; }
  bool same_bit(int c, int p) const { return consumer_[index_of(c)] == producer_[index_of(p)]; }
  bool free_axis(int c) const { return problem_.free[index_of(axis_of(consumer_[index_of(c)]))]; }

  int axis_of(int element_bit) const {
    const std::vector<Axis>& axes = problem_.consumer.axes;
    int axis = static_cast<int>(axes.size()) - 1;
    for (; element_bit >= log2_of(axes[index_of(axis)].extent); --axis) {
      element_bit -= log2_of(axes[index_of(axis)].extent);
    }
    return axis;
  }

  template <class Allowed>
  void pair(Allowed&& allowed) {
    const int bits = static_cast<int>(consumer_.size());
    for (int c = 0; c < bits; ++c) {
      for (int p = 0; p < bits && partner_[index_of(c)] < 0; ++p) {
        const bool same_axis = axis_of(consumer_[index_of(c)]) == axis_of(producer_[index_of(p)]);
        if (taken_[index_of(p)] || !same_axis || !allowed(c, p)) continue;
        partner_[index_of(c)] = p;
        taken_[index_of(p)] = true;
      }
    }
  }

  Orders as_orders() const {
    const std::vector<Axis>& axes = problem_.consumer.axes;
    Orders orders = natural_orders(axes);
    for (std::size_t c = 0; c < consumer_.size(); ++c) {
      const int axis = axis_of(consumer_[c]);
      const int from = coordinate(axes, 1 << consumer_[c], axis);
      const int to = coordinate(axes, 1 << producer_[index_of(partner_[c])], axis);
      std::vector<int>& order = orders[index_of(axis)];
      for (std::size_t x = 0; x < order.size(); ++x) {
        if ((x & index_of(from)) != 0) order[x] += to - from;
      }
    }
    return orders;
  }

  const OrderProblem& problem_;
  std::vector<int> consumer_;
  std::vector<int> producer_;
  std::vector<int> partner_;  // [consumer's place bit]
  std::vector<bool> taken_;   // [producer's place bit]
  int slots_end_ = 0;
  int entry_end_ = 0;
  int registers_end_ = 0;
  int fixed_end_ = 0;
};

}  // namespace

Orders natural_orders(const std::vector<Axis>& axes) {
  Orders orders;
  for (const Axis& axis : axes) {
    std::vector<int>& order = orders.emplace_back(index_of(axis.extent));
    std::iota(order.begin(), order.end(), 0);
  }
  return orders;
}

std::optional<std::vector<int>> word_sources(const OrderProblem& problem, const Orders& orders) {
  const FragmentLayout& producer = problem.producer;
  const FragmentLayout& consumer = problem.consumer;
  const auto ordered = [&](int element) {
    int result = 0;
    for (std::size_t axis = 0; axis < orders.size(); ++axis) {
      const int at = coordinate(consumer.axes, element, static_cast<int>(axis));
      result = result * consumer.axes[axis].extent + orders[axis][index_of(at)];
    }
    return result;
  };
  std::vector<int> places(producer.elements.size());
  for (std::size_t place = 0; place < places.size(); ++place) {
    places[index_of(producer.elements[place])] = static_cast<int>(place);
  }
  std::vector<int> sources;
  for (int word = 0; word < consumer.words(); ++word) {
    const int first = places[index_of(ordered(consumer.element(word, 0)))];
    for (int slot = 0; slot < consumer.slots; ++slot) {
      const int place = places[index_of(ordered(consumer.element(word, slot)))];
      if (first % producer.slots != 0 || place != first + slot) return std::nullopt;
    }
    sources.push_back(first / producer.slots);
  }
  return sources;
}

std::optional<Orders> bit_orders(const OrderProblem& problem) {
  auto consumer = element_bits(problem.consumer);
  auto producer = element_bits(problem.producer);
  if (!consumer || !producer) return std::nullopt;
  return BitPairing(problem, std::move(*consumer), std::move(*producer)).orders();
}

}  // namespace vqgen::fusion
