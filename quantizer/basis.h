// What a tensor has beside codes and codebooks where its rows stand in a basis (vq/layout/basis.h),
// and the gain of its codebook sets.
#pragma once

#include <cstdint>
#include <string>

#include "core/format/quantized_tensor.h"
#include "quantizer/units.h"

namespace vqgen {

// x = z rotation^T + mean, in place, of rows [batch][heads][rows][columns].
void leave_basis(FloatTensor& rows, const QuantizedTensor& tensor);

// What is wrong with the rotation, whose columns are orthogonal to 1e-3, and the remedy; empty if
// it is one.
std::string rotation_fault(const QuantizedTensor& tensor);

// Codebook sets, of all parts together.
std::int64_t unit_count(const QuantizedTensor& tensor);

// What is wrong with the gain, and the remedy: an entry times it leaves its type. Empty if none
// does.
std::string gain_fault(const QuantizedTensor& tensor);

// Multiplies the entries of each unit, or its stage scales if the format has them, by its gain, of
// which the tensor then has none: codes of entries without a gain stand for vectors of the length
// that they encode. gain_fault() is empty.
void take_gain(QuantizedTensor& tensor);

}  // namespace vqgen
