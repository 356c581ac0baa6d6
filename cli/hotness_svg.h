// Figures 8 and 9 of VQ-LLM for the tensors of a bundle: how uneven the accesses of entries are,
// and whether the hot entries are hot all over the tensor.
#pragma once

#include <string>
#include <vector>

#include "core/hotness/hotness_profile.h"

namespace vqgen::cli {

// A row of two panels a tensor, of its most read codebook: the accesses of all entries hot-first,
// and the hottest entries part by part. `source` stands in the title.
std::string hotness_svg(const std::vector<HotnessProfile>& profiles, const std::string& source);

}  // namespace vqgen::cli
