// Key channels whose scales are far from the others', which costs resolution in a kernel that gives
// all channels of a query one scale.
#pragma once

#include <vector>

#include "core/format/quantized_tensor.h"
#include "runtime/verify/random.h"

namespace vqgen {

inline constexpr double kUneven = 300;  // an uneven channel's magnitude over its neighbours'

// True if scales or smooth factors of these keys differ from channel to channel.
bool has_channel_scales(const VqFormat& keys, std::int64_t head_dim);

// Gives three channels (or channel groups) of keys per head scales of up to kUneven times theirs: a
// dead one (all 0), a biased one (all near the largest number) and an outlying one; keys in parts,
// one outlying part. Needs filled codes. Returns [heads][columns]: whether a channel is one. Other
// keys and small heads stay.
std::vector<bool> make_uneven(QuantizedTensor& keys, Random& random);

}  // namespace vqgen
