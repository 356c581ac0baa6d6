// How functions for Python turn what they throw into Python's errors.
#pragma once

#include <new>

#include "python/src/errors.h"
#include "python/src/object.h"

namespace vqgen::python {

// Calls `act`; what it throws becomes a Python error, and the result `failed`.
template <class Result, class Act>
Result guarded(Result failed, const Act& act) noexcept {
  try {
    return in_python(act);
  } catch (const PythonError&) {
  } catch (const StatusError& error) {
    set_error(error);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    set_error({VQGEN_INTERNAL, error.what()});
  }
  return failed;
}

template <class Act>
auto without_gil(const Act& act) {
  const WithoutGil released;
  return act();
}

}  // namespace vqgen::python
