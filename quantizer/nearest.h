// Exact searches for the nearest entry of a table and the nearest point of the E8P lattice: the hot
// loops of encoding and of training.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vqgen {

// Floats of 16 entries side by side, so that one vector instruction serves several entries.
struct alignas(64) NearestLanes {
  float lane[16];
};

// One table of entries, transposed into blocks of 16 entries. Distances are sums of squared
// differences in float, in order of the dimensions, without contraction: |x|^2 - 2xc + |c|^2 would
// save a third of the work, but loses the small differences of large vectors, and with them ties
// and repeatability.
class NearestEntry {
 public:
  // `entries` is [count][dimension]; requires count >= 1. Copies what it needs.
  NearestEntry(std::span<const float> entries, int dimension);

  // Index of the entry nearest to each vector of `vectors` ([n][dimension]) in Euclidean distance
  // (VecInfer eq. 2), the lowest of several; `distances` gets the squared distance, if not empty.
  // On all cores where that is worth it, with the widest registers that the CPU has: the result
  // does not depend on either.
  void find(std::span<const float> vectors, std::span<std::uint32_t> indices,
            std::span<float> distances = {}) const;
  // The same on this thread alone.
  void find_alone(std::span<const float> vectors, std::span<std::uint32_t> indices,
                  std::span<float> distances = {}) const;

 private:
  std::size_t dimension_;
  std::vector<NearestLanes> table_;  // [block][dimension]
};

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
  struct Block {  // of 16 entries
    NearestLanes element[8];
    NearestLanes norm;
    NearestLanes penalty[2];  // [parity of the negative signs]: 4 where the entry's is another
  };
  std::uint32_t nearest(const float* vector) const;

  float scale_;
  std::vector<Block> blocks_;
};

// The scale by which the points of the lattice with these entries ([256][8]) miss `vectors`
// ([n][8], n >= 1, finite) least in the sum of squares: of the vectors' RMS times 2^(k/2), k =
// -4..8, the best, which is then moved by factors of 2^(1/4), 2^(1/8), .. 2^(1/32) where that is
// better. Without chance, so the same vectors give the same bits. 0 where all vectors are zero,
// since the lattice has no point there.
float lattice_scale(std::span<const float> entries, std::span<const float> vectors);

}  // namespace vqgen
