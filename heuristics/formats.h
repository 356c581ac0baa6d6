// Decides if other entries with as many bits of code are faster: 8 bits instead of 16, or the
// reverse. Codes stay, and the loss differs little (docs/guides/quantize.md).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "heuristics/choose.h"

namespace vqgen {

struct OtherEntries {
  Problem problem = {};      // differs in its entries only
  std::string formats = {};  // "keys vecinfer-d4b8i8, values vecinfer-d4b8"
  double us = 0;             // that its chosen plan is expected to take
};

// The shipped preset with the other type of entries that is this one else, in its layout; nothing
// where there is none.
struct OtherPreset {
  std::string name;
  VqFormat format;
};
std::optional<OtherPreset> other_entries(const VqFormat& format, bool values);

// The least speedup worth reporting, which the model can also resolve.
inline constexpr double kWorthChanging = 1.05;

// The problems that differ in the entries of keys, of values, of both, or of weights, whose chosen
// plan is expected to be kWorthChanging times as fast as one that takes `us`, the fastest first.
// None of ops without such entries, nor of those whose plan is not modelled.
std::vector<OtherEntries> faster_entries(const Problem& problem, const GpuSpec& gpu, double us);

}  // namespace vqgen
