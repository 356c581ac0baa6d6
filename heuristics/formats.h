// Whether other entries of as many bits make a problem faster: those of 8 bits for those of 16, or
// the other way round. Codes stay, and a loss that differs by little (docs/guides/quantize.md).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "heuristics/choose.h"

namespace vqgen {

struct OtherEntries {
  Problem problem = {};      // the same but for the entries
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

// How many times as fast other entries are that are worth saying, and that the model tells apart.
inline constexpr double kWorthChanging = 1.05;

// The problems that differ in the entries of keys, of values, of both, or of weights, whose chosen
// plan is expected to be kWorthChanging times as fast as one that takes `us`, the fastest first.
// None of ops without such entries, nor of those whose plan is not modelled.
std::vector<OtherEntries> faster_entries(const Problem& problem, const GpuSpec& gpu, double us);

}  // namespace vqgen
