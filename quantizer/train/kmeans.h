// K-means of many codebooks at once (Lloyd), the same wherever their vectors stand.
#pragma once

#include <functional>

#include "quantizer/train/vector_books.h"

namespace vqgen {

struct KMeansRequest {
  int entries = 0;
  int iterations = 0;                // at most
  std::vector<std::uint64_t> seeds;  // [books]
  std::span<const SumFactors> factors;
  std::function<void(int iteration)> begun;  // may be empty
};

// `entries` centroids of each book, [books][entries][dimension]. Each book needs as many vectors,
// all finite.
//
// Starts at a seeded choice of the book's own vectors. An iteration moves each entry to the mean of
// the vectors nearest to it. An entry that has none goes beside the one whose vectors miss it by
// the largest sum of squares, and is taken to halve that sum. Ends before `iterations` once no
// entry of any book moves. The same books and seeds give the same bits.
std::vector<float> kmeans(VectorBooks& books, const KMeansRequest& request);

}  // namespace vqgen
