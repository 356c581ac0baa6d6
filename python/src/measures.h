// What a matrix lost on its way through int8 and back, of arrays of other libraries.
#pragma once

#include <vqgen/launch.h>

#include "python/src/object.h"

namespace vqgen::python {

// Of float32 [tokens, channels] and queries [queries, channels] or None, contiguous, in the CPU's
// memory; measured without the GIL. StatusError names the array and what it has to be.
vqgen_scalar_errors measured_errors(PyObject* original, PyObject* restored, PyObject* queries);

}  // namespace vqgen::python
