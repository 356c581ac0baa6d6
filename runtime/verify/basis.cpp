#include "runtime/verify/basis.h"

#include <cmath>
#include <numeric>
#include <utility>

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

// Rows of normal numbers, made orthogonal one after the other (Gram-Schmidt, twice for accuracy).
std::vector<float> random_rotation(std::int64_t dim, Random& random) {
  std::vector<std::vector<double>> rows;
  while (std::ssize(rows) < dim) {
    std::vector<double> row(static_cast<std::size_t>(dim));
    for (double& each : row) each = random.normal();
    for (int pass = 0; pass < 2; ++pass) {
      for (const std::vector<double>& other : rows) {
        const double along = std::inner_product(row.begin(), row.end(), other.begin(), 0.0);
        for (std::size_t i = 0; i < row.size(); ++i) row[i] -= along * other[i];
      }
    }
    const double length = std::sqrt(std::inner_product(row.begin(), row.end(), row.begin(), 0.0));
    for (double& each : row) each /= length;
    rows.push_back(std::move(row));
  }
  std::vector<float> all;
  for (const std::vector<double>& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
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

void add_hard_basis(QuantizedTensor& t, double magnitude, Random& random) {
  for (std::int64_t i = 0; t.format.center && i < t.heads * t.columns; ++i) {
    t.mean.push_back(static_cast<float>(magnitude * random.normal()));
  }
  for (std::int64_t head = 0; t.format.klt && head < t.heads; ++head) {
    const std::vector<float> of_head = random_rotation(t.columns, random);
    t.rotation.insert(t.rotation.end(), of_head.begin(), of_head.end());
  }
}

}  // namespace vqgen
