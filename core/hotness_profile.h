// HotnessProfile: how often each entry of a tensor's codebooks is read.
#pragma once

#include <cstdint>
#include <vector>

#include "core/fields.h"

namespace vqgen {

struct HotnessProfile {
  int entries = 0;
  std::vector<std::int64_t> counts;

  static constexpr auto fields() {
    using H = HotnessProfile;
    return std::make_tuple(
        field("entries", &H::entries, required(1, 65536), "entries of a codebook"),
        field("counts", &H::counts, required(0, 9e15), "accesses, [unit][stage][entry] flattened"));
  }
  bool operator==(const HotnessProfile&) const = default;
};

}  // namespace vqgen
