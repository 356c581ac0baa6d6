// The one number that is fitted where a tensor is quantized to the E8P lattice.
#pragma once

#include <span>

namespace vqgen {

// The scale by which the points of the lattice with these entries ([256][8]) miss `vectors`
// ([n][8], n >= 1, finite) least in the sum of squares: of the vectors' RMS times 2^(k/2), k =
// -4..8, the best, which is then moved by factors of 2^(1/4), 2^(1/8), .. 2^(1/32) where that is
// better. Without chance, so the same vectors give the same bits. 0 where all vectors are zero,
// since the lattice has no point there.
float lattice_scale(std::span<const float> entries, std::span<const float> vectors);

}  // namespace vqgen
