#include "python/src/functions.h"

#include <memory>

#include "python/src/guarded.h"
#include "python/src/measures.h"
#include "python/src/rotation.h"
#include "python/src/training.h"

namespace vqgen::python {

PyObject* format_fields(PyObject*, PyObject* format) {
  return guarded<PyObject*>(nullptr, [&] {
    return checked(PyUnicode_FromString(fields_of(text_of(format, "the format")).c_str()))
        .release();
  });
}

PyObject* weight_tensors(PyObject*, PyObject* args) {
  return guarded<PyObject*>(nullptr, [&] {
    PyObject *format, *element, *out_features, *in_features;
    if (PyArg_ParseTuple(args, "OOOO:weight_tensors", &format, &element, &out_features,
                         &in_features) == 0) {
      throw PythonError{};
    }
    char* json = nullptr;
    require(vqgen_weight_tensors(text_of(format, "the format").c_str(), int_of(element, "element"),
                                 integer_of(out_features, "out_features"),
                                 integer_of(in_features, "in_features"), &json));
    const std::unique_ptr<char, decltype(&vqgen_text_free)> owned(json, &vqgen_text_free);
    return checked(PyUnicode_FromString(json)).release();
  });
}

PyObject* e8p_table(PyObject*, PyObject*) {
  return guarded<PyObject*>(nullptr, [&] {
    const float* const table = vqgen_e8p_table();
    return checked(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(table),
                                             Py_ssize_t{256 * 8 * sizeof(float)}))
        .release();
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

// rotate(rotator, x, signs, y, rows, stream), of addresses that are judged.
PyObject* rotate_rows(PyObject*, PyObject* args) {
  return guarded<PyObject*>(nullptr, [&] {
    PyObject *capsule, *x, *signs, *y, *rows, *stream;
    if (PyArg_ParseTuple(args, "OOOOOO:rotate", &capsule, &x, &signs, &y, &rows, &stream) == 0) {
      throw PythonError{};
    }
    rotate(capsule, unsigned_of(x, "x"), unsigned_of(signs, "signs"), unsigned_of(y, "y"),
           integer_of(rows, "rows"), stream_of(stream));
    return Object::borrowed(Py_None).release();
  });
}

}  // namespace vqgen::python
