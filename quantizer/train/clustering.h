// K-means by FAISS, alone behind this header so that no other file sees FAISS.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vqgen {

// `entries` centroids of `vectors` ([n][dimension], n >= entries, finite) after Lloyd iterations
// from a seeded choice of vectors. One thread; assignment is NearestEntry's rather than FAISS's own
// flat index, whose BLAS gives other bits on other machines and thread counts.
std::vector<float> cluster(std::span<const float> vectors, int dimension, int entries,
                           int iterations, std::uint64_t seed);

}  // namespace vqgen
