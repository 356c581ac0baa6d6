// Scalar codes on the CPU (templates/vq/layout/format.h): a number for each element, by the scales
// that are its unit's one entry.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/format/element.h"
#include "core/format/vq_format.h"
#include "quantizer/encode.h"

namespace vqgen {

// point[i] = number i of the code times scales[i], format.vector_size of each.
void scalar_point(const VqFormat& format, std::span<const float> scales, std::uint32_t code,
                  std::span<float> point);

// The numbers nearest to elements, clamped to the largest, bit for bit as kv_append finds them.
class NearestScalars {
 public:
  // `scales`, [format.vector_size], are above 0.
  NearestScalars(const VqFormat& format, std::span<const float> scales)
      : format_(format), scales_(scales.begin(), scales.end()) {}

  // `vectors` is [n][vector_size], finite.
  void find(std::span<const float> vectors, std::span<std::uint32_t> codes) const;

 private:
  VqFormat format_;
  std::vector<float> scales_;
};

// The least scale, as `dtype` has it, by which no number up to `peak` is clamped: its bits. 1 where
// the peak is 0. Infinite where `dtype` has none so large.
std::uint16_t scalar_scale(const VqFormat& format, DType dtype, float peak);

// Rows of `values`, in the encoded domain, with an element that the scales clamp. 0 for scalar
// codes with scales of their own, which clamp nothing.
std::int64_t clamped_rows(const FloatTensor& values, const Codebooks& scales);

}  // namespace vqgen
