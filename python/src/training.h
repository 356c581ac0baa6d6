// Codebooks trained on arrays of other libraries.
#pragma once

#include <optional>

#include "python/src/tensor.h"

namespace vqgen::python {

// All fields of a format, as JSON (vqgen_format_fields()).
std::string fields_of(const std::string& format);

// One training, its arrays judged: vectors float32 [units, rows, columns] on `device`, and what is
// written in the CPU's memory, with the shapes that the format and the vectors give it. StatusError
// names the array and what it has to be. A format file is read once, here.
class Training {
 public:
  Training(const DLDevice& device, PyObject* vectors, PyObject* codebooks, PyObject* scales,
           const std::string& format, int element, std::uint64_t seed, int iterations);

  // On all cores without a runtime. Calls no Python.
  void run(vqgen_runtime* runtime) const;

 private:
  std::string format_;  // with all its fields
  Tensor vectors_, codebooks_;
  std::optional<Tensor> scales_;
  vqgen_training_args args_{};
};

}  // namespace vqgen::python
