#include "python/src/tensor.h"

#include <unordered_map>

namespace vqgen::python {
namespace {

const ExchangeApi* read_exchange_api(PyObject* type) {
  const Object capsule(PyObject_GetAttrString(type, "__dlpack_c_exchange_api__"));
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

std::int32_t device_type_of(PyObject* object) {
  const Object device = checked(PyObject_CallMethod(object, "__dlpack_device__", nullptr));
  const Object type = checked(PySequence_GetItem(device.get(), 0));
  return static_cast<std::int32_t>(integer_of(type.get()));
}

// The capsule of a library's newest form that this knows; older libraries take no max_version.
Object capsule_of(PyObject* object, void* stream) {
  const Object method = checked(PyObject_GetAttrString(object, "__dlpack__"));
  const Object nothing = checked(PyTuple_New(0));
  const Object words = checked(PyDict_New());
  const Object where = stream_argument(stream, device_type_of(object));
  if (PyDict_SetItemString(words.get(), "stream", where.get()) != 0) throw PythonError{};
  const Object version = checked(Py_BuildValue("(ii)", 1, 0));
  if (PyDict_SetItemString(words.get(), "max_version", version.get()) != 0) throw PythonError{};
  Object capsule(PyObject_Call(method.get(), nothing.get(), words.get()));
  if (capsule || PyErr_ExceptionMatches(PyExc_TypeError) == 0) {
    return checked(capsule.release());
  }
  PyErr_Clear();
  if (PyDict_DelItemString(words.get(), "max_version") != 0) throw PythonError{};
  return checked(PyObject_Call(method.get(), nothing.get(), words.get()));
}

}  // namespace

Tensor::Tensor(PyObject* object, const std::string& name, void* stream) {
  if (const ExchangeApi* const api = exchange_api(object)) {
    if (api->to_tensor(object, &view_) != 0) throw PythonError{};
    return;
  }
  if (PyObject_HasAttrString(object, "__dlpack__") == 0) {
    const Object type =
        checked(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__name__"));
    throw bad_input("'" + name + "' is of type " + text_of(type.get()) +
                    ", no array that speaks DLPack; pass one of NumPy, PyTorch or "
                    "CuPy");
  }
  owner_ = capsule_of(object, stream);
  if (PyCapsule_IsValid(owner_.get(), "dltensor_versioned") != 0) {
    const auto& managed = *static_cast<const DLManagedTensorVersioned*>(
        PyCapsule_GetPointer(owner_.get(), "dltensor_versioned"));
    if (managed.version.major != 1) {
      throw bad_input("'" + name + "' speaks DLPack " + std::to_string(managed.version.major) +
                      ", where 1 is known; take a library that does");
    }
    view_ = managed.tensor;
    read_only_ = (managed.flags & kReadOnly) != 0;
  } else {
    const void* const tensor = PyCapsule_GetPointer(owner_.get(), "dltensor");
    if (tensor == nullptr) throw PythonError{};
    view_ = *static_cast<const DLTensor*>(tensor);
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
  if (api->current_stream(device.type, device.id, stream) != 0) throw PythonError{};
  return true;
}

}  // namespace vqgen::python
