
#include "quantizer/encode.h"
#include "tests/quantizer/samples.h"

namespace vqgen {
namespace {

using samples::random_codebooks;
using samples::table_format;

TEST(Codebooks, FoldingReplacesEntriesByTheirProjections) {
  const VqFormat format = table_format(4, 3, Scope::head, 2);
  Codebooks codebooks = random_codebooks(format, 2, DType::f16, 1);
  const Codebooks before = codebooks;
  codebooks.projections = samples::normal_floats(2 * 4 * 4, 2);
  const std::vector<float> matrices = codebooks.projections;
  fold_projections(codebooks);
  EXPECT_TRUE(codebooks.projections.empty());
  for (std::size_t unit = 0; unit < 2; ++unit) {
    for (std::size_t stage = 0; stage < 2; ++stage) {
      for (std::size_t entry = 0; entry < 8; ++entry) {
        const std::size_t first = ((unit * 2 + stage) * 8 + entry) * 4;
        for (std::size_t i = 0; i < 4; ++i) {
          double expected = 0;
          for (std::size_t j = 0; j < 4; ++j) {
            expected +=
                double{matrices[stage * 16 + i * 4 + j]} * f16_to_float(before.entries[first + j]);
          }
          EXPECT_EQ(codebooks.entries[first + i], f16_from_float(static_cast<float>(expected)));
        }
      }
    }
  }
  Codebooks untouched = before;
  fold_projections(untouched);
  EXPECT_EQ(untouched.entries, before.entries);
}

TEST(Codebooks, FoldingRefusesWhatTheElementTypeCannotHold) {
  Codebooks codebooks = random_codebooks(table_format(2, 2), 1, DType::f16, 1);
  codebooks.projections = {1e6f, 0, 0, 1e6f};
  EXPECT_NE(message_of([&] { fold_projections(codebooks); }).find("too large for f16"),
            std::string::npos);
}

TEST(Codebooks, FoldingRefusesIntegers) {
  Codebooks codebooks = random_codebooks(table_format(2, 2), 1, DType::f16, 1);
  codebooks.format.entry_type = EntryType::int8;
  fold_projections(codebooks);
  codebooks.projections = {1, 0, 0, 1};
  EXPECT_NE(message_of([&] { fold_projections(codebooks); }).find("no integers"),
            std::string::npos);
}

TEST(Codebooks, EncodingRefusesIntegersThatAreNone) {
  const FloatTensor tensor = samples::normal_tensor(1, 1, 4, 8, 1);
  Codebooks codebooks = random_codebooks(table_format(4, 3), 1, DType::f16, 1);
  codebooks.format.entry_type = EntryType::int8;
  codebooks.format.stage_scales = true;
  codebooks.stage_scales = {0.5f};
  const auto with = [&](float value) {
    codebooks.entries.assign(codebooks.entries.size(), f16_from_float(7.0f));
    codebooks.entries[5] = f16_from_float(value);
    encode(tensor, codebooks);
  };
  for (const float value : {-127.0f, 0.0f, 127.0f}) with(value);
  for (const float value : {-128.0f, 0.5f, 128.0f}) {
    EXPECT_NE(message_of([&] { with(value); }).find("integers from -127 to 127"),
              std::string::npos);
  }
}

TEST(Codebooks, EncodingRefusesUnfoldedProjectionsAndOtherShapes) {
  const FloatTensor tensor = samples::normal_tensor(1, 2, 4, 8, 1);
  Codebooks codebooks = random_codebooks(table_format(4, 3, Scope::head), 2, DType::f16, 1);
  encode(tensor, codebooks);
  codebooks.projections.assign(16, 0.0f);
  message_of([&] { encode(tensor, codebooks); });
  message_of(
      [&] { encode(tensor, random_codebooks(table_format(4, 3, Scope::head), 3, DType::f16, 1)); });
  VqFormat integers = table_format(8, 8);
  integers.entry_type = EntryType::int8;
  EXPECT_NE(message_of([&] { require_supported(integers, "here"); }, ErrorKind::infeasible)
                .find("here: entry_type: int8 makes integers"),
            std::string::npos);
  integers.stage_scales = true;
  require_supported(integers, "here");
  VqFormat lattice = table_format(8, 16);
  lattice.decoder = Decoder::e8p;
  require_supported(lattice, "here");
  lattice.index_bits = 8;
  EXPECT_NE(message_of([&] { require_supported(lattice, "here"); }, ErrorKind::infeasible)
                .find("here: decoder: e8p makes 8"),
            std::string::npos);
}

}  // namespace
}  // namespace vqgen
