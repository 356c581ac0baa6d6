#include "quantizer/train/split.h"

#include <algorithm>
#include <numeric>

namespace vqgen {

std::vector<double> channel_errors(const FloatTensor& original, const FloatTensor& reconstructed) {
  const auto channels = static_cast<std::size_t>(original.columns);
  std::vector<double> errors(channels);
  std::vector<double> energies(channels);
  for (std::size_t i = 0; i < original.data.size(); ++i) {
    const double value = original.data[i];
    const double difference = value - reconstructed.data[i];
    errors[i % channels] += difference * difference;
    energies[i % channels] += value * value;
  }
  for (std::size_t i = 0; i < channels; ++i) {
    errors[i] = energies[i] > 0 ? errors[i] / energies[i] : 0;
  }
  return errors;
}

VqFormat share_channels(const VqFormat& keys, std::span<const double> errors) {
  std::vector<int> worst_first(errors.size());
  std::iota(worst_first.begin(), worst_first.end(), 0);
  std::stable_sort(worst_first.begin(), worst_first.end(), [&](int a, int b) {
    return errors[static_cast<std::size_t>(a)] > errors[static_cast<std::size_t>(b)];
  });
  std::vector<VqFormat> parts = keys.parts;
  std::vector<VqFormat*> most_bits_first;
  for (VqFormat& part : parts) most_bits_first.push_back(&part);
  std::stable_sort(most_bits_first.begin(), most_bits_first.end(),
                   [](const VqFormat* a, const VqFormat* b) {
                     return a->bits_per_element() > b->bits_per_element();
                   });
  auto next = worst_first.begin();
  for (VqFormat* part : most_bits_first) {
    const auto end = next + std::ssize(part->channels);
    part->channels.assign(next, end);
    std::sort(part->channels.begin(), part->channels.end());
    next = end;
  }
  return in_parts(std::move(parts));
}

}  // namespace vqgen
