// Exchange: how words get from the threads that dequantize them to those that consume them, without
// shared memory (VQ-LLM, section VI-B). A shuffle is one instruction: every thread sends one
// register of its choice to thread ^ mask. All choices are by the thread's number alone and every
// register is named, so that the whole is straight-line code of shuffles and selects.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/fields.h"
#include "heuristics/fusion/layout.h"

namespace vqgen::fusion {

// One source of a choice, and the threads (bit t for thread t) that take it.
struct Pick {
  int source = 0;
  std::uint32_t threads = 0;
};
// Disjoint threads; what those take that no pick names does not matter. At least one pick.
using Choice = std::vector<Pick>;

struct Shuffle {
  int mask = 0;  // 1..31
  Choice sent;   // sources are registers of the producer
};

// For each axis the data's coordinate that stands at each coordinate of the consumer. An order that
// is not 0, 1, 2... must be followed by whoever shares the axis: by the other operand at its load
// for a reduction axis, by the store for an axis of the output.
using Orders = std::vector<std::vector<int>>;

// Where data passes from dequantization to computation.
enum class Fusion { registers, shared };

struct Exchange {
  FragmentLayout producer;
  FragmentLayout consumer;
  Orders orders;
  // [threads][entries_per_thread]: the producer's entry that the thread looks up into its registers
  // from seat * entry_registers on.
  std::vector<int> entries;
  std::vector<Shuffle> shuffles;  // those of a mask stand together
  // For each register of the consumer: source s is the thread's own register s, or what it was sent
  // by shuffle number s - registers.
  std::vector<Choice> results;
  int fewest = 0;  // no exchange for these orders, of any number of hops, has fewer shuffles
  Fusion fusion = Fusion::shared;
  std::string impossible;  // why registers alone cannot do it; then nothing below `orders` is set
};

int steps(const Exchange& exchange);    // different masks
int selects(const Exchange& exchange);  // two-way choices of all shuffles and results

// Threads that exchange data with each other, directly or not; ascending.
std::vector<std::vector<int>> mini_warps(const Exchange& exchange);

// The registers [thread][register] of all threads after the exchange. The exchange must be
// possible.
using Registers = std::vector<std::vector<std::uint32_t>>;
Registers exchanged(const Exchange& exchange, const Registers& registers);

// What a thread takes by `choice`; -1 where no pick names it.
int picked(const Choice& choice, int thread);

}  // namespace vqgen::fusion

template <>
inline constexpr auto vqgen::enum_names<vqgen::fusion::Fusion> = std::array{"registers", "shared"};
