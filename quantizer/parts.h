// Keys in parts (core/format/vq_format.h), part by part: rows and codebooks of the parts are
// consecutive, as in templates/vq/layout/parts.h.
#pragma once

#include <span>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "quantizer/units.h"

namespace vqgen {

// take_channels() copies some channels in the order of their list; put_channels() copies them back.
FloatTensor take_channels(const FloatTensor& tensor, std::span<const int> channels);
void put_channels(const FloatTensor& part, std::span<const int> channels, FloatTensor& to);

// A part of keys as a tensor of its own, whose columns are the part's channels, row after row.
QuantizedTensor take_part(const QuantizedTensor& keys, std::size_t part);

// The inverse: keys of `format` and `columns` channels of those tensors, one a part, each with rows
// after each other.
QuantizedTensor join_parts(const VqFormat& format, std::span<const QuantizedTensor> parts,
                           std::int64_t columns);

// Error(bad_input) that begins with `what`, which is not built for rows in parts.
void require_one_format(const VqFormat& format, const char* what);

}  // namespace vqgen
