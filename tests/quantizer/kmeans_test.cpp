#include "quantizer/train/kmeans.h"

#include <faiss/Clustering.h>
#include <faiss/IndexFlat.h>

#include <cmath>
#include <limits>
#include <set>

#include "quantizer/nearest.h"
#include "tests/quantizer/samples.h"

namespace vqgen {
namespace {

std::vector<float> entries_of(const std::vector<float>& vectors, int dimension, int entries,
                              int iterations, std::uint64_t seed) {
  const std::int64_t count = static_cast<std::int64_t>(vectors.size()) / dimension;
  const auto books = make_host_books(vectors, {dimension, {0, count}});
  const std::vector<SumFactors> factors{sum_factors(books->peaks()[0], count, dimension)};
  return kmeans(*books, {entries, iterations, {seed}, factors, {}});
}

double mean_square(const std::vector<float>& vectors, const std::vector<float>& entries,
                   int dimension) {
  std::vector<std::uint32_t> nearest(vectors.size() / static_cast<std::size_t>(dimension));
  std::vector<float> distances(nearest.size());
  NearestEntry(entries, dimension).find(vectors, nearest, distances);
  double sum = 0;
  for (const float distance : distances) sum += distance;
  return sum / static_cast<double>(vectors.size());
}

// FAISS' own k-means, with as many iterations over all vectors.
std::vector<float> faiss_entries(const std::vector<float>& vectors, int dimension, int entries,
                                 int iterations, int seed) {
  faiss::ClusteringParameters parameters;
  parameters.niter = iterations;
  parameters.seed = seed;
  parameters.min_points_per_centroid = 1;
  parameters.max_points_per_centroid = std::numeric_limits<int>::max();
  faiss::Clustering clustering(dimension, entries, parameters);
  faiss::IndexFlatL2 index(dimension);
  clustering.train(static_cast<faiss::Index::idx_t>(vectors.size()) / dimension, vectors.data(),
                   index);
  return clustering.centroids;
}

TEST(KMeans, IsAsGoodAsFaissOnRealData) {
  const SafetensorsFile file(std::filesystem::path(VQGEN_SOURCE_DIR) / "tests" / "data" /
                             "tinycode-kv-calibration.safetensors");
  for (const char* name : {"layer2.k", "layer2.v"}) {
    std::vector<float> head = file.read_finite(name);
    head.resize(head.size() / 4);  // half of the first of two
    for (const auto& [dimension, entries] : {std::pair(4, 256), std::pair(8, 512)}) {
      double ours = 0;
      double theirs = 0;
      for (int seed = 1; seed <= 2; ++seed) {
        ours += mean_square(
            head, entries_of(head, dimension, entries, 15, static_cast<std::uint64_t>(seed)),
            dimension);
        theirs += mean_square(head, faiss_entries(head, dimension, entries, 15, seed), dimension);
      }
      EXPECT_LT(ours, theirs * 1.01) << name << " d" << dimension;
    }
  }
}

TEST(KMeans, GivesEmptyEntriesToThoseThatMissMost) {
  // 90 copies of one point and 70 other points: most entries begin at the point, and all but one of
  // these are empty.
  std::vector<float> vectors = samples::normal_floats(70 * 2, 1);
  for (int i = 0; i < 90; ++i) vectors.insert(vectors.end(), {3.0f, 3.0f});
  const std::vector<float> entries = entries_of(vectors, 2, 60, 30, 1);
  std::set<std::pair<float, float>> different;
  for (std::size_t i = 0; i < entries.size(); i += 2)
    different.insert({entries[i], entries[i + 1]});
  EXPECT_EQ(different.size(), 60u);
  std::vector<std::uint32_t> nearest(vectors.size() / 2);
  NearestEntry(entries, 2).find(vectors, nearest);
  EXPECT_GT(std::set<std::uint32_t>(nearest.begin(), nearest.end()).size(), 55u);
}

TEST(KMeans, EndsEarlyWhereNothingMoves) {
  const std::vector<float> vectors{0, 0, 1, 1, 5, 5, 9, 9};
  const auto books = make_host_books(vectors, {2, {0, 4}});
  const std::vector<SumFactors> factors{sum_factors(9, 4, 2)};
  int iterations = 0;
  const std::vector<float> entries =
      kmeans(*books, {4, 30, {1}, factors, [&](int iteration) { iterations = iteration + 1; }});
  EXPECT_EQ(iterations, 1);
  EXPECT_EQ(mean_square(vectors, entries, 2), 0);
}

TEST(KMeans, SumsKeepToTheirBoundsAndPrecision) {
  for (const float peak : {1e-30f, 1.0f, 3e7f, 0x1p60f}) {
    for (const std::int64_t count :
         {std::int64_t{1}, std::int64_t{1} << 20, std::int64_t{1} << 32}) {
      const SumFactors factors = sum_factors(peak, count, 8);
      const double most = static_cast<double>(count) * peak * factors.element;
      EXPECT_LT(most, 0x1p62) << peak << ' ' << count;
      EXPECT_LT(static_cast<double>(count) * 32.0 * peak * peak * factors.distance, 0x1p62);
      if (peak >= 1) {
        EXPECT_GE(double{peak} * factors.element, 0x1p27);
      }
    }
  }
  EXPECT_EQ(sum_factors(0, 5, 4).element, 1.0f);
}

}  // namespace
}  // namespace vqgen
