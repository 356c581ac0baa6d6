// vqgen's exceptions: one class for each status of the C interface. They live here, so that they
// are the same ones however often Python's modules are imported.
#pragma once

#include "python/src/object.h"

namespace vqgen::python {

// Adds the classes to the module; PythonError.
void add_errors(PyObject* module);

// Sets the exception of a status.
void set_error(const StatusError& error);

}  // namespace vqgen::python
