// vqgen._core: libvqgen for Python. In the limited API of Python 3.11, so that one binary serves
// every version from there on.
#include <array>
#include <new>

#include "python/src/measures.h"
#include "python/src/runtime.h"

namespace vqgen::python {
namespace {

PyObject* error_classes = nullptr;  // vqgen._errors, for as long as the process lives
PyObject* op_type = nullptr;

// Sets the exception of a status: its class is in _errors.by_status.
void set_error(const StatusError& error) {
  const Object classes(PyObject_GetAttrString(error_classes, "by_status"));
  const Object number(PyLong_FromLong(error.status()));
  if (!classes || !number) return;
  PyObject* const type = PyDict_GetItemWithError(classes.get(), number.get());
  if (type != nullptr) PyErr_SetString(type, error.what());
}

// Calls `act`; what it throws becomes a Python error, and the result `failed`.
template <class Result, class Act>
Result guarded(Result failed, const Act& act) noexcept {
  try {
    return act();
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

struct RuntimeObject {
  PyObject_HEAD std::shared_ptr<RuntimeState> state;  // null once closed
};

struct OpObject {
  PyObject_HEAD std::shared_ptr<RuntimeState> state;
  PyObject* runtime;  // whose state may be closed before
  std::unique_ptr<Op> op;
  Signature signature;
};

std::shared_ptr<RuntimeState> open_state(PyObject* runtime) {
  const auto state = reinterpret_cast<RuntimeObject*>(runtime)->state;
  if (state == nullptr) throw bad_input("the runtime is closed; make a new one");
  state->require_same_process();
  return state;
}

// A new object of a heap type, with the members behind its head constructed by `construct`.
template <class T, class Construct>
PyObject* allocate(PyTypeObject* type, const Construct& construct) {
  Object object = checked(PyType_GenericAlloc(type, 0));
  construct(reinterpret_cast<T*>(object.get()));
  return object.release();
}

void free_object(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

const char* optional_text(PyObject* object) {
  if (object == Py_None) return nullptr;
  const char* const text = PyUnicode_AsUTF8AndSize(object, nullptr);
  if (text == nullptr) throw PythonError{};
  return text;
}

PyObject* new_runtime(PyTypeObject* type, PyObject* args, PyObject*) {
  return guarded<PyObject*>(nullptr, [&] {
    vqgen_options options = default_options();
    PyObject *cache, *nvrtc, *compiler;
    if (PyArg_ParseTuple(args, "iiiiiOOO:Runtime", &options.backend, &options.device, &options.miss,
                         &options.max_buckets, &options.threads, &cache, &nvrtc, &compiler) == 0) {
      throw PythonError{};
    }
    options.cache_dir = optional_text(cache);
    options.nvrtc = optional_text(nvrtc);
    options.compiler = optional_text(compiler);
    if (options.backend == VQGEN_CUDA && options.device < 0) {
      throw bad_input("device is negative; it is the number of a GPU");
    }
    auto state = without_gil([&] { return std::make_shared<RuntimeState>(options); });
    return allocate<RuntimeObject>(type, [&](RuntimeObject* self) {
      new (&self->state) std::shared_ptr<RuntimeState>(std::move(state));
    });
  });
}

void drop_runtime(PyObject* self) {
  auto& state = reinterpret_cast<RuntimeObject*>(self)->state;
  const auto last = std::move(state);
  state.~shared_ptr();
  free_object(self);
}

PyObject* close_runtime(PyObject* self, PyObject*) {
  reinterpret_cast<RuntimeObject*>(self)->state.reset();
  Py_RETURN_NONE;
}

PyObject* prepare(PyObject* self, PyObject* args) {
  return guarded<PyObject*>(nullptr, [&] {
    const char* config = nullptr;
    int is_path = 0;
    unsigned long long stream = 0;
    if (PyArg_ParseTuple(args, "spK:prepare", &config, &is_path, &stream) == 0) throw PythonError{};
    const auto state = open_state(self);
    auto op = without_gil([&] {
      auto* const where = reinterpret_cast<void*>(static_cast<std::uintptr_t>(stream));
      const Runtime& runtime = state->runtime();
      auto made = std::make_unique<Op>(is_path != 0 ? runtime.prepare_file(config, where)
                                                    : runtime.prepare(config, where));
      state->reserve(made->workspace_bytes());
      return made;
    });
    Signature signature = read_signature(op->description(), state->device());
    return allocate<OpObject>(reinterpret_cast<PyTypeObject*>(op_type), [&](OpObject* made) {
      new (&made->state) std::shared_ptr<RuntimeState>(state);
      made->runtime = Object::borrowed(self).release();
      new (&made->op) std::unique_ptr<Op>(std::move(op));
      new (&made->signature) Signature(std::move(signature));
    });
  });
}

PyObject* prefetch(PyObject* self, PyObject* args) {
  return guarded<PyObject*>(nullptr, [&] {
    PyObject* list = nullptr;
    int threads = 1;
    if (PyArg_ParseTuple(args, "Oi:prefetch", &list, &threads) == 0) throw PythonError{};
    const auto state = open_state(self);
    std::vector<std::string> configs;
    const Py_ssize_t count = PySequence_Size(list);
    if (count < 0) throw PythonError{};
    for (Py_ssize_t i = 0; i < count; ++i) {
      configs.push_back(text_of(checked(PySequence_GetItem(list, i)).get()));
    }
    without_gil([&] { state->runtime().prefetch(configs, threads); });
    return Object::borrowed(Py_None).release();
  });
}

PyObject* freeze(PyObject* self, PyObject*) {
  return guarded<PyObject*>(nullptr, [&] {
    open_state(self)->runtime().freeze();
    return Object::borrowed(Py_None).release();
  });
}

PyObject* enumerate(PyObject* self, PyObject* args) {
  return guarded<PyObject*>(nullptr, [&] {
    const char* config = nullptr;
    long long least = 0, most = 0;
    if (PyArg_ParseTuple(args, "sLL:enumerate", &config, &least, &most) == 0) throw PythonError{};
    const std::string text = open_state(self)->runtime().enumerate(config, least, most);
    return checked(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())))
        .release();
  });
}

PyObject* synchronize(PyObject* self, PyObject* stream) {
  return guarded<PyObject*>(nullptr, [&] {
    const auto state = open_state(self);
    auto* const where = reinterpret_cast<void*>(static_cast<std::uintptr_t>(integer_of(stream)));
    without_gil([&] { state->runtime().synchronize(where); });
    return Object::borrowed(Py_None).release();
  });
}

PyObject* new_op(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "ops are made by vqgen.Runtime");
  return nullptr;
}

void drop_op(PyObject* object) {
  auto* const self = reinterpret_cast<OpObject*>(object);
  self->signature.~Signature();
  self->op.~unique_ptr();
  self->state.~shared_ptr();
  Py_CLEAR(self->runtime);
  free_object(object);
}

// launch(arrays, count, softmax_scale, stream): arrays in the order of slots(), None for none.
// Without a stream it is that which the library of the first array works on, by its own word, or
// what the callable in its place says.
PyObject* launch_op(PyObject* object, PyObject* const* args, Py_ssize_t count) {
  return guarded<PyObject*>(nullptr, [&] {
    auto* const self = reinterpret_cast<OpObject*>(object);
    if (count != 4) throw bad_input("launch() takes arrays, count, softmax_scale and stream");
    std::array<PyObject*, kMostSlots> given{};
    const std::size_t slots = slots_of(self->signature.kind).size();
    if (PyTuple_Size(args[0]) != static_cast<Py_ssize_t>(slots)) {
      throw bad_input("launch() takes " + std::to_string(slots) + " arrays, in a tuple");
    }
    for (std::size_t i = 0; i < slots; ++i) {
      given[i] = PyTuple_GetItem(args[0], static_cast<Py_ssize_t>(i));
    }
    const std::int64_t units = integer_of(args[1]);
    const double scale = PyFloat_AsDouble(args[2]);
    if (scale == -1 && PyErr_Occurred() != nullptr) throw PythonError{};
    const auto state = open_state(self->runtime);
    void* stream = nullptr;
    if (!state->on_host() && PyCallable_Check(args[3]) == 0) {
      stream = reinterpret_cast<void*>(static_cast<std::uintptr_t>(integer_of(args[3])));
    } else if (!state->on_host() && !library_stream(given[0], state->device(), &stream)) {
      const Object told = checked(PyObject_CallFunctionObjArgs(args[3], given[0], nullptr));
      stream = reinterpret_cast<void*>(static_cast<std::uintptr_t>(integer_of(told.get())));
    }
    const Arguments arguments(self->signature, {given.data(), slots}, stream);
    launch(*state, *self->op, self->signature, arguments, units, static_cast<float>(scale), stream);
    return Object::borrowed(Py_None).release();
  });
}

PyObject* op_name(PyObject* self, void*) {
  return PyUnicode_FromString(reinterpret_cast<OpObject*>(self)->signature.op.c_str());
}
PyObject* op_description(PyObject* self, void*) {
  return PyUnicode_FromString(reinterpret_cast<OpObject*>(self)->op->description());
}
PyObject* op_provenance(PyObject* self, void*) {
  return PyLong_FromLong(reinterpret_cast<OpObject*>(self)->op->provenance());
}
PyObject* op_bucket(PyObject* self, PyObject* count) {
  return guarded<PyObject*>(nullptr, [&] {
    return PyLong_FromLongLong(reinterpret_cast<OpObject*>(self)->op->bucket(integer_of(count)));
  });
}

// float32 [units, rows, columns], contiguous, on `device`. The stride of a dimension of one element
// counts nothing: PyTorch tells 1.
void require_vectors(const Tensor& data, const DLDevice& device) {
  const DLTensor& view = data.view();
  const auto lies = [&](int dimension, std::int64_t stride) {
    return view.shape[dimension] == 1 || data.stride(dimension) == stride;
  };
  const bool whole = view.ndim == 3 && lies(2, 1) && lies(1, view.shape[2]) &&
                     lies(0, view.shape[1] * view.shape[2]);
  const bool floats = view.dtype.code == kFloat && view.dtype.bits == 32 && view.dtype.lanes == 1;
  if (whole && floats && view.device.type == device.type && view.device.id == device.id) return;
  throw bad_input("'vectors' is " + data.words() +
                  "; it has to be float32 [units, rows, columns], contiguous, on " +
                  (device.type == kCpu ? "cpu" : "cuda:" + std::to_string(device.id)));
}

PyObject* format_fields(PyObject*, PyObject* format) {
  return guarded<PyObject*>(nullptr, [&] {
    char* json = nullptr;
    require(vqgen_format_fields(text_of(format).c_str(), &json));
    const std::unique_ptr<char, decltype(&vqgen_text_free)> owned(json, &vqgen_text_free);
    return checked(PyUnicode_FromString(json)).release();
  });
}

PyObject* scalar_errors(PyObject*, PyObject* args) {
  return guarded<PyObject*>(nullptr, [&] {
    PyObject *original, *restored, *queries;
    if (PyArg_ParseTuple(args, "OOO:scalar_errors", &original, &restored, &queries) == 0) {
      throw PythonError{};
    }
    const vqgen_scalar_errors errors = measured_errors(original, restored, queries);
    return checked(Py_BuildValue("(ddd)", errors.l2, errors.largest, errors.mean_score)).release();
  });
}

// train(runtime, vectors, codebooks, scales, format, element, seed, iterations); runtime None: on
// all cores. Codebooks and scales are the host's, as the format says, made by the caller.
PyObject* train(PyObject*, PyObject* args) {
  return guarded<PyObject*>(nullptr, [&] {
    PyObject *runtime, *vectors, *codebooks, *scales;
    vqgen_training_args training{};
    training.struct_bytes = sizeof(training);
    unsigned long long seed = 0;
    if (PyArg_ParseTuple(args, "OOOOsiKi:train", &runtime, &vectors, &codebooks, &scales,
                         &training.format, &training.element, &seed, &training.iterations) == 0) {
      throw PythonError{};
    }
    const auto state = runtime == Py_None ? nullptr : open_state(runtime);
    const Tensor data(vectors, "vectors", nullptr);
    require_vectors(data, state == nullptr ? DLDevice{kCpu, 0} : state->device());
    training.seed = seed;
    training.units = data.view().shape[0];
    training.rows = data.view().shape[1];
    training.columns = data.view().shape[2];
    training.vectors = static_cast<const float*>(data.data());
    const Tensor books(codebooks, "codebooks", nullptr);
    training.codebooks = books.data();
    std::optional<Tensor> factors;
    if (scales != Py_None) factors.emplace(scales, "scales", nullptr);
    training.stage_scales = factors ? static_cast<float*>(factors->data()) : nullptr;
    without_gil([&] {
      require(
          vqgen_train_codebooks(state == nullptr ? nullptr : state->runtime().get(), &training));
    });
    return Object::borrowed(Py_None).release();
  });
}

template <class Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef runtime_methods[] = {
    {"prepare", prepare, METH_VARARGS, "prepare(config, is_path, stream) -> Op"},
    {"prefetch", prefetch, METH_VARARGS, "prefetch(configs, threads)"},
    {"enumerate", enumerate, METH_VARARGS, "enumerate(config, least, most) -> JSON"},
    {"synchronize", synchronize, METH_O, "synchronize(stream)"},
    {"freeze", freeze, METH_NOARGS, "freeze()"},
    {"close", close_runtime, METH_NOARGS, "close()"},
    {nullptr, nullptr, 0, nullptr}};
PyType_Slot runtime_slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_runtime)},
                               {Py_tp_dealloc, reinterpret_cast<void*>(drop_runtime)},
                               {Py_tp_methods, runtime_methods},
                               {0, nullptr}};
PyType_Spec runtime_spec = {"vqgen._core.Runtime", sizeof(RuntimeObject), 0, Py_TPFLAGS_DEFAULT,
                            runtime_slots};

PyMethodDef op_methods[] = {
    {"launch", as_method(launch_op), METH_FASTCALL, "launch(arrays, count, softmax_scale, stream)"},
    {"bucket", op_bucket, METH_O, "bucket(count) -> int"},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef op_members[] = {{"name", op_name, nullptr, nullptr, nullptr},
                            {"description", op_description, nullptr, nullptr, nullptr},
                            {"provenance", op_provenance, nullptr, nullptr, nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot op_slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_op)},
                          {Py_tp_dealloc, reinterpret_cast<void*>(drop_op)},
                          {Py_tp_methods, op_methods},
                          {Py_tp_getset, op_members},
                          {0, nullptr}};
PyType_Spec op_spec = {"vqgen._core.Op", sizeof(OpObject), 0, Py_TPFLAGS_DEFAULT, op_slots};

PyMethodDef functions[] = {
    {"format_fields", format_fields, METH_O, "format_fields(format) -> JSON"},
    {"scalar_errors", scalar_errors, METH_VARARGS,
     "scalar_errors(original, restored, queries) -> (l2, largest, mean_score)"},
    {"train", train, METH_VARARGS,
     "train(runtime, vectors, codebooks, scales, format, element, seed, iterations)"},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "vqgen._core",
                          "libvqgen for Python",
                          -1,
                          functions,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

PyObject* make_module() {
  Object module = checked(PyModule_Create(&definition));
  error_classes = checked(PyImport_ImportModule("vqgen._errors")).release();
  op_type = checked(PyType_FromSpec(&op_spec)).release();
  const Object runtime_type = checked(PyType_FromSpec(&runtime_spec));
  if (PyModule_AddObjectRef(module.get(), "Runtime", runtime_type.get()) != 0 ||
      PyModule_AddObjectRef(module.get(), "Op", op_type) != 0 ||
      PyModule_AddStringConstant(module.get(), "version", vqgen_version()) != 0) {
    throw PythonError{};
  }
  return module.release();
}

}  // namespace
}  // namespace vqgen::python

PyMODINIT_FUNC PyInit__core() {
  using namespace vqgen::python;
  return guarded<PyObject*>(nullptr, [] { return make_module(); });
}
