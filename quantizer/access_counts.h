// Counting how often the codes of quantized tensors name each entry; and renumbering entries
// hot-first, so that a boundary between levels of a codebook is one comparison of a code (VQ-LLM
// sec. V-B). Codebooks and codes change together: what they decode to does not.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/access/access_counts.h"
#include "quantizer/bundle.h"

namespace vqgen {

inline constexpr int kAccessCountsParts = 8;

// Every stored code is one access, whichever tokens a query attends to. Parts are tokens of a cache
// and output features of weights; 1 <= parts <= 1024. The tensor must be as read_bundle() or
// encode() gives it.
AccessCounts count_accesses(const QuantizedTensor& tensor, const std::string& item, Operand operand,
                            int parts = kAccessCountsParts);

// One profile per quantized tensor, in the order of items; keys before values.
std::vector<AccessCounts> profile_bundle(const Bundle& bundle, int parts = kAccessCountsParts);

// Makes entry r of every codebook the r-th most read by `counts`, [unit][stage][entry], ties in
// present order; decode() is unchanged, padding bits become zero. On error the tensor is unchanged:
// Error(infeasible) if codes are no entry numbers, Error(bad_input) on a wrong size.
void reorder(QuantizedTensor& tensor, std::span<const std::int64_t> counts);

// Every tensor of the bundle, by the profile of its item and operand: one of its own codes, or of
// others with the same codebooks, such as a calibration text's. Error(bad_input) where a tensor has
// none, or one of another format or number of units; then the bundle may be reordered in part.
void reorder(Bundle& bundle, const std::vector<AccessCounts>& profiles);

}  // namespace vqgen
