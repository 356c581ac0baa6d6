// What the space takes from the forms of int8_quantize and int8_dequantize.
#pragma once

#include "heuristics/kernels/slice.h"

namespace vqgen {

// Adds the form, whose threads take so many channels and tokens, with the numbers of threads and of
// lanes along the channels that are worth a look.
void add_form(Candidates& to, const ScalarMatrix& op, ScalarForm form, int vector, int tokens);

}  // namespace vqgen
