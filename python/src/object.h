// Owners for Python objects, and failures that cross C++ frames. Limited API of Python 3.11.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>
#include <vqgen/vqgen.hpp>

#include <cstdint>
#include <string>
#include <utility>

namespace vqgen::python {

[[noreturn]] inline void park() noexcept {
  for (;;) ::pause();
}

// Calls what may wait for the GIL. Up to Python 3.13 a thread that waits for it while the
// interpreter ends is unwound by pthread_exit(), which no destructor here survives: it is parked.
// The handler's reference is null there, which UBSan would trap.
template <class Act>
__attribute__((no_sanitize("null"))) auto in_python(const Act& act) {
  try {
    return act();
  } catch (const abi::__forced_unwind&) {
    park();
  }
}

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
  ~Object() {
    in_python([this] { Py_XDECREF(object_); });
  }
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

// What `act` gives, which may run Python code; PythonError where that is null.
template <class Act>
Object called(const Act& act) {
  return checked(in_python(act));
}

// A fault of the caller's, in one line.
inline StatusError bad_input(const std::string& line) { return {VQGEN_BAD_INPUT, line.c_str()}; }

// Other Python threads run meanwhile.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    in_python([this] { PyEval_RestoreThread(thread_); });
  }

 private:
  PyThreadState* thread_;
};

// "float".
std::string type_name(PyObject* object);

// The Python error that is set, as one line, and no longer set; PythonError where it is not the
// caller's fault: an interruption, or no memory.
std::string taken_error();

// Text of a str. StatusError where it is none, or holds what no text of C can.
std::string text_of(PyObject* object, const char* name);

// A whole number within the bounds; StatusError says what it is otherwise.
std::int64_t integer_of(PyObject* object, const char* name, std::int64_t least = INT64_MIN,
                        std::int64_t most = INT64_MAX);
std::uint64_t unsigned_of(PyObject* object, const char* name);
inline int int_of(PyObject* object, const char* name) {
  return static_cast<int>(integer_of(object, name, INT32_MIN, INT32_MAX));
}
double real_of(PyObject* object, const char* name);

// A stream by its number.
inline void* stream_of(PyObject* object) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(unsigned_of(object, "stream")));
}

}  // namespace vqgen::python
