// Quantizing to codes with signs: the search against all codes, training on magnitudes, and what
// training and encoding give.
#include <cmath>

#include "quantizer/encode.h"
#include "quantizer/nearest.h"
#include "quantizer/train/train.h"
#include "tests/quantizer/samples.h"

namespace vqgen {
namespace {

using samples::normal_floats;
using samples::normal_tensor;

VqFormat signed_format(int vector_size, int index_bits, bool integers) {
  VqFormat format = samples::table_format(vector_size, index_bits);
  format.decoder = Decoder::signs;
  if (integers) format.entry_type = EntryType::int8;
  format.stage_scales = integers;
  return format;
}

double squares(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - double{b[i]}, 2);
  return sum;
}

TEST(NearestSigned, IsTheNearestOfAllCodes) {
  std::vector<float> entries = normal_floats(8 * 4, 1);
  for (float& value : entries) value = std::abs(value);
  const std::vector<float> vectors = normal_floats(100 * 4, 2);
  std::vector<std::uint32_t> codes(100);
  NearestSigned(entries, 4).find(vectors, codes);
  std::vector<float> point(4);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const auto vector = std::span(vectors).subspan(i * 4, 4);
    double least = INFINITY;
    std::uint32_t nearest = 0;
    for (std::uint32_t code = 0; code < 8 << 4; ++code) {
      for (std::size_t d = 0; d < 4; ++d) {  // by the definition of a code
        const float value = entries[code % 8 * 4 + d];
        point[d] = (code >> 3 >> d) % 2 == 1 ? -value : value;
      }
      if (squares(vector, point) < least) {
        least = squares(vector, point);
        nearest = code;
      }
    }
    EXPECT_EQ(codes[i], nearest);
    signed_point(entries, codes[i], point);
    EXPECT_EQ(squares(vector, point), least);
  }
}

TEST(Signs, AreTrainedOnMagnitudes) {
  const FloatTensor tensor = normal_tensor(1, 1, 64, 256, 3);
  for (const bool integers : {false, true}) {
    TrainRequest request{"signs", signed_format(4, 9, integers), DType::f16, &tensor, {}};
    const Codebooks codebooks = train_codebooks(request);
    ASSERT_EQ(codebooks.entries.size(), 32u * 4);
    for (const std::uint16_t bits : codebooks.entries) {
      EXPECT_TRUE(fits_entries(codebooks.format, element_to_float(DType::f16, bits)));
    }
    const double error =
        reconstruction_error(tensor, reconstruct(encode(tensor, codebooks))).relative;
    // A plain table of the same number of entries has no signs, and is far worse.
    request.format = samples::table_format(4, 5);
    const double plain =
        reconstruction_error(tensor, reconstruct(encode(tensor, train_codebooks(request))))
            .relative;
    EXPECT_LT(error, 0.45);
    EXPECT_LT(error, 0.7 * plain);
  }
}

TEST(Signs, EntriesAreNotNegative) {
  const FloatTensor tensor = normal_tensor(1, 1, 4, 16, 3);
  Codebooks codebooks = samples::random_codebooks(signed_format(4, 6, false), 1, DType::f16, 4);
  for (std::uint16_t& bits : codebooks.entries) bits &= 0x7fffu;
  encode(tensor, codebooks);
  codebooks.entries[5] |= 0x8000u;
  EXPECT_NE(message_of([&] { encode(tensor, codebooks); }).find("numbers from 0 on"),
            std::string::npos);
}

}  // namespace
}  // namespace vqgen
