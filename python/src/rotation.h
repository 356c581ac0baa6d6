// Rows rotated by libvqgen, for Python.
#pragma once

#include <memory>

#include "python/src/object.h"
#include "python/src/runtime.h"

namespace vqgen::python {

// A capsule with the rotator, which keeps the runtime.
PyObject* make_rotator(const std::shared_ptr<RuntimeState>& state, int element,
                       std::int64_t features, bool back, void* stream);

// Rotates rows of x to y, all of them addresses of memory of the rotator's device that the caller
// has judged.
void rotate(PyObject* rotator, std::uint64_t x, std::uint64_t signs, std::uint64_t y,
            std::int64_t rows, void* stream);

}  // namespace vqgen::python
