// The number of a tensor's codebook sets, and the derived figures of a format.
#include "core/problem/problem.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

VqFormat format_of(Scope scope, int group_channels = 0) {
  VqFormat format{.vector_size = 4, .index_bits = 8};
  format.scope = scope;
  format.group_channels = group_channels;
  return format;
}

TEST(Units, OfACache) {
  EXPECT_EQ(kv_units(format_of(Scope::tensor), 8, 128), 1);
  EXPECT_EQ(kv_units(format_of(Scope::head), 8, 128), 8);
  EXPECT_EQ(kv_units(format_of(Scope::channel_group), 8, 128), 8 * 32);  // 0 is vector_size
  EXPECT_EQ(kv_units(format_of(Scope::channel_group, 4), 8, 128), 8 * 32);
  EXPECT_EQ(kv_units(format_of(Scope::channel_group, 64), 8, 128), 8 * 2);
  EXPECT_EQ(kv_units(format_of(Scope::channel_group, 128), 8, 128), 8);
  EXPECT_EQ(kv_units(format_of(Scope::channel_group, 4), 65535, 1024), 65535LL * 256);
}

TEST(Units, OfWeights) {
  EXPECT_EQ(weight_units(format_of(Scope::tensor), 512, 1408), 1);
  EXPECT_EQ(weight_units(format_of(Scope::channel_group), 512, 1408), 352);
  EXPECT_EQ(weight_units(format_of(Scope::channel_group, 1408), 512, 1408), 1);
  EXPECT_EQ(weight_units(format_of(Scope::channel_group, 100), 512, 1408), 15);  // the last is cut
  VqFormat tiled = format_of(Scope::tile);
  tiled.tile_rows = 256;
  tiled.tile_columns = 128;
  EXPECT_EQ(weight_units(tiled, 512, 1408), 2 * 11);
  EXPECT_EQ(weight_units(tiled, 513, 1409), 3 * 12);
  EXPECT_EQ(weight_units(tiled, 1, 1), 1);
  EXPECT_EQ(weight_units(tiled, 1 << 24, 1 << 24), std::int64_t{1 << 16} * (1 << 17));
}

TEST(Format, DerivedFigures) {
  VqFormat format{.vector_size = 8, .index_bits = 12};
  EXPECT_EQ(format.entries(), 4096);
  EXPECT_EQ(format.bits_per_element(), 1.5);
  EXPECT_EQ(short_name(format), "d8b12");
  format.num_codebooks = 2;
  EXPECT_EQ(format.bits_per_element(), 3.0);
  EXPECT_EQ(short_name(format), "d8b12x2");
  EXPECT_EQ(format.channels_per_group(), 8);
  format.group_channels = 32;
  EXPECT_EQ(format.channels_per_group(), 32);
}

TEST(Format, ACodeOfTheLatticeReadsOneOf256Entries) {
  VqFormat format{.vector_size = 8, .index_bits = 16, .num_codebooks = 2};
  EXPECT_EQ(format.codes(), 65536);
  EXPECT_EQ(format.entries(), 65536);
  EXPECT_EQ(format.entry_of(0xfe03), 0xfe03u);
  format.decoder = Decoder::e8p;
  EXPECT_EQ(format.codes(), 65536);
  EXPECT_EQ(format.entries(), 256);
  EXPECT_EQ(format.entry_of(0xfe03), 3u);
  EXPECT_EQ(format.bits_per_element(), 4.0);
  EXPECT_EQ(short_name(format), "e8px2");
}

TEST(Format, ACodeWithSignsReadsTheEntryBelowThem) {
  VqFormat format{.vector_size = 8, .index_bits = 16};
  format.decoder = Decoder::signs;
  EXPECT_EQ(format.entries(), 256);
  EXPECT_EQ(format.entry_of(0xfe03), 3u);
  EXPECT_EQ(format.bits_per_element(), 2.0);
  EXPECT_EQ(short_name(format), "d8b16s");
  format.vector_size = 4;
  format.index_bits = 13;
  EXPECT_EQ(format.entries(), 512);
  EXPECT_TRUE(fits_entries(format, 1.5f));
  EXPECT_FALSE(fits_entries(format, -1.5f));
}

TEST(Format, CodesWithSignsAreRefusedByField) {
  const auto fault = [](int vector_size, int index_bits, int num_codebooks) {
    VqFormat format{.vector_size = vector_size, .index_bits = index_bits};
    format.num_codebooks = num_codebooks;
    format.decoder = Decoder::signs;
    const std::optional<FormatFault> found = format_fault(format);
    return found ? std::string(found->field) + ": " + found->message : "";
  };
  EXPECT_EQ(fault(8, 9, 1), "");
  EXPECT_EQ(fault(8, 8, 1),
            "index_bits: a code of 8 bits has no bit for an entry beside 8 signs; set it to 9 or "
            "more, or decoder to table");
  EXPECT_EQ(fault(8, 18, 1), "");
  EXPECT_EQ(fault(8, 16, 2), "num_codebooks: signs has one stage, not 2; remove it");
  EXPECT_EQ(fault(16, 16, 1),
            "vector_size: signs goes with 2, 4 or 8 elements, not 16; set one of these");
}

TEST(Format, CodesWithoutSignsHave16Bits) {
  for (const Decoder decoder : {Decoder::table, Decoder::signs}) {
    VqFormat format{.vector_size = 8, .index_bits = 17};
    format.decoder = decoder;
    const std::optional<FormatFault> fault = format_fault(format);
    ASSERT_EQ(fault.has_value(), decoder == Decoder::table);
    if (!fault) continue;
    EXPECT_STREQ(fault->field, "index_bits");
    EXPECT_EQ(fault->message, "codes of 17 bits go with decoder signs; set it to 16 or less");
  }
}

TEST(Format, GroupsOfInputsHaveWordsBehindTheCodes) {
  VqFormat format{.vector_size = 4, .index_bits = 12};
  EXPECT_EQ(format.row_words(512), 48);
  format.group_inputs = 32;
  EXPECT_EQ(format.row_words(512), 48 + 8);
  EXPECT_EQ(short_name(format), "d4b12g32");
  format.group_scale_bits = 3;
  EXPECT_EQ(format.row_words(512), 48 + 4);  // 48 bits and two f16, in 16 bytes
  EXPECT_EQ(short_name(format), "d4b12g32s3");
  EXPECT_FALSE(groups_fault(format, 512));
  ASSERT_TRUE(groups_fault(format, 320));
  EXPECT_EQ(groups_fault(format, 320)->message,
            "320 inputs are no whole blocks of 256; pad them with columns of zeros");
  format.group_scale_bits = 0;
  EXPECT_FALSE(groups_fault(format, 320));
  format.group_inputs = 0;
  format.group_scale_bits = 4;
  ASSERT_TRUE(format_fault(format));
  EXPECT_STREQ(format_fault(format)->field, "group_scale_bits");
}

TEST(Format, GroupsOfInputsMayHaveMinima) {
  VqFormat format{.vector_size = 4, .index_bits = 8};
  format.group_minima = true;
  ASSERT_TRUE(format_fault(format));
  EXPECT_STREQ(format_fault(format)->field, "group_minima");
  format.group_inputs = 16;
  EXPECT_FALSE(format_fault(format));
  EXPECT_EQ(format.row_words(512), 32 + 32);  // two f16 per group
  EXPECT_EQ(short_name(format), "d4b8g16m");
  format.group_scale_bits = 4;
  EXPECT_EQ(format.row_words(512), 32 + 12);  // a byte per group, and two f16 per 256 inputs
  EXPECT_EQ(short_name(format), "d4b8g16s4m");
  format.group_inputs = 64;
  format.group_scale_bits = 3;
  EXPECT_EQ(format.row_words(512), 32 + 4);  // 48 bits, and two words
}

TEST(Format, ForValuesDropsTheKeyTransformsAlone) {
  VqFormat format = format_of(Scope::channel_group, 8);
  format.stage_scales = true;
  VqFormat transformed = format;
  transformed.smooth = transformed.hadamard = true;
  EXPECT_EQ(for_values(transformed), format);
  EXPECT_EQ(for_values(format), format);
}

}  // namespace
}  // namespace vqgen
