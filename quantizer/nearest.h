// Exact nearest-entry search, the hot loop of encoding and of k-means.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vqgen {

// One table of entries, transposed into blocks of 16 entries so that one vector instruction serves
// several entries. Distances are sums of squared differences in float, in order of the dimensions,
// without contraction: |x|^2 - 2xc + |c|^2 would save a third of the work, but loses the small
// differences of large vectors, and with them ties and repeatability.
class NearestEntry {
 public:
  // `entries` is [count][dimension]; requires count >= 1. Copies what it needs.
  NearestEntry(std::span<const float> entries, int dimension);

  // Index of the entry nearest to each vector of `vectors` ([n][dimension]) in Euclidean distance
  // (VecInfer eq. 2), the lowest of several; `distances` gets the squared distance, if not empty.
  void find(std::span<const float> vectors, std::span<std::uint32_t> indices,
            std::span<float> distances = {}) const;

 private:
  struct alignas(64) Lanes {
    float lane[16];
  };
  std::size_t dimension_;
  std::vector<Lanes> table_;  // [block][dimension]
};

}  // namespace vqgen
