// Quantizing to the E8P lattice: the search against all 65,536 points, the fitted scale, and the
// decoded values of its tensors.
#include <cmath>

#include "quantizer/encode.h"
#include "quantizer/nearest.h"
#include "quantizer/pack.h"
#include "tests/quantizer/samples.h"

namespace vqgen {
namespace {

using samples::normal_floats;
using samples::normal_tensor;

constexpr std::uint32_t kCodes = 65536;
using Vector = std::span<const float>;

Vector entry_of(std::uint32_t code) {
  static const std::vector<float> table = e8p_table();
  return Vector(table).subspan(code % 256 * 8, 8);
}

// Every point by its definition: signs one by one, that of element 7 by the parity of the sum.
const std::vector<float>& points() {
  static const std::vector<float> all = [] {
    std::vector<float> made;
    for (std::uint32_t code = 0; code < kCodes; ++code) {
      float signed_entry[8];
      float sum = 0;
      for (std::size_t i = 0; i < 7; ++i) {
        signed_entry[i] = (code >> (8 + i)) % 2 == 1 ? -entry_of(code)[i] : entry_of(code)[i];
        sum += signed_entry[i];
      }
      const float last = entry_of(code)[7];
      signed_entry[7] = std::fmod(sum + last, 2.0f) == 0 ? last : -last;
      for (const float value : signed_entry)
        made.push_back(value + (code < 0x8000 ? 0.25f : -0.25f));
    }
    return made;
  }();
  return all;
}
Vector point_of(std::uint32_t code) { return Vector(points()).subspan(code * 8, 8); }

double distance(Vector a, Vector b, double scale) {
  double sum = 0;
  for (std::size_t i = 0; i < 8; ++i) sum += std::pow(double{a[i]} - scale * double{b[i]}, 2);
  return sum;
}

double least_distance(Vector vector, double scale) {
  double least = INFINITY;
  for (std::uint32_t code = 0; code < kCodes; ++code) {
    least = std::min(least, distance(vector, point_of(code), scale));
  }
  return least;
}

TEST(LatticePoint, IsTheDefinitionForEveryCode) {
  for (std::uint32_t code = 0; code < kCodes; ++code) {
    float point[8];
    lattice_point(entry_of(code), code, point);
    ASSERT_TRUE(std::equal(point, point + 8, point_of(code).begin())) << code;
  }
}

TEST(NearestPoint, AgreesWithABruteForceSearchInDouble) {
  for (const float scale : {1.0f, 0.37f, 12.5f}) {
    // Points within the lattice, near its edge, beyond it, and far off to one side.
    for (const float spread : {0.3f, 1.0f, 3.0f, 100.0f}) {
      for (const float offset : {0.0f, 50.0f}) {
        std::vector<float> vectors = normal_floats(12 * 8, 7);
        for (float& value : vectors) value = scale * (value * spread + offset);
        std::vector<std::uint32_t> codes(12);
        NearestPoint(e8p_table(), scale).find(vectors, codes);
        for (std::size_t i = 0; i < codes.size(); ++i) {
          const Vector vector = Vector(vectors).subspan(i * 8, 8);
          ASSERT_LT(codes[i], kCodes);
          const double mine = distance(vector, point_of(codes[i]), double{scale});
          ASSERT_LE(mine, least_distance(vector, double{scale}) * (1 + 1e-5))
              << scale << ' ' << spread << ' ' << offset << ' ' << i;
        }
      }
    }
  }
}

TEST(NearestPoint, EveryPointIsItsOwnNearest) {
  for (const float scale : {1.0f, 0.5f, 3.0f}) {  // by which the points are exact
    std::vector<float> vectors = points();
    for (float& value : vectors) value *= scale;
    std::vector<std::uint32_t> codes(kCodes);
    NearestPoint(e8p_table(), scale).find(vectors, codes);
    for (std::uint32_t code = 0; code < kCodes; ++code) ASSERT_EQ(codes[code], code);
  }
}

TEST(NearestPoint, TakesItsTableFromTheData) {
  std::vector<float> table = e8p_table();
  std::rotate(table.begin(), table.begin() + 8 * 100, table.end());
  std::vector<std::uint32_t> codes(kCodes);
  NearestPoint(table, 1.0f).find(points(), codes);
  for (std::uint32_t code = 0; code < kCodes; ++code) {
    ASSERT_EQ(codes[code], (code & 0xff00u) | ((code & 0xffu) + 156) % 256);
  }
}

TEST(NearestPoint, TiesAndAScaleOfNothing) {
  const std::vector<float> zeros(8, 0.0f);
  std::vector<std::uint32_t> codes{7};
  NearestPoint(e8p_table(), 1.0f).find(zeros, codes);
  // Both shifts are equally near: the one of + 1/4 wins, whose nearest point has all signs
  // negative.
  EXPECT_EQ(codes[0], 0x7f00u);
  EXPECT_NEAR(distance(zeros, point_of(codes[0]), 1), least_distance(zeros, 1), 1e-12);
  NearestPoint(e8p_table(), 0.0f).find(normal_floats(8, 1), codes);
  EXPECT_EQ(codes[0], 0x7f00u);
}

double error_at(float scale, const std::vector<float>& vectors) {
  std::vector<std::uint32_t> codes(vectors.size() / 8);
  NearestPoint(e8p_table(), scale).find(vectors, codes);
  double error = 0;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    error += distance(Vector(vectors).subspan(i * 8, 8), point_of(codes[i]), double{scale});
  }
  return error;
}

TEST(LatticeScale, IsNearTheBestOfAFineScan) {
  std::vector<float> spiky(2000 * 8, 0.0f);  // one vector in 50 is not zero: the RMS says little
  for (std::size_t i = 0; i < spiky.size(); i += 50 * 8) spiky[i] = 30.0f;
  for (const auto& vectors : {normal_floats(2000 * 8, 3), spiky}) {
    const float found = lattice_scale(e8p_table(), vectors);
    double best = INFINITY;
    for (float scale = 0.01f; scale < 30; scale *= 1.03f) {
      best = std::min(best, error_at(scale, vectors));
    }
    EXPECT_LE(error_at(found, vectors), best * 1.02);
  }
  // The paper's figure for Gaussian data at 2 bits is a mean squared error of 0.089.
  const std::vector<float> normal = normal_floats(8192 * 8, 4);
  EXPECT_NEAR(error_at(lattice_scale(e8p_table(), normal), normal) / (8192 * 8), 0.09, 0.003);
}

TEST(LatticeScale, FollowsTheVectorsAndIsZeroWithThem) {
  std::vector<float> vectors = normal_floats(500 * 8, 5);
  const float scale = lattice_scale(e8p_table(), vectors);
  EXPECT_EQ(lattice_scale(e8p_table(), vectors), scale);
  for (float& value : vectors) value *= 1024.0f;
  EXPECT_EQ(lattice_scale(e8p_table(), vectors), 1024 * scale);
  std::fill(vectors.begin(), vectors.end(), 0.0f);
  EXPECT_EQ(lattice_scale(e8p_table(), vectors), 0.0f);
}

TEST(Encode, EveryStageTakesItsNearestPointInEveryScope) {
  const FloatTensor tensor = normal_tensor(1, 2, 3, 16, 1);
  for (const Scope scope : {Scope::tensor, Scope::head, Scope::channel_group}) {
    for (const bool scales : {false, true}) {
      const VqFormat format = samples::lattice_format(scope, 2, scales);
      const std::int64_t units = unit_map(format, 2, 3, 16, "test").units();
      const QuantizedTensor result =
          encode(tensor, samples::lattice_codebooks(format, units, DType::bf16));
      const std::vector<std::uint32_t> codes = unpack_codes(result);
      const FloatTensor decoded = decode(result);
      for (std::size_t vector = 0; vector < tensor.data.size() / 8; ++vector) {
        std::vector<float> left(tensor.data.begin() + static_cast<std::ptrdiff_t>(vector * 8),
                                tensor.data.begin() + static_cast<std::ptrdiff_t>(vector * 8 + 8));
        for (std::size_t stage = 0; stage < 2; ++stage) {
          const float scale = !scales ? 1.0f : stage == 0 ? 1.0f : 0.5f;
          const std::uint32_t code = codes[vector * 2 + stage];
          const double mine = distance(left, point_of(code), double{scale});
          ASSERT_LE(mine, least_distance(left, double{scale}) * (1 + 1e-5));
          for (std::size_t i = 0; i < 8; ++i) left[i] -= scale * point_of(code)[i];
        }
        for (std::size_t i = 0; i < 8; ++i) {
          const std::size_t at = vector * 8 + i;
          ASSERT_NEAR(decoded.data[at] + left[i], tensor.data[at], 1e-5);
        }
      }
    }
  }
}

TEST(Encode, RefusesATableThatIsNone) {
  const VqFormat format = samples::lattice_format(Scope::tensor, 1, false);
  Codebooks codebooks = samples::lattice_codebooks(format, 1, DType::f16);
  const FloatTensor tensor = normal_tensor(1, 1, 2, 8, 1);
  encode(tensor, codebooks);
  codebooks.entries[77] = f16_from_float(1.0f);
  EXPECT_NE(message_of([&] { encode(tensor, codebooks); }).find("half-integers"),
            std::string::npos);
}

}  // namespace
}  // namespace vqgen
