#include "heuristics/fusion/layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace vqgen::fusion {
namespace {

[[noreturn]] void refuse(const FragmentLayout& layout, const std::string& why) {
  throw Error(ErrorKind::bad_input, fmt::format("fragment layout '{}': {}", layout.name, why));
}

std::int64_t tile_elements(const std::vector<Axis>& axes) {
  std::int64_t elements = 1;
  for (const Axis& axis : axes) {
    constexpr int kMost = kMostThreads * kMostRegisters * 4;
    if (axis.extent < 1 || axis.extent > kMost || elements > kMost) return -1;
    elements *= axis.extent;
  }
  return elements;
}

}  // namespace

void validate(const FragmentLayout& layout) {
  if (layout.threads < 1 || layout.threads > kMostThreads) {
    refuse(layout, fmt::format("{} threads; give 1 to {}", layout.threads, kMostThreads));
  }
  if (layout.registers < 1 || layout.registers > kMostRegisters) {
    refuse(layout, fmt::format("{} registers; give 1 to {}", layout.registers, kMostRegisters));
  }
  if (layout.slots != 1 && layout.slots != 2 && layout.slots != 4) {
    refuse(layout, fmt::format("{} elements a register; give 1, 2 or 4", layout.slots));
  }
  if (layout.entry_registers < 1 || layout.registers % layout.entry_registers != 0) {
    refuse(layout, fmt::format("{} registers are not whole entries of {}; change the tile",
                               layout.registers, layout.entry_registers));
  }
  const std::int64_t places = std::int64_t{layout.words()} * layout.slots;
  for (std::size_t i = 0; i < layout.axes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (layout.axes[i].name == layout.axes[j].name) {
        refuse(layout, fmt::format("two axes are named '{}'; rename one", layout.axes[i].name));
      }
    }
  }
  const std::int64_t elements = tile_elements(layout.axes);
  if (elements != places || layout.elements.size() != static_cast<std::size_t>(places)) {
    refuse(layout, fmt::format("{} places ({} listed) for a tile of {} elements; make them equal",
                               places, layout.elements.size(), elements));
  }
  std::vector<bool> seen(static_cast<std::size_t>(places), false);
  for (const int element : layout.elements) {
    if (element < 0 || element >= places || seen[index_of(element)]) {
      refuse(layout,
             fmt::format("element {} stands at no place or at two; list each once", element));
    }
    seen[index_of(element)] = true;
  }
}

int coordinate(const std::vector<Axis>& axes, int element, int axis) {
  for (std::size_t i = axes.size() - 1; i > index_of(axis); --i) {
    element /= axes[i].extent;
  }
  return element % axes[index_of(axis)].extent;
}

FragmentLayout with_axes(FragmentLayout layout, const std::vector<Axis>& axes) {
  if (!std::is_permutation(axes.begin(), axes.end(), layout.axes.begin(), layout.axes.end())) {
    return layout;
  }
  for (int& element : layout.elements) {
    int reordered = 0;
    for (const Axis& axis : axes) {
      const auto from = std::find(layout.axes.begin(), layout.axes.end(), axis);
      const int number = static_cast<int>(from - layout.axes.begin());
      reordered = reordered * axis.extent + coordinate(layout.axes, element, number);
    }
    element = reordered;
  }
  layout.axes = axes;
  return layout;
}

FragmentLayout bit_linear(std::string name, std::vector<Axis> axes, BitCounts bits,
                          const std::vector<int>& images) {
  FragmentLayout layout;
  layout.name = std::move(name);
  layout.axes = std::move(axes);
  const auto count = static_cast<std::size_t>(bits.slot + bits.registers + bits.thread);
  if (bits.slot < 0 || bits.slot > 2 || bits.registers < 0 || bits.registers > 6 ||
      bits.thread < 0 || bits.thread > 5 || images.size() != count) {
    refuse(layout, fmt::format("{} images for {} slot, {} register and {} thread bits; give one a "
                               "bit, of at most 2, 6 and 5",
                               images.size(), bits.slot, bits.registers, bits.thread));
  }
  layout.threads = 1 << bits.thread;
  layout.registers = 1 << bits.registers;
  layout.slots = 1 << bits.slot;
  for (std::size_t place = 0; place < std::size_t{1} << count; ++place) {
    int element = 0;
    for (std::size_t bit = 0; bit < count; ++bit) {
      if ((place >> bit & 1) != 0) element ^= images[bit];
    }
    layout.elements.push_back(element);
  }
  validate(layout);
  return layout;
}

FragmentLayout dequantized(Axis rows, Axis columns, int vector_size, int slots, int threads) {
  FragmentLayout layout;
  layout.name = fmt::format("entries of {} along {}", vector_size, columns.name);
  layout.axes = {rows, columns};
  layout.threads = threads;
  layout.slots = slots;
  const std::int64_t elements = tile_elements(layout.axes);
  if (slots < 1 || vector_size < slots || vector_size % slots != 0 ||
      columns.extent % vector_size != 0 || threads < 1 || elements < 1 ||
      elements % (std::int64_t{vector_size} * threads) != 0) {
    refuse(layout, fmt::format("a tile of {} x {} is not whole entries of whole registers for each "
                               "of {} threads; change the tile",
                               rows.extent, columns.extent, threads));
  }
  layout.entry_registers = vector_size / slots;
  layout.registers = static_cast<int>(elements / slots / threads);
  for (int thread = 0; thread < threads; ++thread) {
    for (int seat = 0; seat < layout.entries_per_thread(); ++seat) {
      const int entry = seat * threads + thread;
      for (int i = 0; i < vector_size; ++i) layout.elements.push_back(entry * vector_size + i);
    }
  }
  validate(layout);
  return layout;
}

namespace {

// Both operands are made of 8 rows (m or n) x 4 registers' worth of k, which lane g * 4 + c holds
// as row g and the c-th word of k. A has two of these along m before it goes along k.
struct Operand {
  const char* letter;
  const char* axis;
  int rows;  // of one instruction
  int k;     // likewise
  int slots;
};

FragmentLayout operand(const Operand& shape, int row_tiles, int k_tiles, const char* instruction) {
  FragmentLayout layout;
  layout.name = fmt::format("{} of {}", shape.letter, instruction);
  const int k_extent = shape.k * k_tiles;
  layout.axes = {{shape.axis, shape.rows * row_tiles}, {"k", k_extent}};
  layout.slots = shape.slots;
  const int half_k = 4 * shape.slots;
  const int row_halves = shape.rows / 8;
  const int a_tile = row_halves * (shape.k / half_k);
  layout.registers = a_tile * row_tiles * k_tiles;
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < layout.registers; ++r) {
      const int within = r % a_tile;
      const int k_tile = r / a_tile % k_tiles;
      const int row = r / a_tile / k_tiles * shape.rows + within % row_halves * 8 + lane / 4;
      const int k = k_tile * shape.k + within / row_halves * half_k + lane % 4 * shape.slots;
      for (int slot = 0; slot < shape.slots; ++slot) {
        layout.elements.push_back(row * k_extent + k + slot);
      }
    }
  }
  validate(layout);
  return layout;
}

struct MmaShape {
  const char* name;
  int k;
  int slots;
};
MmaShape shape_of(Mma mma) {
  switch (mma) {
    case Mma::m16n8k8:
      return {"mma.m16n8k8", 8, 2};
    case Mma::m16n8k16:
      return {"mma.m16n8k16", 16, 2};
    case Mma::m16n8k32_s8:
      return {"mma.m16n8k32.s8", 32, 4};
  }
  throw Error(ErrorKind::bad_input, "fragment layout: no such mma; choose one of enum Mma");
}

}  // namespace

FragmentLayout mma_a(Mma mma, int m_tiles, int k_tiles) {
  const MmaShape shape = shape_of(mma);
  return operand({"A", "m", 16, shape.k, shape.slots}, m_tiles, k_tiles, shape.name);
}

FragmentLayout mma_b(Mma mma, int n_tiles, int k_tiles) {
  const MmaShape shape = shape_of(mma);
  return operand({"B", "n", 8, shape.k, shape.slots}, n_tiles, k_tiles, shape.name);
}

}  // namespace vqgen::fusion
