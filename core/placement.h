// Placement: which entries of each codebook stand at which level, hot entries first (VQ-LLM V).
#pragma once

#include <string>

#include "core/fields.h"

namespace vqgen {

// Boundaries by entry number, each of every unit and stage alike. An entry stands at the first
// level whose boundary is above its number; the rest stay in global memory. So a level whose
// boundary is not above those before it is empty, and all zeros leave everything in global memory.
struct Placement {
  int registers = 0;
  int replicated = 0;
  int copies = 1;
  int shared = 0;

  static constexpr auto fields() {
    using P = Placement;
    return std::make_tuple(
        field("registers", &P::registers, optional_in(0, 64),
              "entries below it stand in the registers of every thread"),
        field("replicated", &P::replicated, optional_in(0, 65536),
              "further entries below it stand in shared memory `copies` times, a copy a lane"),
        field("copies", &P::copies, optional_in(1, 32),
              "copies of each replicated entry, a power of two"),
        field("shared", &P::shared, optional_in(0, 65536),
              "further entries below it stand in shared memory once; the rest in global memory"));
  }
  bool operator==(const Placement&) const = default;
};

inline Placement all_global() { return {}; }
inline Placement all_shared(int entries) { return {.shared = entries}; }
inline Placement all_replicated(int entries, int copies) {
  return {.replicated = entries, .copies = copies};
}

// "g", "s", "r8c16x64s128": what kernel names call a placement of codebooks of `entries`. Levels
// that are empty are left out, and "s" alone says that all entries are shared.
std::string short_name(const Placement& placement, int entries);

}  // namespace vqgen
