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

// One table of entries, transposed into blocks of 16. Distances are float sums of squared
// differences in dimension order, without contraction: |x|^2 - 2xc + |c|^2 would lose the small
// differences of large vectors, and with them ties and repeatability.
class NearestEntry {
 public:
  // `entries` is [count][dimension]; requires count >= 1. Copies what it needs.
  NearestEntry(std::span<const float> entries, int dimension);

  // Index of the entry nearest to each of `vectors` ([n][dimension]) in Euclidean distance
  // (VecInfer eq. 2), the lowest on ties; squared distances to `distances` if not empty. Uses
  // several cores if worthwhile and the widest registers; the result depends on neither.
  void find(std::span<const float> vectors, std::span<std::uint32_t> indices,
            std::span<float> distances = {}) const;
  // find() on this thread alone.
  void find_alone(std::span<const float> vectors, std::span<std::uint32_t> indices,
                  std::span<float> distances = {}) const;

 private:
  std::size_t dimension_;
  std::vector<NearestLanes> table_;  // [block][dimension]
};

// The nearest entry with signs (templates/vq/layout/format.h): the elements' own signs, and the
// entry nearest to their magnitudes.
class NearestSigned {
 public:
  // `entries` is [count][dimension] of numbers from 0 on, `count` a power of two.
  NearestSigned(std::span<const float> entries, int dimension);

  // The code nearest to each of `vectors`, with the lowest entry on ties.
  void find(std::span<const float> vectors, std::span<std::uint32_t> codes) const;

 private:
  std::size_t dimension_;
  std::uint32_t count_;
  NearestEntry magnitudes_;
};

// The elements that a code with signs stands for, from the entries [count][dimension].
void signed_point(std::span<const float> entries, std::uint32_t code, std::span<float> point);

// The elements that `code` stands for, from the entry that it names; both have 8
// (templates/vq/layout/format.h).
void lattice_point(std::span<const float> entry, std::uint32_t code, std::span<float> point);

// Nearest point of the E8P lattice by 512 candidates (shift, entry): the best signs are z's own; if
// their parity does not fit, flipping element i costs 4 a_i |z_i|, and the least is added. Of |z|^2
// only the part that depends on the shift counts, so that large vectors keep small differences.
class NearestPoint {
 public:
  // `entries` is [256][8] of half-integers (core/format/e8p.h). The points are `scale` times the
  // lattice's, scale >= 0; with 0 all codes are alike.
  NearestPoint(std::span<const float> entries, float scale);

  // The code of the point nearest to each of `vectors` ([n][8], finite); on ties the shift by +1/4,
  // then the lowest entry.
  void find(std::span<const float> vectors, std::span<std::uint32_t> codes) const;

 private:
  struct Block {  // 16 entries
    NearestLanes element[8];
    NearestLanes norm;
    NearestLanes penalty[2];  // [parity of the negative signs]: 4 where the entry's is another
  };
  std::uint32_t nearest(const float* vector) const;

  float scale_;
  std::vector<Block> blocks_;
};

// The scale that minimizes the squared error of `vectors` ([n][8], n >= 1, finite) against the
// lattice of these entries ([256][8]): the best of RMS times 2^(k/2), k = -4..8, refined by factors
// of 2^(1/4) .. 2^(1/32). Deterministic. 0 if all vectors are zero, which is no point.
float lattice_scale(std::span<const float> entries, std::span<const float> vectors);

}  // namespace vqgen
