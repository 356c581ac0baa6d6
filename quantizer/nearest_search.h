// The search of NearestEntry for vector registers of kWidth floats. Each width is compiled in a
// file of its own with its instructions, and nearest.cpp takes the widest that the CPU has; all
// give the same bits, as each lane does the same operations.
//
// No function of the standard library may be used here: compiled with these instructions, it might
// be linked for all. GCC's vector extension keeps the running minima in registers, unlike its loop
// vectorizer.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vqgen {

constexpr std::size_t kNearestLanes = 16;  // entries of a block of a table

// `table` is [blocks][dimension][16]; `vectors` [count][dimension]. `distances` may be null.
struct NearestJob {
  const float* table;
  std::size_t blocks;
  std::size_t dimension;
  const float* vectors;
  std::size_t count;
  std::uint32_t* indices;
  float* distances;
};
void find_nearest_4(const NearestJob& job);
void find_nearest_8(const NearestJob& job);   // needs AVX2
void find_nearest_16(const NearestJob& job);  // needs AVX-512 (F)

namespace {

struct Nearest {
  std::uint32_t index;
  float distance;
};

// The least distance so far of each lane, and its block.
template <std::size_t kWidth>
struct Best {
  static constexpr std::size_t kParts = kNearestLanes / kWidth;
  using Floats [[gnu::vector_size(4 * kWidth)]] = float;
  using Ints [[gnu::vector_size(4 * kWidth)]] = std::int32_t;

  Best() {
    for (Floats& each : distance) each = Floats{} + __builtin_inff();
  }
  [[gnu::always_inline]] void keep(std::size_t part, const Floats& other, std::size_t block) {
    const Ints closer = other < distance[part];
    distance[part] = closer ? other : distance[part];
    block_of[part] = closer ? Ints{} + static_cast<std::int32_t>(block) : block_of[part];
  }
  Nearest nearest() const {
    Nearest result{0, __builtin_inff()};
    for (std::size_t lane = 0; lane < kNearestLanes; ++lane) {
      const float own = distance[lane / kWidth][lane % kWidth];
      const auto block = static_cast<std::size_t>(block_of[lane / kWidth][lane % kWidth]);
      const auto index = static_cast<std::uint32_t>(block * kNearestLanes + lane);
      if (own < result.distance || (own == result.distance && index < result.index)) {
        result = {index, own};
      }
    }
    return result;
  }
  static Floats part_of(const float* lanes, std::size_t part) {
    Floats floats;
    __builtin_memcpy(&floats, lanes + part * kWidth, sizeof floats);
    return floats;
  }

  Floats distance[kParts];
  Ints block_of[kParts] = {};
};

// kTogether vectors from number `first` on share each load of the table. kDimension 0 means that
// only the job knows it.
template <std::size_t kWidth, std::size_t kTogether, std::size_t kDimension>
void find_together(const NearestJob& job, std::size_t first) {
  using Floats = typename Best<kWidth>::Floats;
  const std::size_t size = kDimension > 0 ? kDimension : job.dimension;
  const float* const x = job.vectors + first * size;
  Best<kWidth> best[kTogether];
  const float* table = job.table;
  for (std::size_t block = 0; block < job.blocks; ++block, table += size * kNearestLanes) {
#pragma GCC unroll 4
    for (std::size_t part = 0; part < Best<kWidth>::kParts; ++part) {
      Floats distance[kTogether] = {};
#pragma GCC unroll 16
      for (std::size_t d = 0; d < size; ++d) {
        const Floats entry = Best<kWidth>::part_of(table + d * kNearestLanes, part);
#pragma GCC unroll 4
        for (std::size_t t = 0; t < kTogether; ++t) {
          const Floats difference = x[t * size + d] - entry;
          distance[t] += difference * difference;
        }
      }
#pragma GCC unroll 4
      for (std::size_t t = 0; t < kTogether; ++t) best[t].keep(part, distance[t], block);
    }
  }
  for (std::size_t t = 0; t < kTogether; ++t) {
    const Nearest nearest = best[t].nearest();
    job.indices[first + t] = nearest.index;
    if (job.distances != nullptr) job.distances[first + t] = nearest.distance;
  }
}

template <std::size_t kWidth, std::size_t kTogether, std::size_t kDimension>
void find_all(const NearestJob& job) {
  std::size_t first = 0;
  for (; first + kTogether <= job.count; first += kTogether) {
    find_together<kWidth, kTogether, kDimension>(job, first);
  }
  for (; first < job.count; ++first) find_together<kWidth, 1, kDimension>(job, first);
}

template <std::size_t kWidth, std::size_t kTogether>
void find_by_dimension(const NearestJob& job) {
  if (job.dimension == 2) return find_all<kWidth, kTogether, 2>(job);
  if (job.dimension == 4) return find_all<kWidth, kTogether, 4>(job);
  if (job.dimension == 8) return find_all<kWidth, kTogether, 8>(job);
  if (job.dimension == 16) return find_all<kWidth, kTogether, 16>(job);
  return find_all<kWidth, kTogether, 0>(job);
}

}  // namespace
}  // namespace vqgen
