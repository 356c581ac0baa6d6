// Exact search for the nearest point of the E8P lattice, the hot loop of encoding to it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vqgen {

// The elements that `code` stands for, from the entry that it reads; both have 8
// (templates/vq/layout/format.h).
void lattice_point(std::span<const float> entry, std::uint32_t code, std::span<float> point);

// For each shift c of 1/4 and each entry a, the best signs of z = x - c are z's own, at a squared
// distance of |z|^2 - 2 sum a_i |z_i| + |a|^2; where their number does not fit the entry's parity,
// turning the sign of element i costs 4 a_i |z_i|, so the least of these is added. 512 candidates
// stand for all 65,536 points. |z|^2 is left out but for its part that depends on c, so that large
// vectors lose no small differences.
class NearestPoint {
 public:
  // `entries` is [256][8] of half-integers (core/format/e8p.h). The points are `scale` times the
  // lattice's, scale >= 0; with 0 all codes are alike.
  NearestPoint(std::span<const float> entries, float scale);

  // The code of the point nearest to each vector of `vectors` ([n][8], finite); of several that of
  // the shift by +1/4, then of the lowest entry.
  void find(std::span<const float> vectors, std::span<std::uint32_t> codes) const;

 private:
  static constexpr std::size_t kLanes = 16;
  struct alignas(64) Lanes {
    float lane[kLanes];
  };
  struct Block {  // of 16 entries
    Lanes element[8];
    Lanes norm;
    Lanes penalty[2];  // [parity of the negative signs]: 4 where the entry's is another, else 0
  };
  struct Candidate {
    std::uint32_t entry;
    float distance;
  };
  Candidate nearest_entry(const float (&magnitudes)[8], std::uint32_t negative) const;
  std::uint32_t nearest(const float* vector) const;

  float scale_;
  std::vector<Block> blocks_;
};

}  // namespace vqgen
