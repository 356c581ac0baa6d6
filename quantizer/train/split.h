// Shares out key channels among parts by how well a common quantizer reconstructs each (VQKV,
// section 3.1).
#pragma once

#include <span>
#include <vector>

#include "core/format/vq_format.h"
#include "quantizer/units.h"

namespace vqgen {

// For each channel: squared error over the sum of squares, over all heads and tokens; 0 for an
// all-zero channel. The tensors have one shape.
std::vector<double> channel_errors(const FloatTensor& original, const FloatTensor& reconstructed);

// Shares out channels among the same parts and part sizes by error: the largest errors go to the
// part with most bits per channel (the first on ties), and so on, ascending within a part. Requires
// an error per channel.
VqFormat share_channels(const VqFormat& keys, std::span<const double> errors);

}  // namespace vqgen
