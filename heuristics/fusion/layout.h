// FragmentLayout: which thread of a warp holds which elements of a tile in which of its registers.
// It is a table, so that any bijection is one; the layouts that matter are made by the functions
// below.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace vqgen::fusion {

inline constexpr int kMostThreads = 32;
inline constexpr int kMostRegisters = 64;

// Layouts count in int; what they index counts in size_t.
inline std::size_t index_of(int value) { return static_cast<std::size_t>(value); }

struct Axis {
  std::string name;
  int extent = 1;
  bool operator==(const Axis&) const = default;
};

// A word is what one register of one thread holds: number thread * registers + register. An entry
// is what one lookup brings: entry_registers registers of one thread that stay together and in
// order, word number / entry_registers.
struct FragmentLayout {
  std::string name;
  std::vector<Axis> axes;  // of the tile
  int threads = 32;
  int registers = 1;          // a thread
  int slots = 2;              // elements a register: 2 of 16 bits or 4 of 8
  int entry_registers = 1;    // divides registers
  std::vector<int> elements;  // [threads][registers][slots]: index over the axes, the last fastest

  int words() const { return threads * registers; }
  int entries() const { return words() / entry_registers; }
  int entries_per_thread() const { return registers / entry_registers; }
  int element(int word, int slot) const { return elements[index_of(word * slots + slot)]; }
};

// Error(bad_input) unless every element of the tile stands at exactly one place.
void validate(const FragmentLayout& layout);

// Where `element` lies on axis number `axis`.
int coordinate(const std::vector<Axis>& axes, int element, int axis);

// The same layout with its axes in another order, by name; unchanged where they are not the same
// ones.
FragmentLayout with_axes(FragmentLayout layout, const std::vector<Axis>& axes);

// A layout by what each bit of the place (slot bits, then register bits, then thread bits, the
// lowest first) adds to the element's index by xor. Sizes and extents are powers of two.
// Error(bad_input) where the map is not invertible.
struct BitCounts {
  int slot = 0;
  int registers = 0;
  int thread = 0;
};
FragmentLayout bit_linear(std::string name, std::vector<Axis> axes, BitCounts bits,
                          const std::vector<int>& images);

// Dequantization of a tile of rows x columns from entries of `vector_size` columns: entry after
// entry along the columns, then the rows; entry e goes to thread e % threads, so that neighbours
// read neighbouring codes.
FragmentLayout dequantized(Axis rows, Axis columns, int vector_size, int slots = 2,
                           int threads = 32);

// Operands of mma.sync as PTX defines their fragments, for tiles of several instructions: registers
// go through those of the first, then along k, then along the other axis.
enum class Mma { m16n8k8, m16n8k16, m16n8k32_s8 };
FragmentLayout mma_a(Mma mma, int m_tiles = 1, int k_tiles = 1);  // axes m, k
FragmentLayout mma_b(Mma mma, int n_tiles = 1, int k_tiles = 1);  // axes n, k

}  // namespace vqgen::fusion
