// The vectors that codebooks are trained on, wherever they stand: on the host (host_books.cpp) or
// on a device (runtime/training/device_books.h). A book is the vectors of one codebook.
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

// Those of a book of `count` vectors of `dimension` elements up to `peak`: 2^40 steps for the
// largest, and less where the sum of `count` would not fit 63 bits.
SumFactors sum_factors(float peak, std::int64_t count, int dimension);

// What the vectors whose nearest entry is this one come to: [dimension] elements, then the squared
// distances, each times its factor and cut to an integer, then their number.
constexpr int sum_fields(int dimension) { return dimension + 2; }

// Where book b is vectors begins[b] .. begins[b + 1].
struct BookShape {
  int dimension = 0;
  std::vector<std::int64_t> begins;

  std::int64_t books() const { return static_cast<std::int64_t>(begins.size()) - 1; }
  std::int64_t count(std::int64_t book) const {
    const auto at = static_cast<std::size_t>(book);
    return begins[at + 1] - begins[at];
  }
};

// Not thread-safe.
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

  // From each vector its nearest entry of [books][n][dimension].
  virtual void subtract(std::span<const float> entries) = 0;

 protected:
  explicit VectorBooks(BookShape shape) : shape_(std::move(shape)) {}
  BookShape shape_;
};

// Takes vectors of the host, [all][dimension]. Error(device) where a device fails.
using MakeBooks =
    std::function<std::unique_ptr<VectorBooks>(std::vector<float> vectors, BookShape shape)>;

// On all cores.
std::unique_ptr<VectorBooks> make_host_books(std::vector<float> vectors, BookShape shape);

}  // namespace vqgen
