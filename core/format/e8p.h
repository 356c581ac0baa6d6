// The table of the E8P lattice of QuIP# (Tseng et al., 2024, section 4): 256 vectors of positive
// half-integers, from which signs and a shift make the 65,536 points of a code
// (templates/vq/layout/format.h). Kernels, decoders and bundles take the table from the data, so
// that another one of the same kind serves as well; this is the one that the quantizer writes.
#pragma once

#include <vector>

namespace vqgen {

inline constexpr int kE8pEntries = 256;
inline constexpr int kE8pVectorSize = 8;

// [256][8]: the 227 vectors of squared norm up to 10, and the 29 lexicographically smallest of
// squared norm 12 with five 3/2 and three 1/2 (any 29 decode alike). The order is by norm, then
// lexicographic: small norms are likelier for Gaussian data, so hot entries come first.
std::vector<float> e8p_table();

// True if `value` may be in such a table: half-integers from 1/2 to 7/2, whose points, up to 15/4
// in steps of 1/4, are exact in f16 and bf16.
bool is_e8p_element(float value);

}  // namespace vqgen
