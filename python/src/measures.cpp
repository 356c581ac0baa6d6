#include "python/src/measures.h"

#include <optional>

#include "python/src/tensor.h"

namespace vqgen::python {
namespace {

Tensor matrix(PyObject* object, const char* name, const DLTensor* like) {
  Tensor tensor(object, name, nullptr);
  const DLTensor& view = tensor.view();
  const bool typed = view.dtype == DLDataType{kFloat, 32, 1} && view.device.type == kCpu;
  const auto lies = [&](int dimension, std::int64_t stride) {
    return tensor.empty() || view.shape[dimension] == 1 || tensor.stride(dimension) == stride;
  };
  if (!typed || view.ndim != 2 || !lies(1, 1) || !lies(0, view.shape[1])) {
    throw bad_input(std::string("'") + name + "' is " + tensor.words() +
                    "; it has to be float32 [rows, channels], contiguous, on cpu");
  }
  if (like != nullptr && view.shape[1] != like->shape[1]) {
    throw bad_input(std::string("'") + name + "' has " + std::to_string(view.shape[1]) +
                    " channels, and 'original' " + std::to_string(like->shape[1]) +
                    "; pass as many");
  }
  return tensor;
}

}  // namespace

vqgen_scalar_errors measured_errors(PyObject* original, PyObject* restored, PyObject* queries) {
  const Tensor from = matrix(original, "original", nullptr);
  const Tensor to = matrix(restored, "restored", &from.view());
  if (to.view().shape[0] != from.view().shape[0]) {
    throw bad_input("'restored' is " + to.words() + ", and 'original' " + from.words() +
                    "; make them equal in shape");
  }
  std::optional<Tensor> asked;
  if (queries != Py_None) asked.emplace(matrix(queries, "queries", &from.view()));
  vqgen_scalar_errors errors{};
  const WithoutGil without;
  require(vqgen_measure_scalar_errors(static_cast<const float*>(from.data()),
                                      static_cast<const float*>(to.data()), from.view().shape[0],
                                      from.view().shape[1],
                                      asked ? static_cast<const float*>(asked->data()) : nullptr,
                                      asked ? asked->view().shape[0] : 0, &errors));
  return errors;
}

}  // namespace vqgen::python
