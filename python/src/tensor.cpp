#include "python/src/tensor.h"

#include <unordered_map>

namespace vqgen::python {
namespace {

const ExchangeApi* read_exchange_api(PyObject* type) {
  const Object capsule(
      in_python([&] { return PyObject_GetAttrString(type, "__dlpack_c_exchange_api__"); }));
  if (!capsule) {
    PyErr_Clear();
    return nullptr;
  }
  auto* api =
      static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
  if (api == nullptr) PyErr_Clear();
  while (api != nullptr && api->version.major != 1) api = api->previous;
  return api;
}

// The table of the object's type; null where it has none. Types are asked once and kept.
const ExchangeApi* exchange_api(PyObject* object) {
  static auto& known = *new std::unordered_map<PyObject*, const ExchangeApi*>;
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  const auto found = known.find(type);
  if (found != known.end()) return found->second;
  const ExchangeApi* const api = read_exchange_api(type);
  known.emplace(Object::borrowed(type).release(), api);
  return api;
}

// What __dlpack__ takes as a stream: 1 is CUDA's legacy default, None is for no device.
Object stream_argument(void* stream, std::int32_t device_type) {
  if (device_type == kCpu) return Object::borrowed(Py_None);
  return checked(stream == nullptr ? PyLong_FromLong(1) : PyLong_FromVoidPtr(stream));
}

// What `act` gives; StatusError where the array's library refuses in words of its own.
template <class Act>
Object lent_by_library(const std::string& name, const Act& act) {
  Object given(in_python(act));
  if (given) return given;
  throw bad_input("'" + name + "' cannot be lent: " + taken_error() +
                  "; pass an array of plain numbers in this machine's byte order, without a "
                  "gradient");
}

std::int32_t device_type_of(PyObject* object, const std::string& name) {
  const Object device = lent_by_library(
      name, [&] { return PyObject_CallMethod(object, "__dlpack_device__", nullptr); });
  const Object type = lent_by_library(name, [&] { return PySequence_GetItem(device.get(), 0); });
  return int_of(type.get(), "the type of __dlpack_device__()");
}

// The capsule of a library's newest form that this knows; older libraries take no max_version.
Object capsule_of(PyObject* object, const std::string& name, void* stream) {
  const Object method =
      lent_by_library(name, [&] { return PyObject_GetAttrString(object, "__dlpack__"); });
  const Object nothing = checked(PyTuple_New(0));
  const Object words = checked(PyDict_New());
  const Object where = stream_argument(stream, device_type_of(object, name));
  if (PyDict_SetItemString(words.get(), "stream", where.get()) != 0) throw PythonError{};
  const Object version = checked(Py_BuildValue("(ii)", 1, 0));
  if (PyDict_SetItemString(words.get(), "max_version", version.get()) != 0) throw PythonError{};
  const auto lend = [&] { return PyObject_Call(method.get(), nothing.get(), words.get()); };
  Object capsule(in_python(lend));
  if (capsule) return capsule;
  if (PyErr_ExceptionMatches(PyExc_TypeError) != 0) {
    PyErr_Clear();
    if (PyDict_DelItemString(words.get(), "max_version") != 0) throw PythonError{};
    return lent_by_library(name, lend);
  }
  return lent_by_library(name, []() -> PyObject* { return nullptr; });
}

}  // namespace

Tensor::Tensor(PyObject* object, const std::string& name, void* stream) {
  if (const ExchangeApi* const api = exchange_api(object)) {
    if (in_python([&] { return api->to_tensor(object, &view_); }) == 0) return;
    lent_by_library(name, []() -> PyObject* { return nullptr; });
  }
  if (in_python([&] { return PyObject_HasAttrString(object, "__dlpack__"); }) == 0) {
    throw bad_input("'" + name + "' is of type " + type_name(object) +
                    ", no array that speaks DLPack; pass one of NumPy, PyTorch or "
                    "CuPy");
  }
  owner_ = capsule_of(object, name, stream);
  if (PyCapsule_IsValid(owner_.get(), "dltensor_versioned") != 0) {
    const auto& managed = *static_cast<const DLManagedTensorVersioned*>(
        PyCapsule_GetPointer(owner_.get(), "dltensor_versioned"));
    if (managed.version.major != 1) {
      throw bad_input("'" + name + "' speaks DLPack " + std::to_string(managed.version.major) +
                      ", where 1 is known; take a library that does");
    }
    view_ = managed.tensor;
    read_only_ = (managed.flags & kReadOnly) != 0;
  } else if (PyCapsule_IsValid(owner_.get(), "dltensor") != 0) {
    view_ = *static_cast<const DLTensor*>(PyCapsule_GetPointer(owner_.get(), "dltensor"));
  } else {
    throw bad_input("'" + name + "' gives no DLPack capsule, but a " + type_name(owner_.get()) +
                    "; pass an array of NumPy, PyTorch or CuPy");
  }
}

std::int64_t Tensor::stride(int dimension) const {
  if (view_.strides != nullptr) return view_.strides[dimension];
  std::int64_t stride = 1;
  for (int i = dimension + 1; i < view_.ndim; ++i) stride *= view_.shape[i];
  return stride;
}

std::size_t Tensor::span_bytes() const {
  std::int64_t elements = 1;
  for (int i = 0; i < view_.ndim; ++i) {
    if (view_.shape[i] == 0) return 0;
    elements += (view_.shape[i] - 1) * stride(i);
  }
  return static_cast<std::size_t>(elements) * view_.dtype.bits / 8;
}

std::string dtype_words(DLDataType type) {
  const char* const name = type.code == kInt      ? "int"
                           : type.code == kUint   ? "uint"
                           : type.code == kFloat  ? "float"
                           : type.code == kBfloat ? "bfloat"
                           : type.code == kBool   ? "bool"
                                                  : "type";
  return name + std::to_string(type.bits) +
         (type.lanes == 1 ? "" : "x" + std::to_string(type.lanes));
}

std::string Tensor::words() const {
  std::string text = dtype_words(view_.dtype) + " [";
  for (int i = 0; i < view_.ndim; ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(view_.shape[i]);
  }
  const DLDevice& device = view_.device;
  text += device.type == kCpu    ? "] on cpu"
          : device.type == kCuda ? "] on cuda:" + std::to_string(device.id)
                                 : "] on device type " + std::to_string(device.type);
  return text;
}

bool library_stream(PyObject* object, const DLDevice& device, void** stream) {
  const ExchangeApi* const api = exchange_api(object);
  if (api == nullptr || api->current_stream == nullptr) return false;
  if (in_python([&] { return api->current_stream(device.type, device.id, stream); }) != 0) {
    throw PythonError{};
  }
  return true;
}

}  // namespace vqgen::python
