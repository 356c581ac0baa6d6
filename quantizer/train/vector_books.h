// Training vectors of codebooks, in host memory (host_books.cpp) or device memory
// (runtime/training/device_books.h). A book is the vectors of one codebook.
//
// Sums are integers, so that they do not depend on the order of additions: the same vectors and
// entries give the same sums on any number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace vqgen {

// The powers of two that elements and squared distances of a book are multiplied by before they are
// added as integers.
struct SumFactors {
  float element = 1;
  float distance = 1;
};

// Factors for a book of `count` vectors of `dimension` elements up to `peak`: 2^40 steps for the
// largest, or fewer so that the sum of `count` fits 63 bits.
SumFactors sum_factors(float peak, std::int64_t count, int dimension);

// Integer sums per entry over the vectors nearest to it: [dimension] elements, the squared
// distances, each times its factor and truncated, and the number of vectors.
constexpr int sum_fields(int dimension) { return dimension + 2; }

// Book b is vectors begins[b] .. begins[b + 1].
struct BookShape {
  int dimension = 0;
  std::vector<std::int64_t> begins;

  std::int64_t books() const { return static_cast<std::int64_t>(begins.size()) - 1; }
  std::int64_t count(std::int64_t book) const {
    const auto at = static_cast<std::size_t>(book);
    return begins[at + 1] - begins[at];
  }
};

// Vectors of several codebooks and their nearest entries. Not thread-safe.
class VectorBooks {
 public:
  virtual ~VectorBooks() = default;
  const BookShape& shape() const { return shape_; }

  // The largest magnitude of each book; infinity or NaN where an element is that.
  virtual std::vector<float> peaks() = 0;

  // The vectors with these numbers, counted within their books: picks [books][n], result
  // [books][n][dimension].
  virtual std::vector<float> gather(std::span<const std::int64_t> picks) = 0;

  // Sums by nearest entry (ties to the lowest): entries [books][n][dimension], factors [books],
  // result [books][n][sum_fields].
  virtual void sum(std::span<const float> entries, std::span<const SumFactors> factors,
                   std::vector<std::int64_t>& sums) = 0;

  // Subtracts from each vector its nearest entry of [books][n][dimension].
  virtual void subtract(std::span<const float> entries) = 0;

 protected:
  explicit VectorBooks(BookShape shape) : shape_(std::move(shape)) {}
  BookShape shape_;
};

// Takes vectors of the host, [all][dimension]. Error(device) where a device fails.
using MakeBooks =
    std::function<std::unique_ptr<VectorBooks>(std::vector<float> vectors, BookShape shape)>;

// Books on the host, which use all cores.
std::unique_ptr<VectorBooks> make_host_books(std::vector<float> vectors, BookShape shape);

}  // namespace vqgen
