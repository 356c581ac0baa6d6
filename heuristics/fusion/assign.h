// Which thread dequantizes which entries, so that the fewest words have to move.
#pragma once

#include <vector>

namespace vqgen::fusion {

struct Demand {
  int threads = 0;
  int registers = 0;         // a thread
  int entry_registers = 0;   // an entry's
  std::vector<int> targets;  // [producer's word]: consumer's word, thread * registers + register

  int entries() const { return threads * registers / entry_registers; }
  int seats() const { return registers / entry_registers; }  // entries a thread
};

// Shuffles of single hops: for each mask as many as the thread that gets most by it.
int shuffles_of(const Demand& demand, const std::vector<int>& entries);

// No exchange has fewer, since a shuffle brings a thread one word: what the thread that keeps least
// must at least be brought, for the entries given or, without, for the best of all.
int fewest_shuffles(const Demand& demand, const std::vector<int>& entries);
int fewest_shuffles(const Demand& demand);

// [threads][seats]. Keeps the most words in place, then most in their very register; with up to 8
// entries the fewest shuffles of all assignments.
std::vector<int> assign_entries(const Demand& demand);

}  // namespace vqgen::fusion
