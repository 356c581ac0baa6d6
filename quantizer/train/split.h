// Which channels of keys go to which part (VQKV, section 3.1: by how well one quantizer of all
// channels reconstructs each).
#pragma once

#include <span>
#include <vector>

#include "core/format/vq_format.h"
#include "quantizer/units.h"

namespace vqgen {

// Of each channel the squared error over the sum of squares, of all heads and tokens together; 0
// where the channel is all zero. The tensors have one shape.
std::vector<double> channel_errors(const FloatTensor& original, const FloatTensor& reconstructed);

// The same parts, as large as they are, with channels anew: those of the largest errors go to the
// part that has most bits a channel, the first of equals, and so on. In each part they ascend.
// Requires an error for each channel.
VqFormat share_channels(const VqFormat& keys, std::span<const double> errors);

}  // namespace vqgen
