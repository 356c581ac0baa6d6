// Channels of keys whose scales are far from the others': what eats the resolution of a kernel that
// gives all channels of a query one scale.
#pragma once

#include <vector>

#include "core/format/quantized_tensor.h"
#include "runtime/verify/random.h"

namespace vqgen {

inline constexpr double kUneven = 300;  // an uneven channel's magnitude over its neighbours'

// Whether scales or smooth factors of these keys differ from channel to channel.
bool has_channel_scales(const VqFormat& keys, std::int64_t head_dim);

// Of each head three channels of keys, or channel groups where these have the scales, get scales of
// up to kUneven times theirs: a dead one, whose numbers are 0, as where another program chose the
// scale; a biased one, whose numbers are the largest or near it throughout; an outlying one, whose
// numbers stay. Codes must have been filled. Returns [heads][columns]: whether it is one of these.
// Keys without scales of channels, and heads of fewer than four, are left as they are.
std::vector<bool> make_uneven(QuantizedTensor& keys, Random& random);

}  // namespace vqgen
