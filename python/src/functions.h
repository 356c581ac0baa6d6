// Functions of vqgen._core that need no runtime.
#pragma once

#include "python/src/object.h"

namespace vqgen::python {

PyObject* format_fields(PyObject*, PyObject* format);
PyObject* weight_tensors(PyObject*, PyObject* args);
PyObject* e8p_table(PyObject*, PyObject*);
PyObject* scalar_errors(PyObject*, PyObject* args);
PyObject* rotate_rows(PyObject*, PyObject* args);

}  // namespace vqgen::python
