// Rows of a tensor in a GGUF file, converted some at a time and put in the order of Hugging Face:
// of q and k of permuted architectures, the rows of RoPE's first halves before those of its second.
#pragma once

#include <functional>
#include <memory>

#include "quantizer/import/gguf_file.h"
#include "quantizer/import/import_plan.h"

namespace vqgen {

using GgufPointer = std::shared_ptr<const GgufFile>;

class GgufRows {
 public:
  // `heads`: whose rows are permuted; 0: none are. A permuted tensor of one axis, a bias, has a
  // number per row.
  GgufRows(GgufPointer file, const GgufTensor& tensor, std::int64_t heads);
  // Part `number` of so many equal ones, such as the rows of an expert. More than one part requires
  // rows without heads.
  GgufRows part(std::int64_t number, std::int64_t parts) const;

  const GgufTensor& tensor() const { return tensor_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(rows_) * row_bytes_; }
  [[noreturn]] void fail(std::string_view problem) const { file_->fail(tensor_.name, problem); }
  // The error of a weight that is not finite as this type.
  [[noreturn]] void fail_beyond(DType dtype) const;

  // Turns a row's blocks into its bytes; called from several threads.
  using Convert = std::function<void(std::span<const std::byte> blocks, std::span<std::byte> into)>;
  // Gives all rows of so many bytes to `take`, in order.
  void write(std::size_t into_bytes, const Convert& convert, const TakeBytes& take) const;

 private:
  void convert_rows(std::span<const std::byte> blocks, std::int64_t rows, const Convert& convert,
                    std::span<std::byte> into) const;
  std::int64_t place(std::int64_t row) const;

  GgufPointer file_;
  const GgufTensor& tensor_;
  std::int64_t first_ = 0;  // row of the tensor
  std::int64_t rows_ = 0, columns_ = 0;
  std::uint64_t row_bytes_ = 0;
  std::int64_t head_rows_ = 1;  // rows that are permuted among each other
};

}  // namespace vqgen
