// Compiled with -O3 -ffp-contract=off in every preset (CMakeLists.txt).
#include "quantizer/nearest.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <thread>

#include "core/format/e8p.h"
#include "core/parallel.h"
#include "quantizer/nearest_search.h"

namespace vqgen {
namespace {

constexpr std::size_t kLanes = kNearestLanes;
constexpr std::size_t kSize = kE8pVectorSize;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Lattices are searched with the instructions that every x86 CPU has.
using Lanes = Best<4>;
using Floats = Lanes::Floats;
constexpr std::size_t kParts = Lanes::kParts;

// Operations that justify a thread.
constexpr std::size_t kLeastOfThread = 4'000'000;

using Search = void (*)(const NearestJob&);

Search widest_search() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return find_nearest_16;
  if (__builtin_cpu_supports("avx2")) return find_nearest_8;
#endif
  return find_nearest_4;
}

bool odd_sum(std::span<const float> entry) {
  float sum = 0;
  for (const float value : entry) sum += value;
  return static_cast<int>(sum) % 2 == 1;
}

// The nearest entry of the lattice to z of these |z_i|, of which an odd number (1) is negative.
template <class Block>
Nearest nearest_entry(const std::vector<Block>& blocks, const float (&magnitudes)[8],
                      std::uint32_t negative) {
  Lanes best;
  for (std::size_t number = 0; number < blocks.size(); ++number) {
    const Block& block = blocks[number];
    Floats product[kParts] = {};
    Floats least[kParts];
    std::fill_n(least, kParts, Floats{} + kInfinity);
    for (std::size_t i = 0; i < kSize; ++i) {
      for (std::size_t part = 0; part < kParts; ++part) {
        const Floats term = magnitudes[i] * Lanes::part_of(block.element[i].lane, part);
        product[part] += term;
        least[part] = term < least[part] ? term : least[part];
      }
    }
    for (std::size_t part = 0; part < kParts; ++part) {
      const Floats distance = Lanes::part_of(block.norm.lane, part) - 2.0f * product[part] +
                              Lanes::part_of(block.penalty[negative].lane, part) * least[part];
      best.keep(part, distance, number);
    }
  }
  return best.nearest();
}

}  // namespace

void find_nearest_4(const NearestJob& job) { find_by_dimension<4, 1>(job); }

NearestEntry::NearestEntry(std::span<const float> entries, int dimension)
    : dimension_(static_cast<std::size_t>(dimension)) {
  const std::size_t count = entries.size() / dimension_;
  const std::size_t blocks = (count + kLanes - 1) / kLanes;
  table_.resize(blocks * dimension_);
  for (std::size_t entry = 0; entry < blocks * kLanes; ++entry) {
    for (std::size_t d = 0; d < dimension_; ++d) {
      NearestLanes& lanes = table_[entry / kLanes * dimension_ + d];
      // The lanes past the last entry are infinitely far from everything.
      lanes.lane[entry % kLanes] = entry < count ? entries[entry * dimension_ + d] : kInfinity;
    }
  }
}

void NearestEntry::find(std::span<const float> vectors, std::span<std::uint32_t> indices,
                        std::span<float> distances) const {
  const std::size_t count = vectors.size() / dimension_;
  const std::size_t threads =
      std::clamp<std::size_t>(count * table_.size() * kLanes / kLeastOfThread, 1,
                              std::max(1u, std::thread::hardware_concurrency()));
  const std::size_t share = (count + threads - 1) / threads;
  in_parallel(threads, static_cast<int>(threads), [&](std::size_t part) {
    const std::size_t begin = std::min(count, part * share);
    const std::size_t own = std::min(count, begin + share) - begin;
    find_alone(vectors.subspan(begin * dimension_, own * dimension_), indices.subspan(begin, own),
               distances.empty() ? distances : distances.subspan(begin, own));
  });
}

void NearestEntry::find_alone(std::span<const float> vectors, std::span<std::uint32_t> indices,
                              std::span<float> distances) const {
  static const Search search = widest_search();
  search({table_.data()->lane, table_.size() / dimension_, dimension_, vectors.data(),
          vectors.size() / dimension_, indices.data(),
          distances.empty() ? nullptr : distances.data()});
}

NearestSigned::NearestSigned(std::span<const float> entries, int dimension)
    : dimension_(static_cast<std::size_t>(dimension)),
      count_(static_cast<std::uint32_t>(entries.size() / dimension_)),
      magnitudes_(entries, dimension) {}

void NearestSigned::find(std::span<const float> vectors, std::span<std::uint32_t> codes) const {
  std::vector<float> magnitudes(vectors.begin(), vectors.end());
  for (float& value : magnitudes) value = std::abs(value);
  magnitudes_.find(magnitudes, codes);
  for (std::size_t at = 0; at < vectors.size(); ++at) {
    if (vectors[at] < 0) codes[at / dimension_] += count_ << at % dimension_;
  }
}

void signed_point(std::span<const float> entries, std::uint32_t code, std::span<float> point) {
  const auto count = static_cast<std::uint32_t>(entries.size() / point.size());
  const std::size_t first = code % count * point.size();
  for (std::size_t i = 0; i < point.size(); ++i) {
    const float value = entries[first + i];
    point[i] = (code / count >> i & 1u) != 0 ? -value : value;
  }
}

void lattice_point(std::span<const float> entry, std::uint32_t code, std::span<float> point) {
  std::uint32_t signs = code >> 8 & 0x7fu;
  const bool odd = std::popcount(signs) % 2 == 1;
  if (odd != odd_sum(entry)) signs |= 0x80u;
  const float shift = code < 0x8000u ? 0.25f : -0.25f;
  for (std::size_t i = 0; i < kSize; ++i) {
    point[i] = ((signs >> i & 1u) != 0 ? -entry[i] : entry[i]) + shift;
  }
}

NearestPoint::NearestPoint(std::span<const float> entries, float scale)
    : scale_(scale), blocks_(kE8pEntries / kLanes) {
  for (std::size_t number = 0; number < kE8pEntries; ++number) {
    Block& block = blocks_[number / kLanes];
    const std::size_t lane = number % kLanes;
    const auto entry = entries.subspan(number * kSize, kSize);
    float norm = 0;
    for (std::size_t i = 0; i < kSize; ++i) {
      block.element[i].lane[lane] = entry[i];
      norm += entry[i] * entry[i];
    }
    block.norm.lane[lane] = norm;
    const std::size_t parity = odd_sum(entry) ? 1 : 0;
    block.penalty[parity].lane[lane] = 0.0f;
    block.penalty[1 - parity].lane[lane] = 4.0f;
  }
}

std::uint32_t NearestPoint::nearest(const float* vector) const {
  float sum = 0;
  for (std::size_t i = 0; i < kSize; ++i) sum += vector[i];
  std::uint32_t code = 0;
  float least = kInfinity;
  for (const std::uint32_t down : {0u, 1u}) {
    const float shift = down == 0 ? 0.25f : -0.25f;
    float magnitudes[kSize];
    std::uint32_t signs = 0;
    for (std::size_t i = 0; i < kSize; ++i) {
      const float shifted = vector[i] - shift;
      magnitudes[i] = std::abs(shifted);
      signs |= (shifted < 0 ? 1u : 0u) << i;
    }
    const auto negative = static_cast<std::uint32_t>(std::popcount(signs) % 2);
    Nearest candidate = nearest_entry(blocks_, magnitudes, negative);
    candidate.distance -= 2.0f * shift * sum;  // |vector - shift|^2
    if (candidate.distance >= least) continue;
    least = candidate.distance;
    const Block& block = blocks_[candidate.index / kLanes];
    const std::size_t lane = candidate.index % kLanes;
    if (block.penalty[negative].lane[lane] != 0) {
      std::size_t cheapest = 0;
      const auto cost = [&](std::size_t i) { return magnitudes[i] * block.element[i].lane[lane]; };
      for (std::size_t i = 1; i < kSize; ++i) {
        if (cost(i) < cost(cheapest)) cheapest = i;
      }
      signs ^= 1u << cheapest;
    }
    code = candidate.index | (signs & 0x7fu) << 8 | down << 15;
  }
  return code;
}

void NearestPoint::find(std::span<const float> vectors, std::span<std::uint32_t> codes) const {
  float scaled[kSize];
  for (std::size_t at = 0; at < codes.size(); ++at) {
    for (std::size_t i = 0; i < kSize; ++i) {
      scaled[i] = scale_ > 0 ? vectors[at * kSize + i] / scale_ : 0.0f;
    }
    codes[at] = nearest(scaled);
  }
}

float lattice_scale(std::span<const float> entries, std::span<const float> vectors) {
  double energy = 0;
  for (const float value : vectors) energy += double{value} * value;
  const auto rms = static_cast<float>(std::sqrt(energy / static_cast<double>(vectors.size())));
  if (rms == 0) return 0;
  std::vector<std::uint32_t> codes(vectors.size() / kSize);
  std::array<float, kSize> point{};
  double least = std::numeric_limits<double>::infinity();
  float best = 0;
  const auto attempt = [&](float scale) {
    NearestPoint(entries, scale).find(vectors, codes);
    double error = 0;
    for (std::size_t at = 0; at < codes.size(); ++at) {
      lattice_point(entries.subspan(codes[at] % kE8pEntries * kSize, kSize), codes[at], point);
      for (std::size_t i = 0; i < kSize; ++i) {
        const double miss = double{vectors[at * kSize + i]} - double{scale * point[i]};
        error += miss * miss;
      }
    }
    if (!(error < least)) return;
    least = error;
    best = scale;
  };
  float step = std::sqrt(2.0f);  // square roots are equal on every machine
  float scale = rms / 4;
  for (int k = -4; k <= 8; ++k, scale *= step) attempt(scale);
  for (int halving = 0; halving < 4; ++halving) {
    step = std::sqrt(step);
    const float middle = best;
    attempt(middle * step);
    attempt(middle / step);
  }
  return best;
}

}  // namespace vqgen
