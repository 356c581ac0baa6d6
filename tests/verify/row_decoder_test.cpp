#include "runtime/verify/row_decoder.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/problem/problem.h"
#include "runtime/verify/random.h"
#include "tests/verify/test_data.h"

namespace vqgen {
namespace {

TEST(ReadCode, FindsEveryCodeOfEveryWidth) {
  Random random(7);
  for (int bits = 2; bits <= 16; ++bits) {
    std::vector<std::uint32_t> codes;
    for (int i = 0; i < 67; ++i) {
      codes.push_back(static_cast<std::uint32_t>(random.below(1 << bits)));
    }
    const std::vector<std::uint32_t> row = test::pack_row(codes, bits);
    for (std::size_t i = 0; i < codes.size(); ++i) {
      EXPECT_EQ(read_code(row, static_cast<std::int64_t>(i) * bits, bits), codes[i])
          << bits << " bits, code " << i;
    }
  }
}

TEST(ReadCode, StraddlesWordsLeastSignificantBitFirst) {
  const std::vector<std::uint32_t> row = {0x80000000u, 0x00000001u};
  EXPECT_EQ(read_code(row, 31, 2), 3u);
  EXPECT_EQ(read_code(row, 30, 3), 6u);
  EXPECT_EQ(read_code(row, 24, 16), 0x180u);
}

// Entries encode their unit and stage, so the output shows which were read.
QuantizedTensor labelled(VqFormat format, std::int64_t heads, std::int64_t rows,
                         std::int64_t columns, std::int64_t units) {
  QuantizedTensor t;
  t.format = format;
  t.heads = heads;
  t.rows = rows;
  t.columns = columns;
  t.units = units;
  for (std::int64_t unit = 0; unit < units; ++unit) {
    for (int stage = 0; stage < format.num_codebooks; ++stage) {
      for (int i = 0; i < format.entries() * format.vector_size; ++i) {
        t.codebooks.push_back(f16_from_float(stage == 0 ? static_cast<float>(unit) : 100.0f));
      }
    }
  }
  const auto count = static_cast<std::size_t>(heads * rows) * test::codes_per_row(t);
  test::pack(t, std::vector<std::uint32_t>(count, 1));
  return t;
}

std::vector<double> row_of(const QuantizedTensor& t, std::int64_t head, std::int64_t row) {
  std::vector<double> out(static_cast<std::size_t>(t.columns));
  RowDecoder(t).decode(0, head, row, out);
  return out;
}

TEST(RowDecoder, FindsTheUnitOfEveryScope) {
  VqFormat format{.vector_size = 2, .index_bits = 3};
  const auto cache = [&](Scope scope, int group) {
    format.scope = scope;
    format.group_channels = group;
    return labelled(format, 3, 2, 8, kv_units(format, 3, 8));
  };
  const std::vector<double> head2(8, 2.0);
  EXPECT_EQ(row_of(cache(Scope::tensor, 0), 2, 1), std::vector<double>(8, 0.0));
  EXPECT_EQ(row_of(cache(Scope::head, 0), 2, 1), head2);
  EXPECT_EQ(row_of(cache(Scope::channel_group, 4), 2, 1),
            (std::vector<double>{4, 4, 4, 4, 5, 5, 5, 5}));
  EXPECT_EQ(row_of(cache(Scope::channel_group, 0), 1, 0),
            (std::vector<double>{4, 4, 5, 5, 6, 6, 7, 7}));
}

TEST(RowDecoder, FindsTheTileWhereTilesDoNotDivideTheMatrix) {
  VqFormat format{.vector_size = 2, .index_bits = 2, .scope = Scope::tile};
  format.tile_rows = 2;
  format.tile_columns = 4;
  const QuantizedTensor t = labelled(format, 1, 5, 10, weight_units(format, 5, 10));
  EXPECT_EQ(row_of(t, 0, 1), (std::vector<double>{0, 0, 0, 0, 1, 1, 1, 1, 2, 2}));
  EXPECT_EQ(row_of(t, 0, 2), (std::vector<double>{3, 3, 3, 3, 4, 4, 4, 4, 5, 5}));
  EXPECT_EQ(row_of(t, 0, 4), (std::vector<double>{6, 6, 6, 6, 7, 7, 7, 7, 8, 8}));
}

TEST(RowDecoder, SumsStagesTimesTheirScales) {
  VqFormat format{.vector_size = 2, .index_bits = 2, .num_codebooks = 2, .scope = Scope::head};
  format.stage_scales = true;
  QuantizedTensor t = labelled(format, 2, 1, 4, 2);
  t.stage_scales = {1, 1, 3, 0.5};
  EXPECT_EQ(row_of(t, 1, 0), std::vector<double>(4, 3 * 1 + 0.5 * 100));
}

TEST(RowDecoder, StagesOfASubVectorStandSideBySide) {
  QuantizedTensor t = test::tiny_tensor(1, 4, {0, 1});
  t.format.num_codebooks = 2;
  for (const double value : {10, 10, 20, 20, 30, 30, 40, 40}) {
    t.codebooks.push_back(f16_from_float(static_cast<float>(value)));
  }
  test::pack(t, {2, 0, 1, 3});  // sub-vector 0: stages 2, 0; sub-vector 1: stages 1, 3
  EXPECT_EQ(row_of(t, 0, 0), (std::vector<double>{2 + 10, -1 + 10, 0 + 40, 1 + 40}));
}

// The value of a code by hand: entry (1/2, 3/2, 1/2 ..) has the odd sum 5, so an odd number of
// signs is negative.
TEST(RowDecoder, MakesPointsOfTheLattice) {
  QuantizedTensor t;
  t.format = {.vector_size = 8, .index_bits = 16};
  t.format.decoder = Decoder::e8p;
  t.format.stage_scales = true;
  t.rows = 1;
  t.columns = 16;
  t.units = 1;
  t.codebooks = test::f16(std::vector<double>(256 * 8, 0.5));
  t.codebooks[7 * 8 + 1] = f16_from_float(1.5f);
  t.stage_scales = {4};
  test::pack(t, {0x0007, 0x8000 | 0x0300 | 0x0007});
  EXPECT_EQ(row_of(t, 0, 0), (std::vector<double>{3, 7, 3, 3, 3, 3, 3, -1,  //
                                                  -3, -7, 1, 1, 1, 1, 1, -3}));
  t.codebooks[5] = f16_from_float(1.0f);
  EXPECT_THROW(RowDecoder{t}, Error);
}

TEST(RowDecoder, All65536PointsAreDistinctAndOfTheLattice) {
  const std::vector<float> table = e8p_table();
  std::set<std::array<double, 8>> points;
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const std::vector<double> entry(table.begin() + code % 256 * 8,
                                    table.begin() + code % 256 * 8 + 8);
    const std::array<double, 8> point = e8p_point(entry, code);
    points.insert(point);
    double sum = 0;
    std::uint32_t signs = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      const double half = point[i] - (code < 0x8000 ? 0.25 : -0.25);
      ASSERT_EQ(std::abs(half), entry[i]) << code;
      sum += half;
      signs |= (half < 0 ? 1u : 0u) << i;
    }
    ASSERT_EQ(std::fmod(sum, 2), 0) << code;
    ASSERT_EQ(signs & 0x7f, code >> 8 & 0x7f) << code;
  }
  EXPECT_EQ(points.size(), 65536u);
}

// 3 rows of 3 words in groups of 2 and runs of 2, number by number.
TEST(WordNumber, FollowsGroupsAndRuns) {
  QuantizedTensor t;
  t.format.layout = {2, 2};
  t.batch = t.heads = 2;
  t.rows = t.row_words = 3;
  const std::size_t expected[3][3] = {{0, 1, 4}, {2, 3, 6}, {8, 9, 12}};
  for (std::int64_t row = 0; row < 3; ++row) {
    for (std::int64_t word = 0; word < 3; ++word) {
      EXPECT_EQ(word_number(t, 0, 0, row, word), expected[row][word]);
      EXPECT_EQ(word_number(t, 1, 1, row, word), 3 * 16 + expected[row][word]);
    }
  }
  t.format.layout = {};
  EXPECT_EQ(word_number(t, 1, 0, 2, 1), 2u * 9 + 2 * 3 + 1);
}

TEST(RowDecoder, ReadsWhatALayoutHolds) {
  const QuantizedTensor plain = test::tiny_tensor(3, 4, {0, 1, 2, 3, 0, 1});
  for (const CodeLayout& layout : {CodeLayout{4, 1}, CodeLayout{2, 2}, CodeLayout{1, 4}}) {
    QuantizedTensor t = plain;
    t.format.layout = layout;
    t.codes.assign(static_cast<std::size_t>(t.head_words()), ~0u);
    for (std::int64_t row = 0; row < 3; ++row) {
      t.codes[word_number(t, 0, 0, row, 0)] = plain.codes[static_cast<std::size_t>(row)];
    }
    for (std::int64_t row = 0; row < 3; ++row) EXPECT_EQ(row_of(t, 0, row), row_of(plain, 0, row));
    t.codes.pop_back();
    EXPECT_THROW(RowDecoder{t}, Error);
  }
}

TEST(RowDecoder, RejectsWhatContradictsItself) {
  const QuantizedTensor fine = test::tiny_tensor(3, 4, {0, 1, 2, 3, 0, 1});
  EXPECT_NO_THROW(RowDecoder{fine});
  const auto of_integers = [](QuantizedTensor& t, float value) {
    t.format.entry_type = EntryType::int8;
    t.format.stage_scales = true;
    t.stage_scales.assign(static_cast<std::size_t>(t.units * t.format.num_codebooks), 0.5f);
    t.codebooks.assign(t.codebooks.size(), element_from_float(t.dtype, 7.0f));
    t.codebooks[1] = element_from_float(t.dtype, value);
  };
  for (const float value : {-127.0f, 0.0f, 127.0f}) {
    QuantizedTensor t = fine;
    of_integers(t, value);
    EXPECT_NO_THROW(RowDecoder{t}) << value;
  }
  const auto expect_error = [&](auto&& spoil) {
    QuantizedTensor t = fine;
    spoil(t);
    EXPECT_THROW(RowDecoder{t}, Error);
  };
  expect_error([](QuantizedTensor& t) { t.codes.pop_back(); });
  expect_error([](QuantizedTensor& t) { t.row_words = 2; });
  expect_error([](QuantizedTensor& t) { t.columns = 5; });
  expect_error([](QuantizedTensor& t) { t.units = 2; });
  expect_error([](QuantizedTensor& t) { t.codebooks.pop_back(); });
  expect_error([](QuantizedTensor& t) { t.stage_scales = {1}; });
  expect_error([](QuantizedTensor& t) { t.format.smooth = true; });
  expect_error([](QuantizedTensor& t) { t.format.decoder = Decoder::e8p; });
  for (const float value : {-128.0f, 0.5f, 128.0f}) {
    expect_error([&](QuantizedTensor& t) { of_integers(t, value); });
  }
  expect_error([](QuantizedTensor& t) { t.format.scope = Scope::tile; });
  expect_error([](QuantizedTensor& t) { t.format.layout = {2, 1}; });
  expect_error([](QuantizedTensor& t) { t.format.layout = {3, 1}; });
}

// Computed by hand: a row has two words for part 0, with one codebook for all heads, and one word
// for part 1, with a codebook per head.
TEST(RowDecoder, KeysInPartsFollowEachOther) {
  QuantizedTensor keys;
  VqFormat first, second;
  first.vector_size = 2;
  first.index_bits = 16;
  first.channels = {5, 0, 3, 2, 7, 6};
  second.vector_size = 1;
  second.index_bits = 2;
  second.scope = Scope::head;
  second.channels = {4, 1};
  keys.format = in_parts({first, second});
  keys.heads = 2;
  keys.rows = 1;
  keys.columns = 8;
  keys.row_words = 3;
  keys.units = 3;
  for (int entry = 0; entry < 65536; ++entry) {  // entry n is n / 64 and its negative
    const float value = static_cast<float>(entry / 64);
    keys.codebooks.push_back(f16_from_float(value));
    keys.codebooks.push_back(f16_from_float(-value));
  }
  for (const double value : {0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0}) {
    keys.codebooks.push_back(f16_from_float(static_cast<float>(value)));
  }
  keys.codes = {64 * 2 << 16 | 64 * 1, 64 * 3, 0b0111, 64 * 5 << 16 | 64 * 4, 64 * 6, 0b1001};
  const RowDecoder decoder(keys);
  std::vector<double> row(8);
  decoder.decode(0, 0, 0, row);
  EXPECT_EQ(row, (std::vector<double>{-1, 0.5, -2, 2, 1, 1, -3, 3}));
  decoder.decode(0, 1, 0, row);
  EXPECT_EQ(row, (std::vector<double>{-4, 1.75, -5, 5, 1.5, 4, -6, 6}));
  keys.codebooks.pop_back();
  EXPECT_THROW(RowDecoder{keys}, Error);
  keys.codebooks.resize(keys.codebooks.size() + 2);
  EXPECT_THROW(RowDecoder{keys}, Error);
}

}  // namespace
}  // namespace vqgen
