#include "quantizer/train/clustering.h"

#include <faiss/Clustering.h>
#include <faiss/Index.h>
#include <omp.h>

#include <limits>
#include <optional>

#include "quantizer/nearest.h"

namespace vqgen {
namespace {

// What faiss::Clustering asks of an index: add the centroids, find the nearest one of each vector.
class NearestIndex : public faiss::Index {
 public:
  explicit NearestIndex(int dimension) : faiss::Index(dimension) {}

  void add(idx_t count, const float* centroids) override {
    nearest_.emplace(floats(count, centroids), d);
    ntotal = count;
  }
  void search(idx_t count, const float* vectors, idx_t /*neighbours: 1*/, float* distances,
              idx_t* labels, const faiss::SearchParameters* /*none*/) const override {
    const auto size = static_cast<std::size_t>(count);
    indices_.resize(size);
    nearest_->find(floats(count, vectors), indices_, std::span(distances, size));
    for (std::size_t i = 0; i < size; ++i) labels[i] = static_cast<idx_t>(indices_[i]);
  }
  void reset() override {
    nearest_.reset();
    ntotal = 0;
  }

 private:
  std::span<const float> floats(idx_t count, const float* data) const {
    return {data, static_cast<std::size_t>(count * d)};
  }
  std::optional<NearestEntry> nearest_;
  mutable std::vector<std::uint32_t> indices_;
};

// OpenMP's thread count of this thread, set to one for a scope: more threads were slower.
class OneThread {
 public:
  OneThread() { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = omp_get_max_threads();
};

}  // namespace

std::vector<float> cluster(std::span<const float> vectors, int dimension, int entries,
                           int iterations, std::uint64_t seed) {
  const OneThread one_thread;
  faiss::ClusteringParameters parameters;
  parameters.niter = iterations;
  parameters.seed = static_cast<int>(seed & 0x3fffffff);
  parameters.min_points_per_centroid = 1;  // the caller warns, FAISS would print
  parameters.max_points_per_centroid = std::numeric_limits<int>::max();  // the caller samples
  faiss::Clustering clustering(dimension, entries, parameters);
  NearestIndex index(dimension);
  clustering.train(static_cast<faiss::Index::idx_t>(vectors.size()) / dimension, vectors.data(),
                   index);
  return std::move(clustering.centroids);
}

}  // namespace vqgen
