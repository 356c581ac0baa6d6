// K-means (Lloyd) of many codebooks at once, on the host or a device.
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

// K-means: `entries` centroids per book, [books][entries][dimension], from a seeded choice of at
// least as many finite vectors. An empty entry moves beside the one with the largest error. Ends
// early once no entry moves. Equal books and seeds give equal bits.
std::vector<float> kmeans(VectorBooks& books, const KMeansRequest& request);

}  // namespace vqgen
