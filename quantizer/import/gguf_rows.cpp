#include "quantizer/import/gguf_rows.h"

#include <algorithm>
#include <thread>

#include "core/parallel.h"

namespace vqgen {
namespace {

constexpr std::int64_t kWeightsAtATime = 1 << 22;  // weights that are converted at a time
constexpr int kMostThreads = 8;

}  // namespace

GgufRows::GgufRows(GgufPointer file, const GgufTensor& tensor, std::int64_t heads)
    : file_(std::move(file)), tensor_(tensor), rows_(tensor.rows()), columns_(tensor.shape.back()) {
  if (heads > 0) {
    if (tensor.shape.size() == 1) std::swap(rows_, columns_);
    head_rows_ = rows_ / heads;
  }
  row_bytes_ = tensor.bytes / static_cast<std::uint64_t>(rows_);
}

GgufRows GgufRows::part(std::int64_t number, std::int64_t parts) const {
  GgufRows part = *this;
  part.rows_ /= parts;
  part.first_ += number * part.rows_;
  return part;
}

void GgufRows::fail_beyond(DType dtype) const {
  fail(dtype == DType::f16
           ? "holds a number that f16 does not hold; give --dtype bf16, or fetch the file again"
           : "holds a number that bf16 does not hold; fetch the file again");
}

void GgufRows::write(std::size_t into_bytes, const Convert& convert, const TakeBytes& take) const {
  const std::int64_t together =
      head_rows_ * std::max<std::int64_t>(kWeightsAtATime / (columns_ * head_rows_), 1);
  std::vector<std::byte> blocks, converted;
  for (std::int64_t first = 0; first < rows_; first += together) {
    const std::int64_t rows = std::min(together, rows_ - first);
    blocks.resize(static_cast<std::size_t>(rows) * row_bytes_);
    converted.resize(static_cast<std::size_t>(rows) * into_bytes);
    file_->read_bytes(tensor_, static_cast<std::uint64_t>(first_ + first) * row_bytes_, blocks);
    convert_rows(blocks, rows, convert, converted);
    take(static_cast<std::uint64_t>(first) * into_bytes, converted);
  }
}

void GgufRows::convert_rows(std::span<const std::byte> blocks, std::int64_t rows,
                            const Convert& convert, std::span<std::byte> into) const {
  const int threads =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMostThreads);
  const std::size_t row_bytes = blocks.size() / static_cast<std::size_t>(rows);
  const std::size_t into_bytes = into.size() / static_cast<std::size_t>(rows);
  const auto parts = static_cast<std::size_t>(std::min<std::int64_t>(threads, rows));
  in_parallel(parts, threads, [&](std::size_t part) {
    const auto share = [&](std::size_t number) {
      return rows * static_cast<std::int64_t>(number) / static_cast<std::int64_t>(parts);
    };
    for (std::int64_t row = share(part); row < share(part + 1); ++row) {
      convert(blocks.subspan(static_cast<std::size_t>(row) * row_bytes, row_bytes),
              into.subspan(static_cast<std::size_t>(place(row)) * into_bytes, into_bytes));
    }
  });
}

// Where a row goes: of a head, pairs (0, 1), (2, 3), .. become 0, 2, .., 1, 3, ..
std::int64_t GgufRows::place(std::int64_t row) const {
  if (head_rows_ == 1) return row;
  const std::int64_t in_head = row % head_rows_;
  return row - in_head + in_head % 2 * (head_rows_ / 2) + in_head / 2;
}

}  // namespace vqgen
