#include "quantizer/encode.h"

#include <cmath>

#include "quantizer/nearest.h"
#include "quantizer/nearest_search.h"
#include "quantizer/pack.h"
#include "quantizer/transform.h"
#include "tests/quantizer/samples.h"

namespace vqgen {
namespace {

using samples::normal_floats;
using samples::normal_tensor;
using samples::random_codebooks;
using samples::table_format;

double squared_distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = double{a[i]} - b[i];
    sum += difference * difference;
  }
  return sum;
}

// The lowest index with the smallest distance, in double.
std::uint32_t brute_force(std::span<const float> vector, std::span<const float> entries) {
  std::uint32_t best = 0;
  double least = INFINITY;
  for (std::uint32_t i = 0; i < entries.size() / vector.size(); ++i) {
    const double distance =
        squared_distance(vector, entries.subspan(i * vector.size(), vector.size()));
    if (distance < least) {
      least = distance;
      best = i;
    }
  }
  return best;
}

TEST(Nearest, AgreesWithABruteForceSearchInDouble) {
  for (const int dimension : {1, 2, 3, 4, 5, 8, 16, 32}) {
    for (const std::int64_t count : {1, 4, 15, 16, 17, 256, 1024}) {
      const auto size = static_cast<std::size_t>(dimension);
      const std::vector<float> entries = normal_floats(count * dimension, 1);
      std::vector<float> vectors = normal_floats(200 * dimension, 2);
      for (float& value : vectors) value += 100.0f;  // far off, where norms would cancel
      std::vector<std::uint32_t> found(200);
      std::vector<float> distances(200);
      NearestEntry(entries, dimension).find(vectors, found, distances);
      for (std::size_t i = 0; i < 200; ++i) {
        const auto vector = std::span<const float>(vectors).subspan(i * size, size);
        const auto entry = [&](std::uint32_t index) {
          return std::span<const float>(entries).subspan(index * size, size);
        };
        const double best = squared_distance(vector, entry(brute_force(vector, entries)));
        const double mine = squared_distance(vector, entry(found[i]));
        ASSERT_LE(mine, best * (1 + 1e-6)) << dimension << " x " << count;
        ASSERT_NEAR(distances[i], mine, 1e-5 * mine);
      }
    }
  }
}

TEST(Nearest, TiesGoToTheLowestIndex) {
  // Entry i repeats entry i % 10, and vectors are entries or halfway between two.
  std::vector<float> entries;
  for (int i = 0; i < 64; ++i) {
    entries.push_back(static_cast<float>(i % 10));
    entries.push_back(0.0f);
  }
  std::vector<float> vectors;
  for (int i = 0; i < 10; ++i) {
    vectors.insert(vectors.end(), {static_cast<float>(9 - i), 1.0f});
    vectors.insert(vectors.end(), {static_cast<float>(9 - i) - 0.5f, 1.0f});
  }
  std::vector<std::uint32_t> found(20);
  NearestEntry(entries, 2).find(vectors, found);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(found[i], brute_force(std::span<const float>(vectors).subspan(i * 2, 2), entries));
  }
}

// Every code against a brute-force search in double, stage after stage, and what it decodes to.
void expect_greedy(const FloatTensor& tensor, const Codebooks& codebooks) {
  const VqFormat& format = codebooks.format;
  const QuantizedTensor result = encode(tensor, codebooks);
  const std::vector<std::uint32_t> codes = unpack_codes(result);
  const FloatTensor decoded = decode(result);
  const UnitMap map = unit_map(format, tensor.heads, tensor.rows, tensor.columns, "test");
  const auto size = static_cast<std::size_t>(format.vector_size);
  const auto num_codebooks = static_cast<std::size_t>(format.num_codebooks);
  for (std::int64_t unit = 0; unit < map.units(); ++unit) {
    const UnitDecoder decoder(result, unit);
    const auto check = [&](std::int64_t row, std::int64_t column) {
      const auto place = static_cast<std::size_t>(row * tensor.columns + column);
      std::vector<float> left(size);
      for (std::size_t d = 0; d < size; ++d) left[d] = tensor.data[place + d];
      std::vector<float> sum(size, 0.0f);
      for (std::size_t stage = 0; stage < num_codebooks; ++stage) {
        const auto entries = decoder.entries(static_cast<int>(stage));
        const std::uint32_t code = codes[place / size * num_codebooks + stage];
        const auto mine = entries.subspan(code * size, size);
        const auto best = entries.subspan(brute_force(left, entries) * size, size);
        ASSERT_LE(squared_distance(left, mine), squared_distance(left, best) * (1 + 1e-6) + 1e-12);
        for (std::size_t d = 0; d < size; ++d) {
          left[d] -= mine[d];
          sum[d] += mine[d];
        }
      }
      for (std::size_t d = 0; d < size; ++d) ASSERT_EQ(decoded.data[place + d], sum[d]);
    };
    for_each_sub_vector(map, map.extent(unit), tensor.batch, format.vector_size, check);
  }
}

TEST(Encode, EveryStageTakesItsNearestEntryInEveryScope) {
  const FloatTensor cache = normal_tensor(2, 3, 50, 32, 1);
  for (const Scope scope : {Scope::tensor, Scope::head, Scope::channel_group}) {
    for (const bool scales : {false, true}) {
      VqFormat format = table_format(4, 5, scope, 3);
      format.stage_scales = scales;
      if (scope == Scope::channel_group) format.group_channels = 8;
      const std::int64_t units = unit_map(format, 3, 50, 32, "test").units();
      expect_greedy(cache, random_codebooks(format, units, DType::bf16, 2));
    }
  }
  VqFormat tiles = table_format(8, 7, Scope::tile);
  tiles.tile_rows = 20;
  tiles.tile_columns = 16;
  expect_greedy(normal_tensor(1, 1, 50, 40, 3), random_codebooks(tiles, 9, DType::f16, 4));
}

TEST(Encode, ManySubVectorsCrossTheChunks) {
  expect_greedy(normal_tensor(1, 1, 2500, 8, 1),
                random_codebooks(table_format(2, 4), 1, DType::f16, 2));
}

TEST(Reconstruct, UndoesTransformsAndOutputScales) {
  // With codebooks that hold exactly these vectors, quantization is exact except for 16-bit
  // rounding.
  VqFormat format = table_format(16, 3);
  FloatTensor rows = normal_tensor(1, 1, 8, 16, 1);
  format.output_scales = true;
  Codebooks codebooks{format, DType::f16, 1, samples::bits_of(rows.data, DType::f16), {}, {}};
  QuantizedTensor weights = encode(rows, codebooks);
  weights.output_scales = {1, 2, 3, 4, 5, 6, 7, 8};
  const FloatTensor scaled = reconstruct(weights);
  for (std::int64_t row = 0; row < 8; ++row) {
    for (std::size_t i = 0; i < 16; ++i) {
      EXPECT_NEAR(scaled.row(row)[i], rows.row(row)[i] * static_cast<float>(row + 1), 0.03);
    }
  }

  codebooks.format.output_scales = false;
  codebooks.format.smooth = codebooks.format.hadamard = true;
  QuantizedTensor keys = encode(rows, codebooks);
  keys.smooth = normal_floats(16, 2);
  FloatTensor again = reconstruct(keys);
  transform_keys(again, keys.format, keys.smooth);
  EXPECT_LT(reconstruction_error(rows, again).relative, 1e-3);
}

TEST(Reconstruct, ReportsMeanAndRelativeError) {
  const FloatTensor original{1, 1, 1, 4, {1, 2, 3, 4}};
  const FloatTensor off{1, 1, 1, 4, {1, 2, 3, 2}};
  EXPECT_DOUBLE_EQ(reconstruction_error(original, off).mse, 1.0);
  EXPECT_DOUBLE_EQ(reconstruction_error(original, off).relative, std::sqrt(4.0 / 30.0));
  EXPECT_EQ(reconstruction_error(original, original).relative, 0.0);
}

// The mean of each head and channel is over batches and rows.
TEST(Reconstruct, CenteredIsWithoutTheMeanOfAChannel) {
  const FloatTensor keys{2, 2, 1, 2, {1, 2, 3, 4, 3, 2, 5, -4}};
  const FloatTensor expected{2, 2, 1, 2, {-1, 0, -1, 4, 1, 0, 1, -4}};
  EXPECT_EQ(centered(keys).data, expected.data);
  EXPECT_DOUBLE_EQ(common_share(keys), 1 - 36.0 / 84.0);
  EXPECT_EQ(common_share(FloatTensor{1, 1, 1, 2, {0, 0}}), 0.0);
}

#if defined(__x86_64__)
TEST(Encode, EveryWidthOfRegistersFindsTheSame) {
  for (const std::size_t dimension : {1u, 2u, 3u, 4u, 8u, 16u}) {
    const std::size_t blocks = 3;
    const std::size_t count = 101;  // not a multiple of the vectors that are searched at once
    std::vector<float> table =
        samples::normal_floats(static_cast<std::int64_t>(blocks * dimension * kNearestLanes), 1);
    for (float& value : table) value = std::round(value * 2) / 2;  // so that there are ties
    std::vector<float> vectors =
        samples::normal_floats(static_cast<std::int64_t>(count * dimension), 2);
    for (float& value : vectors) value = std::round(value * 2) / 2;
    vectors[0] = std::nanf("");
    std::vector<std::uint32_t> indices(count), wanted(count);
    std::vector<float> distances(count), wanted_distances(count);
    NearestJob job{table.data(),           blocks, dimension, vectors.data(), count, wanted.data(),
                   wanted_distances.data()};
    find_nearest_4(job);
    EXPECT_EQ(wanted[0], 0u);
    job.indices = indices.data();
    job.distances = distances.data();
    if (__builtin_cpu_supports("avx2") != 0) {
      find_nearest_8(job);
      EXPECT_EQ(indices, wanted) << dimension;
      EXPECT_EQ(distances, wanted_distances) << dimension;
    }
    if (__builtin_cpu_supports("avx512f") != 0) {
      find_nearest_16(job);
      EXPECT_EQ(indices, wanted) << dimension;
      EXPECT_EQ(distances, wanted_distances) << dimension;
    }
  }
}
#endif

}  // namespace
}  // namespace vqgen
