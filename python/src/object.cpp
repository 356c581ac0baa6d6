#include "python/src/object.h"

namespace vqgen::python {
namespace {

// What the object shows of itself, cut to what a line has room for.
std::string shown(PyObject* object) {
  constexpr std::size_t kMost = 60;
  const Object repr(in_python([&] { return PyObject_Repr(object); }));
  const char* const text = repr ? PyUnicode_AsUTF8AndSize(repr.get(), nullptr) : nullptr;
  if (text == nullptr) {
    PyErr_Clear();
    return "of type " + type_name(object);
  }
  const std::string whole(text);
  return whole.size() <= kMost ? whole : whole.substr(0, kMost) + "..";
}

[[noreturn]] void refuse(PyObject* object, const char* name, const std::string& wanted) {
  throw bad_input(std::string(name) + " is " + shown(object) + "; it has to be " + wanted);
}

// An int, of what stands for one.
Object whole_number(PyObject* object, const char* name) {
  Object number(in_python([&] { return PyNumber_Index(object); }));
  if (number) return number;
  static_cast<void>(taken_error());
  refuse(object, name, "a whole number");
}

}  // namespace

std::string type_name(PyObject* object) {
  const Object name = called([&] {
    return PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__name__");
  });
  const char* const text = PyUnicode_AsUTF8AndSize(name.get(), nullptr);
  if (text == nullptr) throw PythonError{};
  return text;
}

std::string taken_error() {
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0 ||
      PyErr_ExceptionMatches(PyExc_MemoryError) != 0) {
    throw PythonError{};
  }
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  const Object kind(type), what(value), where(trace);
  const Object text(what ? in_python([&] { return PyObject_Str(what.get()); }) : nullptr);
  const char* const line = text ? PyUnicode_AsUTF8AndSize(text.get(), nullptr) : nullptr;
  if (line == nullptr) PyErr_Clear();
  std::string told(line == nullptr ? "an error without words" : line);
  told.resize(std::min(told.size(), told.find('\n')));
  return told;
}

std::string text_of(PyObject* object, const char* name) {
  if (PyUnicode_Check(object) == 0) {
    throw bad_input(std::string(name) + " is of type " + type_name(object) +
                    "; it has to be a str");
  }
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object, &size);
  if (text == nullptr) {
    throw bad_input(std::string(name) + " is no text that UTF-8 has: " + taken_error() +
                    "; take out what cannot be encoded");
  }
  std::string copy(text, static_cast<std::size_t>(size));
  if (const std::size_t at = copy.find('\0'); at != copy.npos) {
    throw bad_input(std::string(name) + " holds a NUL character, byte " + std::to_string(at) +
                    "; take it out");
  }
  return copy;
}

std::int64_t integer_of(PyObject* object, const char* name, std::int64_t least, std::int64_t most) {
  const Object number = whole_number(object, name);
  int beyond = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number.get(), &beyond);
  if (value == -1 && PyErr_Occurred() != nullptr) throw PythonError{};
  if (beyond == 0 && value >= least && value <= most) return value;
  refuse(object, name,
         least == 0 && most == INT64_MAX && beyond <= 0
             ? "0 or more"
             : "within " + std::to_string(least) + " to " + std::to_string(most));
}

std::uint64_t unsigned_of(PyObject* object, const char* name) {
  const Object number = whole_number(object, name);
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.get());
  if (value != static_cast<unsigned long long>(-1) || PyErr_Occurred() == nullptr) return value;
  static_cast<void>(taken_error());
  refuse(object, name, "within 0 to " + std::to_string(UINT64_MAX));
}

double real_of(PyObject* object, const char* name) {
  const double value = in_python([&] { return PyFloat_AsDouble(object); });
  if (value != -1 || PyErr_Occurred() == nullptr) return value;
  static_cast<void>(taken_error());
  refuse(object, name, "a number");
}

}  // namespace vqgen::python
