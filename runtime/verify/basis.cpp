#include "runtime/verify/basis.h"

namespace vqgen {
namespace {

double mean_of(const QuantizedTensor& tensor, std::int64_t head, std::size_t channel) {
  if (tensor.mean.empty()) return 0;
  return static_cast<double>(
      tensor.mean[static_cast<std::size_t>(head * tensor.columns) + channel]);
}

double rotation_of(const QuantizedTensor& tensor, std::int64_t head, std::size_t from,
                   std::size_t to) {
  const auto dim = static_cast<std::size_t>(tensor.columns);
  return static_cast<double>(
      tensor.rotation[(static_cast<std::size_t>(head) * dim + from) * dim + to]);
}

}  // namespace

std::vector<double> into_basis(const QuantizedTensor& tensor, std::int64_t head,
                               std::span<const double> x, bool centered) {
  std::vector<double> left(x.begin(), x.end());
  for (std::size_t i = 0; i < left.size() && centered; ++i) left[i] -= mean_of(tensor, head, i);
  if (tensor.rotation.empty()) return left;
  std::vector<double> z(left.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    for (std::size_t j = 0; j < left.size(); ++j) z[j] += left[i] * rotation_of(tensor, head, i, j);
  }
  return z;
}

std::vector<double> out_of_basis(const QuantizedTensor& tensor, std::int64_t head,
                                 std::span<const double> z, double weight) {
  std::vector<double> x(z.begin(), z.end());
  for (std::size_t i = 0; i < x.size() && !tensor.rotation.empty(); ++i) {
    x[i] = 0;
    for (std::size_t j = 0; j < z.size(); ++j) x[i] += z[j] * rotation_of(tensor, head, i, j);
  }
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += weight * mean_of(tensor, head, i);
  return x;
}

double dot_mean(const QuantizedTensor& tensor, std::int64_t head, std::span<const double> x) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * mean_of(tensor, head, i);
  return sum;
}

}  // namespace vqgen
