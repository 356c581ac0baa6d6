// Renumbering entries hot-first, so that a boundary between levels of a codebook is one comparison
// of a code (VQ-LLM sec. V-B). Codebooks and codes change together: what they decode to does not.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/hotness/hotness_profile.h"
#include "quantizer/bundle.h"

namespace vqgen {

// Entry r of every codebook becomes the r-th most read by `counts`, [unit][stage][entry], equal
// ones in the order that they have. decode() gives the same bits as before, padding bits of the
// codes become zero, and nothing else changes. Error(infeasible) where codes are no numbers of a
// table's entries, Error(bad_input) where `counts` are of another size; then the tensor is as it
// was.
void reorder(QuantizedTensor& tensor, std::span<const std::int64_t> counts);

// Every tensor of the bundle, by the profile of its item and operand: one of its own codes, or of
// others with the same codebooks, such as a calibration text's. Error(bad_input) where a tensor has
// none, or one of another format or number of units; then the bundle may be reordered in part.
void reorder(Bundle& bundle, const std::vector<HotnessProfile>& profiles);

}  // namespace vqgen
