#include "quantizer/lattice_scale.h"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "core/format/e8p.h"
#include "quantizer/nearest_point.h"

namespace vqgen {
namespace {

constexpr std::size_t kSize = kE8pVectorSize;

class Fit {
 public:
  Fit(std::span<const float> entries, std::span<const float> vectors)
      : entries_(entries), vectors_(vectors), codes_(vectors.size() / kSize) {}

  float scale() const { return scale_; }

  // Takes `scale` where it is better than the best so far.
  void attempt(float scale) {
    const double error = squared_error(scale);
    if (!(error < least_)) return;
    least_ = error;
    scale_ = scale;
  }

 private:
  double squared_error(float scale) {
    NearestPoint(entries_, scale).find(vectors_, codes_);
    double error = 0;
    std::array<float, kSize> point{};
    for (std::size_t at = 0; at < codes_.size(); ++at) {
      lattice_point(entries_.subspan(codes_[at] % kE8pEntries * kSize, kSize), codes_[at], point);
      for (std::size_t i = 0; i < kSize; ++i) {
        const double miss = double{vectors_[at * kSize + i]} - double{scale * point[i]};
        error += miss * miss;
      }
    }
    return error;
  }

  std::span<const float> entries_;
  std::span<const float> vectors_;
  std::vector<std::uint32_t> codes_;
  double least_ = std::numeric_limits<double>::infinity();
  float scale_ = 0;
};

}  // namespace

float lattice_scale(std::span<const float> entries, std::span<const float> vectors) {
  double energy = 0;
  for (const float value : vectors) energy += double{value} * value;
  const auto rms = static_cast<float>(std::sqrt(energy / static_cast<double>(vectors.size())));
  if (rms == 0) return 0;
  Fit fit(entries, vectors);
  float step = std::sqrt(2.0f);  // by roots alone, which are the same on every machine
  float scale = rms / 4;
  for (int k = -4; k <= 8; ++k, scale *= step) fit.attempt(scale);
  for (int halving = 0; halving < 4; ++halving) {
    step = std::sqrt(step);
    const float best = fit.scale();
    fit.attempt(best * step);
    fit.attempt(best / step);
  }
  return fit.scale();
}

}  // namespace vqgen
