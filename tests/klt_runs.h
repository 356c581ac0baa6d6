// KLT formats of keys or values in parts: runs of (channels, channels of a sub-vector) with int8
// entries, as klt-1bit has them.
#pragma once

#include <numeric>
#include <utility>
#include <vector>

#include "core/format/vq_format.h"

namespace vqgen::test {

inline VqFormat klt_runs(const std::vector<std::pair<int, int>>& runs) {
  std::vector<VqFormat> parts;
  int first = 0;
  for (const auto& [channels, size] : runs) {
    VqFormat part{.vector_size = size, .index_bits = 8};
    part.scope = Scope::head;
    part.entry_type = EntryType::int8;
    part.stage_scales = true;
    part.channels.resize(static_cast<std::size_t>(channels));
    std::iota(part.channels.begin(), part.channels.end(), first);
    first += channels;
    parts.push_back(std::move(part));
  }
  VqFormat format = in_parts(std::move(parts));
  format.center = format.klt = true;
  return format;
}

// 32 codes of 128 channels, whose sub-vectors have 2, 4 and 8.
inline VqFormat klt_of_three_runs() { return klt_runs({{32, 2}, {32, 4}, {64, 8}}); }

}  // namespace vqgen::test
