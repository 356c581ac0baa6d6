// Decides if other formats of as many bits are faster.
//
// Other entries have 8 bits instead of 16, or the reverse: codes stay, and the loss differs little
// (docs/guides/quantize.md). Other presets need training of their own, and have another loss
// (docs/formats.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "heuristics/choose.h"

namespace vqgen {

struct OtherFormats {
  Problem problem = {};      // differs in its formats only
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

// The least speedup worth training anew. It is greater, as the model errs more between kernels that
// differ in more than entries.
inline constexpr double kWorthTraining = 1.2;

// The problems that differ in the entries of keys, of values, of both, or of weights, whose chosen
// plan is expected to be kWorthChanging times as fast as one that takes `us`, the fastest first.
// None of ops without such entries, nor of those whose plan is not modelled.
std::vector<OtherFormats> faster_entries(const Problem& problem, const GpuSpec& gpu, double us);

// The fastest problem whose keys, values or weights are in other presets that ship for the same use
// and have as many bits per number, if its chosen plan is expected to be kWorthTraining times as
// fast as one that takes `us`, as the chosen plan of `problem`, and as faster_entries(). Presets
// with a basis of their own are left out: the model expects them to be faster than they are.
// Nothing of other ops, nor where the plan is not modelled.
std::optional<OtherFormats> faster_presets(const Problem& problem, const GpuSpec& gpu, double us);

}  // namespace vqgen
