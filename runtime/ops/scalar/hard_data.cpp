#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "runtime/ops/scalar/reference.h"

namespace vqgen {
namespace {

enum ScalarStream : std::uint64_t { kMatrix = 40, kCodes = 41, kChannels = 42 };

// The host memory of a run: input, output, reference, a copy of each on the host backend, and both
// matrices in fp32 for the measures. Checked first, since overcommitted memory would end the
// process later.
void require_memory(const ScalarMatrix& op) {
  const double wanted = op.elements() * (3 * (1 + op.element_bytes()) + 8);
  const double held =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (wanted <= held) return;
  throw Error(
      ErrorKind::device,
      fmt::format("a matrix of {} tokens and {} channels takes {:.1f} GB of this machine's "
                  "memory with its reference, which has {:.1f} GB; lower tokens or channels",
                  op.shape.tokens, op.shape.channels, wanted * 1e-9, held * 1e-9));
}

enum class Channel { uniform, zeros, constant, tiny, large, ties };

float element_of(Channel kind, bool first, Random& random) {
  switch (kind) {
    case Channel::zeros:
      return random.chance(0.5) ? 0.0f : -0.0f;
    case Channel::constant:
      return -0.75f;
    case Channel::tiny:  // of which a scale is no normal number, or hardly one
      return static_cast<float>(std::ldexp(random.uniform(-1, 1), -120));
    case Channel::large:
      return static_cast<float>(random.uniform(-60000, 60000));
    case Channel::ties:  // with 127 the scale is 1
      return first ? 127.0f : static_cast<float>(random.below(253)) - 126.0f + 0.5f;
    default:
      return static_cast<float>(random.uniform(-1, 1));
  }
}

float not_finite(Random& random) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNone[] = {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity};
  return kNone[random.below(3)];
}

}  // namespace

ScalarData make_scalar_data(const ScalarMatrix& problem, const HardInput& input) {
  require_memory(problem);
  const ScalarShape& shape = problem.shape;
  ScalarData data;
  data.dtype = problem.dtype;
  data.tokens = shape.tokens;
  data.channels = shape.channels;
  data.decodes = problem.decodes;
  data.computes_scales = shape.scales == Scales::computed;
  const auto channels = static_cast<std::size_t>(shape.channels);
  const std::size_t all = static_cast<std::size_t>(shape.tokens) * channels;
  const bool hard = input.lengths == LengthPattern::ragged;
  Random kinds(input.seed, kChannels);
  std::vector<Channel> kind(channels, Channel::uniform);
  if (hard) {
    for (Channel& each : kind) each = static_cast<Channel>(kinds.below(6));
  }
  data.elements.resize(all * static_cast<std::size_t>(data.element_bytes()));
  Random random(input.seed, kMatrix);
  for (std::size_t at = 0; at < all; ++at) {
    const bool broken = hard && random.chance(0.02);
    put_real(data.dtype, data.elements, at,
             broken ? not_finite(random) : element_of(kind[at % channels], at < channels, random));
  }
  if (data.computes_scales) return data;
  ScalarData measured = data;
  measured.decodes = false;
  measured.computes_scales = true;
  ScalarResult made = reference_scalar(measured);
  data.scales = std::move(made.scales);
  if (data.decodes) {
    data.codes = std::move(made.codes);
    Random codes(input.seed, kCodes);
    for (std::uint8_t& each : data.codes) {
      if (hard && codes.chance(0.1)) each = static_cast<std::uint8_t>(codes.below(256));
    }
  } else if (hard) {
    for (float& each : data.scales) {
      if (kinds.chance(0.25)) each *= 0.3f;  // so that codes are clamped
    }
  }
  return data;
}

}  // namespace vqgen
