// Tensor: an array of another library, seen through DLPack without a copy for as long as this
// lives.
#pragma once

#include <vector>

#include "python/src/dlpack.h"
#include "python/src/object.h"

namespace vqgen::python {

class Tensor {
 public:
  // `stream` is where its data will be used, for libraries that order by it.
  // StatusError(VQGEN_BAD_INPUT) where the object is no array, or one that its library does not
  // lend. `name` is for messages.
  Tensor(PyObject* object, const std::string& name, void* stream);
  Tensor(Tensor&&) = default;
  Tensor& operator=(Tensor&&) = default;

  const DLTensor& view() const { return view_; }
  bool read_only() const { return read_only_; }
  void* data() const { return static_cast<char*>(view_.data) + view_.byte_offset; }
  // Without an element, so that strides mean nothing.
  bool empty() const { return span_bytes() == 0; }
  // Elements from one index of a dimension to the next.
  std::int64_t stride(int dimension) const;
  // From the first byte to behind the last one that any index reaches.
  std::size_t span_bytes() const;
  // "int64 [2, 3] on cpu".
  std::string words() const;

 private:
  DLTensor view_{};
  bool read_only_ = false;
  Object owner_;  // the capsule, where the view is its
};

std::string dtype_words(DLDataType type);

// The stream that the library of `object` works on, by its own word; false where it has none.
bool library_stream(PyObject* object, const DLDevice& device, void** stream);

}  // namespace vqgen::python
