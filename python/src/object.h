// Owners for Python objects, and failures that cross C++ frames. Limited API of Python 3.11.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <vqgen/vqgen.hpp>

#include <string>
#include <utility>

namespace vqgen::python {

// A strong reference. The GIL is held wherever one is made, copied or let go.
class Object {
 public:
  Object() = default;
  explicit Object(PyObject* owned) : object_(owned) {}
  Object(Object&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Object& operator=(Object&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Object() { Py_XDECREF(object_); }
  static Object borrowed(PyObject* object) {
    Py_XINCREF(object);
    return Object(object);
  }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// A Python error is set.
struct PythonError {};

inline Object checked(PyObject* owned) {
  if (owned == nullptr) throw PythonError{};
  return Object(owned);
}

// A fault of the caller's, in one line.
inline StatusError bad_input(const std::string& line) { return {VQGEN_BAD_INPUT, line.c_str()}; }

// Other Python threads run meanwhile.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() { PyEval_RestoreThread(thread_); }

 private:
  PyThreadState* thread_;
};

// Text of a str. PythonError where it is none.
inline std::string text_of(PyObject* object) {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object, &size);
  if (text == nullptr) throw PythonError{};
  return {text, static_cast<std::size_t>(size)};
}

inline std::int64_t integer_of(PyObject* object) {
  const long long value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred() != nullptr) throw PythonError{};
  return value;
}

}  // namespace vqgen::python
