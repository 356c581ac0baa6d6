// vqgen._core: libvqgen for Python. In the limited API of Python 3.11, so that one binary serves
// every version from there on.
#include <array>

#include "python/src/functions.h"
#include "python/src/guarded.h"
#include "python/src/rotation.h"
#include "python/src/runtime.h"
#include "python/src/training.h"

namespace vqgen::python {
namespace {

PyObject* op_type = nullptr;

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

// Of an option that may be None.
std::optional<std::string> optional_text(PyObject* object, const char* name) {
  if (object == Py_None) return std::nullopt;
  return text_of(object, name);
}

const char* pointer(const std::optional<std::string>& text) {
  return text ? text->c_str() : nullptr;
}

PyObject* new_runtime(PyTypeObject* type, PyObject* args, PyObject*) {
  return guarded<PyObject*>(nullptr, [&] {
    PyObject *backend, *device, *miss, *max_buckets, *threads, *cache, *nvrtc, *compiler;
    if (PyArg_ParseTuple(args, "OOOOOOOO:Runtime", &backend, &device, &miss, &max_buckets, &threads,
                         &cache, &nvrtc, &compiler) == 0) {
      throw PythonError{};
    }
    const auto cache_dir = optional_text(cache, "cache_dir");
    const auto nvrtc_path = optional_text(nvrtc, "nvrtc");
    const auto compiler_path = optional_text(compiler, "compiler");
    vqgen_options options = default_options();
    options.backend = int_of(backend, "backend");
    options.device = int_of(device, "device");
    options.miss = int_of(miss, "miss");
    options.max_buckets = int_of(max_buckets, "max_buckets");
    options.threads = int_of(threads, "threads");
    options.cache_dir = pointer(cache_dir);
    options.nvrtc = pointer(nvrtc_path);
    options.compiler = pointer(compiler_path);
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
    PyObject *given, *stream;
    int is_path = 0;
    if (PyArg_ParseTuple(args, "OpO:prepare", &given, &is_path, &stream) == 0) throw PythonError{};
    const std::string config = text_of(given, is_path != 0 ? "the config's path" : "the config");
    void* const where = stream_of(stream);
    const auto state = open_state(self);
    auto op = without_gil([&] {
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
    PyObject *list, *count;
    if (PyArg_ParseTuple(args, "O!O:prefetch", &PyList_Type, &list, &count) == 0)
      throw PythonError{};
    const int threads = int_of(count, "threads");
    const auto state = open_state(self);
    std::vector<std::string> configs;
    for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
      configs.push_back(text_of(PyList_GetItem(list, i), "a config"));
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
    PyObject *config, *least, *most;
    if (PyArg_ParseTuple(args, "OOO:enumerate", &config, &least, &most) == 0) throw PythonError{};
    const std::string text = open_state(self)->runtime().enumerate(
        text_of(config, "the config"), integer_of(least, "least"), integer_of(most, "most"));
    return checked(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())))
        .release();
  });
}

PyObject* synchronize(PyObject* self, PyObject* stream) {
  return guarded<PyObject*>(nullptr, [&] {
    const auto state = open_state(self);
    void* const where = stream_of(stream);
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

// launch(arrays, tokens, softmax_scale, stream): arrays in the order of slots(), None for none.
// Without a stream it is that which the library of the first array works on, by its own word, or
// what the callable in its place says.
PyObject* launch_op(PyObject* object, PyObject* const* args, Py_ssize_t count) {
  return guarded<PyObject*>(nullptr, [&] {
    auto* const self = reinterpret_cast<OpObject*>(object);
    if (count != 4) throw bad_input("launch() takes arrays, tokens, softmax_scale and stream");
    const std::size_t slots = self->signature.slots->size();
    std::vector<PyObject*> given(slots);
    if (PyTuple_Size(args[0]) != static_cast<Py_ssize_t>(slots)) {
      throw bad_input("launch() takes " + std::to_string(slots) + " arrays, in a tuple");
    }
    for (std::size_t i = 0; i < slots; ++i) {
      given[i] = PyTuple_GetItem(args[0], static_cast<Py_ssize_t>(i));
    }
    std::optional<std::int64_t> tokens;
    if (args[1] != Py_None) tokens = integer_of(args[1], "tokens", 0);
    const double scale = real_of(args[2], "softmax_scale");
    const auto state = open_state(self->runtime);
    void* stream = nullptr;
    if (!state->on_host() && PyCallable_Check(args[3]) == 0) {
      stream = stream_of(args[3]);
    } else if (!state->on_host() && !library_stream(given[0], state->device(), &stream)) {
      const Object told =
          called([&] { return PyObject_CallFunctionObjArgs(args[3], given[0], nullptr); });
      stream = stream_of(told.get());
    }
    const Arguments arguments(self->signature, given, stream);
    launch(*state, *self->op, self->signature, arguments, tokens, static_cast<float>(scale),
           stream);
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
    return PyLong_FromLongLong(
        reinterpret_cast<OpObject*>(self)->op->bucket(integer_of(count, "count")));
  });
}

PyObject* arguments(PyObject*, PyObject* op) {
  return guarded<PyObject*>(nullptr, [&] {
    return checked(PyUnicode_FromString(vqgen_arguments(text_of(op, "the op").c_str()))).release();
  });
}

// train(runtime, vectors, codebooks, scales, format, element, seed, iterations); runtime None: on
// all cores. Codebooks and scales are the host's, as the format says, made by the caller.
PyObject* train(PyObject*, PyObject* args) {
  return guarded<PyObject*>(nullptr, [&] {
    PyObject *runtime, *vectors, *codebooks, *scales, *format, *element, *seed, *iterations;
    if (PyArg_ParseTuple(args, "OOOOOOOO:train", &runtime, &vectors, &codebooks, &scales, &format,
                         &element, &seed, &iterations) == 0) {
      throw PythonError{};
    }
    const auto state = runtime == Py_None ? nullptr : open_state(runtime);
    const Training training(state == nullptr ? DLDevice{kCpu, 0} : state->device(), vectors,
                            codebooks, scales, text_of(format, "the format"),
                            int_of(element, "element"), unsigned_of(seed, "seed"),
                            int_of(iterations, "iterations"));
    without_gil([&] { training.run(state == nullptr ? nullptr : state->runtime().get()); });
    return Object::borrowed(Py_None).release();
  });
}

// rotator(runtime, element, features, back, stream) -> capsule
PyObject* rotator(PyObject*, PyObject* args) {
  return guarded<PyObject*>(nullptr, [&] {
    PyObject *runtime, *element, *features, *stream;
    int back = 0;
    if (PyArg_ParseTuple(args, "OOOpO:rotator", &runtime, &element, &features, &back, &stream) ==
        0) {
      throw PythonError{};
    }
    return make_rotator(open_state(runtime), int_of(element, "element"),
                        integer_of(features, "features"), back != 0, stream_of(stream));
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

PyMethodDef op_methods[] = {{"launch", as_method(launch_op), METH_FASTCALL,
                             "launch(arrays, tokens, softmax_scale, stream)"},
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
    {"arguments", arguments, METH_O, "arguments(op) -> JSON of vqgen_arguments()"},
    {"format_fields", format_fields, METH_O, "format_fields(format) -> JSON"},
    {"weight_tensors", weight_tensors, METH_VARARGS,
     "weight_tensors(format, element, out_features, in_features) -> JSON"},
    {"e8p_table", e8p_table, METH_NOARGS, "e8p_table() -> bytes, float32 [256, 8]"},
    {"scalar_errors", scalar_errors, METH_VARARGS,
     "scalar_errors(original, restored, queries) -> (l2, largest, mean_score)"},
    {"rotator", rotator, METH_VARARGS, "rotator(runtime, element, features, back, stream)"},
    {"rotate", rotate_rows, METH_VARARGS, "rotate(rotator, x, signs, y, rows, stream)"},
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
  add_errors(module.get());
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
