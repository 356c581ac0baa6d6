// Placement: which entries of each codebook stand at which level, hot entries first (VQ-LLM V).
#pragma once

#include <string>

#include "core/json/fields.h"

namespace vqgen {

using vq::Placement;

inline Placement all_global() { return {}; }
inline Placement all_shared(int entries) { return {.shared = entries}; }
inline Placement all_replicated(int entries, int copies) {
  return {.replicated = entries, .copies = copies};
}

// "g", "s", "r8c16x64s128": what kernel names call a placement of codebooks of `entries`. Levels
// that are empty are left out, and "s" alone says that all entries are shared.
std::string short_name(const Placement& placement, int entries);

}  // namespace vqgen
