// Compiled as nearest.cpp is, and for the same reason written with GCC's vector extension.
#include "quantizer/nearest_point.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/format/e8p.h"

namespace vqgen {
namespace {

using Floats = float __attribute__((vector_size(16)));
using Ints = std::int32_t __attribute__((vector_size(16)));
constexpr std::size_t kParts = 4;
constexpr std::size_t kSize = kE8pVectorSize;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Floats part_of(const float* lanes, std::size_t part) {
  Floats four;
  std::memcpy(&four, lanes + part * 4, sizeof four);
  return four;
}

bool odd_sum(std::span<const float> entry) {
  float sum = 0;
  for (const float value : entry) sum += value;
  return static_cast<int>(sum) % 2 == 1;
}

}  // namespace

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

NearestPoint::Candidate NearestPoint::nearest_entry(const float (&magnitudes)[8],
                                                    std::uint32_t negative) const {
  Floats best[kParts];
  Ints block_of_best[kParts] = {};
  for (Floats& floats : best) floats = Floats{} + kInfinity;
  for (std::size_t number = 0; number < blocks_.size(); ++number) {
    const Block& block = blocks_[number];
    Floats product[kParts] = {};
    Floats least[kParts];
    for (Floats& floats : least) floats = Floats{} + kInfinity;
    for (std::size_t i = 0; i < kSize; ++i) {
      for (std::size_t part = 0; part < kParts; ++part) {
        const Floats term = magnitudes[i] * part_of(block.element[i].lane, part);
        product[part] += term;
        least[part] = term < least[part] ? term : least[part];
      }
    }
    const Ints current = Ints{} + static_cast<std::int32_t>(number);
    for (std::size_t part = 0; part < kParts; ++part) {
      const Floats distance = part_of(block.norm.lane, part) - 2.0f * product[part] +
                              part_of(block.penalty[negative].lane, part) * least[part];
      const Ints closer = distance < best[part];
      best[part] = closer ? distance : best[part];
      block_of_best[part] = closer ? current : block_of_best[part];
    }
  }
  Candidate result{0, kInfinity};
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const float distance = best[lane / 4][lane % 4];
    const auto block = static_cast<std::size_t>(block_of_best[lane / 4][lane % 4]);
    const auto entry = static_cast<std::uint32_t>(block * kLanes + lane);
    if (distance < result.distance || (distance == result.distance && entry < result.entry)) {
      result = {entry, distance};
    }
  }
  return result;
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
    Candidate candidate = nearest_entry(magnitudes, negative);
    candidate.distance -= 2.0f * shift * sum;  // of |vector - shift|^2
    if (candidate.distance >= least) continue;
    least = candidate.distance;
    const Block& block = blocks_[candidate.entry / kLanes];
    const std::size_t lane = candidate.entry % kLanes;
    if (block.penalty[negative].lane[lane] != 0) {
      std::size_t cheapest = 0;
      const auto cost = [&](std::size_t i) { return magnitudes[i] * block.element[i].lane[lane]; };
      for (std::size_t i = 1; i < kSize; ++i) {
        if (cost(i) < cost(cheapest)) cheapest = i;
      }
      signs ^= 1u << cheapest;
    }
    code = candidate.entry | (signs & 0x7fu) << 8 | down << 15;
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

}  // namespace vqgen
