// An exchange as device code.
#pragma once

#include <string>

#include "heuristics/fusion/exchange.h"

namespace vqgen::fusion {

// The function `void NAME(vq::u32 (&r)[registers])`, which all 32 lanes call with the registers
// that they dequantized into and leave with those that they consume. It needs VQ_DEVICE, vq::lane
// and vq::shuffle_xor, and branches nowhere. A layout of fewer than 17 threads is repeated over the
// warp. The exchange must be possible.
std::string exchange_text(const Exchange& exchange, const std::string& name);

}  // namespace vqgen::fusion
