#include "python/src/errors.h"

#include <algorithm>
#include <iterator>

namespace vqgen::python {
namespace {

enum { kError, kBadInput, kInfeasible, kDevice, kMiss, kCapturing, kRange, kAlignment, kInternal };

struct Class {
  const char* name;
  const char* doc;
  int base;  // among these; -1: RuntimeError
};

constexpr Class kClasses[] = {
    {"vqgen.Error",
     "What a call failed with: one line that names what failed, on what, and the remedy.", -1},
    {"vqgen.BadInput", "A config, option or array that is malformed, of the wrong kind or missing.",
     kError},
    {"vqgen.Infeasible", "Well formed, but no kernel can do it.", kError},
    {"vqgen.DeviceError", "Compiler, driver or device missing or failed.", kError},
    {"vqgen.Miss",
     "The op is not prepared, and policy or `Runtime.freeze()` forbids to compile it.", kError},
    {"vqgen.Capturing", "The op is not prepared, and the stream is being captured.", kError},
    {"vqgen.RangeError", "Tokens or rows beyond what the op was prepared for.", kBadInput},
    {"vqgen.AlignmentError", "An array or stride is less aligned than the kernel needs.",
     kBadInput},
    {"vqgen.InternalError", "Out of memory, or a fault of vqgen itself.", kError},
};

PyObject* classes[std::size(kClasses)] = {};  // for as long as the process lives

int class_of(vqgen_status status) {
  constexpr std::pair<vqgen_status, int> kOf[] = {
      {VQGEN_BAD_INPUT, kBadInput},  {VQGEN_INFEASIBLE, kInfeasible}, {VQGEN_DEVICE, kDevice},
      {VQGEN_MISS, kMiss},           {VQGEN_CAPTURING, kCapturing},   {VQGEN_RANGE, kRange},
      {VQGEN_ALIGNMENT, kAlignment},
  };
  const auto* const found = std::find_if(std::begin(kOf), std::end(kOf),
                                         [&](const auto& each) { return each.first == status; });
  return found == std::end(kOf) ? kInternal : found->second;
}

// BadInput is a ValueError too.
Object bases_of(int number) {
  const int base = kClasses[number].base;
  if (base < 0) return Object::borrowed(PyExc_RuntimeError);
  if (number != kBadInput) return Object::borrowed(classes[base]);
  return checked(PyTuple_Pack(2, classes[base], PyExc_ValueError));
}

}  // namespace

void add_errors(PyObject* module) {
  for (int i = 0; i < static_cast<int>(std::size(kClasses)); ++i) {
    const Class& each = kClasses[i];
    const Object bases = bases_of(i);
    classes[i] =
        checked(PyErr_NewExceptionWithDoc(each.name, each.doc, bases.get(), nullptr)).release();
    if (PyModule_AddObjectRef(module, std::string(each.name).substr(6).c_str(), classes[i]) != 0) {
      throw PythonError{};
    }
  }
}

void set_error(const StatusError& error) {
  PyErr_SetString(classes[class_of(error.status())], error.what());
}

}  // namespace vqgen::python
