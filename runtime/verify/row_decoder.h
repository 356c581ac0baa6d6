// The value of a quantized tensor in double precision, read in the plainest way: codes bit by bit,
// rows as sums of entries over stages, the nearest code by trying all entries. It judges kernels
// and packers, so it shares no code with them; it reads the orders of templates/vq/layout/.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/format/quantized_tensor.h"

namespace vqgen {

// The code in bits [bit, bit + index_bits) of a packed row.
std::uint32_t read_code(std::span<const std::uint32_t> row, std::int64_t bit, int index_bits);

// The 8 elements of an E8P code and its entry, as templates/vq/layout/format.h defines them: seven
// signs one by one, the last by the parity of the sum.
std::array<double, 8> e8p_point(std::span<const double> entry, std::uint32_t code);

// The index of a row's word among the words of a tensor in its format.layout: codes are
// [batch][heads][groups of rows][runs of words][rows of a group][words of a run].
std::size_t word_number(const QuantizedTensor& tensor, std::int64_t sequence, std::int64_t head,
                        std::int64_t row, std::int64_t word);

// The words of a row, out of the tensor's codes.
std::vector<std::uint32_t> row_words(const QuantizedTensor& tensor,
                                     std::span<const std::uint32_t> codes, std::int64_t sequence,
                                     std::int64_t head, std::int64_t row);

// The scale and zero by which an element's number counts if rows have scales behind their codes: x
// = zero + scale * number. `codes` are a tensor's codes.
struct ScaleOfToken {
  double scale, zero;
};
ScaleOfToken scale_of_token(const QuantizedTensor& tensor, std::span<const std::uint32_t> codes,
                            std::int64_t sequence, std::int64_t head, std::int64_t row,
                            std::int64_t column);

// The codebook set that serves an element: by head and channel group (KV cache), by channel group
// or tile (weights).
std::int64_t unit_of(const QuantizedTensor& tensor, std::int64_t head, std::int64_t row,
                     std::int64_t column);

// Throws Error(bad_input, message) if data of a reference contradict each other.
void require(bool consistent, const char* message);

// The number of threads for a double-precision reference of so many multiply-adds: small ones
// finish before a thread starts. One thread computes each sum, so the number changes no bit.
int reference_threads(std::int64_t multiply_adds);

// The element that packed bits stand for.
inline double element_value(DType dtype, std::uint16_t bits) {
  return static_cast<double>(element_to_float(dtype, bits));
}

// Below, codebook `book` is number unit * num_codebooks + stage.
class RowDecoder {
 public:
  // Keeps a reference to `tensor`, which must outlive it, and expands the codebooks to doubles.
  // Throws Error(bad_input) if sizes contradict each other or a lattice's table is invalid, and
  // Error(infeasible) for entries that are not 16-bit elements.
  explicit RowDecoder(const QuantizedTensor& tensor);

  // out[column] = sum over stages of scale * entry, in the basis of the rows (verify/basis.h).
  // `out` has tensor.columns elements. Thread-safe.
  void decode(std::int64_t sequence, std::int64_t head, std::int64_t row,
              std::span<double> out) const;

  // What a code stands for: [vector_size], the stage's scale included. Thread-safe. This and the
  // next not of rows in parts.
  std::vector<double> point(std::int64_t book, std::uint32_t code) const;

  // The distance of `x`, [vector_size], to the nearest point of any code. Thread-safe.
  double least_distance(std::int64_t book, std::span<const double> x) const;

 private:
  // Adds the value of `code` to out[].
  void add_entry(std::int64_t book, std::uint32_t code, std::span<double> out) const;
  std::span<const double> entry(std::int64_t book, std::int64_t number) const;
  double scale_of(std::int64_t book) const;

  struct Parts;

  const QuantizedTensor& tensor_;
  std::shared_ptr<const Parts> parts_;  // of rows in parts, else null
  std::vector<double> entries_;         // [units][num_codebooks][entries][vector_size]
};

}  // namespace vqgen
