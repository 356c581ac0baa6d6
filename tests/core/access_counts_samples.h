// A small profile whose parts sum to its counts, for tests of core/access_*.
#pragma once

#include <algorithm>
#include <bit>

#include "core/access/access_counts.h"

namespace vqgen {

// counts[unit * num_codebooks + stage][part][entry], all of one size; hot = 2 of 4 entries, 4 of 8,
// ...
inline AccessCounts profile_of(const std::vector<std::vector<std::vector<std::int64_t>>>& counts,
                               int num_codebooks = 1) {
  const std::size_t entries = counts.front().front().size();
  AccessCounts profile;
  profile.item = "layer0";
  profile.format.vector_size = 4;
  profile.format.index_bits = std::countr_zero(entries);
  profile.format.num_codebooks = num_codebooks;
  profile.format.scope = Scope::head;
  profile.units = static_cast<std::int64_t>(counts.size()) / num_codebooks;
  profile.num_codebooks = num_codebooks;
  profile.entries = static_cast<int>(entries);
  AccessCountsParts& parts = profile.parts;
  parts.number = static_cast<int>(counts.front().size());
  parts.hot = profile.entries / 2;
  const auto hot = static_cast<std::ptrdiff_t>(parts.hot);
  for (const auto& codebook : counts) {
    std::vector<std::int64_t> whole(entries, 0);
    for (const auto& part : codebook) {
      for (std::size_t entry = 0; entry < entries; ++entry) whole[entry] += part[entry];
    }
    profile.counts.insert(profile.counts.end(), whole.begin(), whole.end());
    const std::vector<std::uint32_t> order = hot_first(whole);
    for (const auto& part : codebook) {
      std::int64_t accesses = 0;
      for (const std::int64_t count : part) accesses += count;
      parts.accesses.push_back(accesses);
      const std::vector<std::uint32_t> own = hot_first(part);
      for (std::ptrdiff_t rank = 0; rank < hot; ++rank) {
        parts.counts.push_back(part[order[static_cast<std::size_t>(rank)]]);
      }
      for (std::ptrdiff_t size = 1; size <= hot; size *= 2) {
        parts.common.push_back(static_cast<int>(
            std::count_if(order.begin(), order.begin() + size, [&](std::uint32_t entry) {
              return std::find(own.begin(), own.begin() + size, entry) != own.begin() + size;
            })));
      }
    }
  }
  return profile;
}

}  // namespace vqgen
