// The gain of keys: how much longer entries are where codes are read, and what is left as it is.
#include "quantizer/train/gain.h"

#include <cmath>

#include "quantizer/basis.h"
#include "quantizer/parts.h"
#include "quantizer/train/train.h"
#include "quantizer/transform.h"
#include "tests/quantizer/quantize_files.h"

namespace vqgen {
namespace {

using samples::normal_tensor;
using samples::table_format;

// Entries of 16 bits, with and without scales, of int8, in one stage and in several; each scope.
std::vector<VqFormat> table_formats() {
  VqFormat groups = table_format(4, 4, Scope::channel_group);
  groups.group_channels = 8;
  VqFormat scaled = table_format(4, 4, Scope::head, 2);
  scaled.stage_scales = true;
  VqFormat integers = scaled;
  integers.entry_type = EntryType::int8;
  VqFormat common = integers;
  common.common_scale = true;
  return {table_format(4, 5),
          table_format(2, 4, Scope::head),
          table_format(4, 4, Scope::head, 3),
          groups,
          scaled,
          integers,
          common};
}

Codebooks trained(const VqFormat& format, DType dtype, const FloatTensor& vectors) {
  return train_codebooks({"test", format, dtype, &vectors, {}});
}

// The gain of codebooks, multiplied in.
void apply_gain(Codebooks& codebooks, const FloatTensor& vectors, const char* name) {
  QuantizedTensor codes = encode(vectors, codebooks);
  codes.gain = gains_of(codebooks, vectors, name);
  EXPECT_EQ(gain_fault(codes), "");
  take_gain(codes);
  codebooks.entries = codes.codebooks;
  codebooks.stage_scales = codes.stage_scales;
}

// sum z.z / sum z.z' of each unit for the codes `codes`, and how far rounding may take it from 1:
// half a last place of each entry, or what floats round where scales were multiplied.
struct Ratio {
  double of_sums;
  double room;
};
std::vector<Ratio> ratios(const FloatTensor& vectors, const QuantizedTensor& codes) {
  const FloatTensor decoded = decode(codes);
  const UnitMap map = unit_map(codes.format, vectors.heads, vectors.rows, vectors.columns, "test");
  const double place = codes.format.stage_scales    ? 0x1p-20
                       : codes.dtype == DType::bf16 ? 0x1p-9
                                                    : 0x1p-12;
  std::vector<Ratio> result;
  for (std::int64_t unit = 0; unit < map.units(); ++unit) {
    UnitDecoder decoder(codes, unit);
    double most = 0;  // of all stages' entries
    for (int stage = 0; stage < codes.format.num_codebooks; ++stage) {
      float peak = 0;
      for (const float entry : decoder.entries(stage)) peak = std::max(peak, std::abs(entry));
      most += peak;
    }
    double own = 0, shared = 0, magnitudes = 0;
    for_each_sub_vector(map, map.extent(unit), vectors.batch, codes.format.vector_size,
                        [&](std::int64_t row, std::int64_t column) {
                          for (int d = 0; d < codes.format.vector_size; ++d) {
                            const auto at = static_cast<std::size_t>(column + d);
                            const double z = vectors.row(row)[at];
                            own += z * z;
                            shared += z * decoded.row(row)[at];
                            magnitudes += std::abs(z);
                          }
                        });
    result.push_back({shared / own, place * most * magnitudes / own});
  }
  return result;
}

TEST(Gain, VectorsAndTheirCodesAgreeInEachUnit) {
  for (const VqFormat& format : table_formats()) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      FloatTensor vectors = normal_tensor(2, 2, 120, 16, 5);
      for (std::int64_t row = 0; row < vectors.row_count(); ++row) {
        for (float& value : vectors.row(row)) value *= vectors.head_of(row) == 0 ? 0.1f : 3.0f;
      }
      Codebooks codebooks = trained(format, dtype, vectors);
      QuantizedTensor codes = encode(vectors, codebooks);
      const std::vector<Ratio> before = ratios(vectors, codes);
      const std::vector<std::uint16_t> entries = codebooks.entries;
      apply_gain(codebooks, vectors, "test");
      EXPECT_EQ(codebooks.entries == entries, format.stage_scales) << short_name(format);
      codes.codebooks = codebooks.entries;
      codes.stage_scales = codebooks.stage_scales;
      const std::vector<Ratio> after = ratios(vectors, codes);
      for (std::size_t unit = 0; unit < after.size(); ++unit) {
        EXPECT_LT(before[unit].of_sums, 1 - 2 * after[unit].room) << short_name(format);
        EXPECT_NEAR(after[unit].of_sums, 1, after[unit].room) << short_name(format);
      }
    }
  }
}

// All stages of a unit have one gain; scales that are common stay so.
TEST(Gain, IsOneForAllStages) {
  const FloatTensor vectors = normal_tensor(1, 2, 120, 16, 5);
  for (const VqFormat& format : table_formats()) {
    if (!format.stage_scales) continue;
    Codebooks codebooks = trained(format, DType::f16, vectors);
    const std::vector<float> scales = codebooks.stage_scales;
    apply_gain(codebooks, vectors, "test");
    for (std::size_t i = 0; i < scales.size(); i += 2) {
      const float g = codebooks.stage_scales[i] / scales[i];
      EXPECT_GT(g, 1.0f);
      EXPECT_NEAR(codebooks.stage_scales[i + 1] / scales[i + 1], g, 1e-6f);
      if (!format.common_scale) continue;
      EXPECT_EQ(codebooks.stage_scales[i + 1], codebooks.stage_scales[i]);
    }
  }
}

TEST(Gain, ZerosStayZerosAndWhatLeavesTheTypeIsRefused) {
  FloatTensor vectors = normal_tensor(1, 1, 120, 16, 5);
  const FloatTensor zeros{1, 1, 120, 16, std::vector<float>(vectors.data.size())};
  const VqFormat format = table_format(4, 2);
  Codebooks dead = trained(format, DType::f16, zeros);
  const std::vector<std::uint16_t> entries = dead.entries;
  apply_gain(dead, zeros, "test");
  EXPECT_EQ(dead.entries, entries);
  // The largest entry fits f16, and only just.
  Codebooks codebooks = trained(format, DType::f16, vectors);
  float most = 0;
  for (const std::uint16_t each : codebooks.entries) {
    most = std::max(most, std::abs(f16_to_float(each)));
  }
  for (float& value : vectors.data) value *= 65000.0f / most;
  codebooks = trained(format, DType::f16, vectors);
  EXPECT_NE(message_of([&] {
              apply_gain(codebooks, vectors, "layer0.k");
            }).find("layer0.k: gain: element 0 is"),
            std::string::npos);
  codebooks = trained(format, DType::bf16, vectors);
  apply_gain(codebooks, vectors, "test");
}

const AttentionData& item(const QuantizeResult& result) {
  return std::get<AttentionData>(result.bundle.items[0].data);
}

// Codes are chosen by entries without the gain, with it and without; all else is what training and
// encoding make.
TEST_F(Quantize, KeysTakeTheirGainAndValuesDoNot) {
  QuantizeKvRequest request = kv_request();
  for (VqFormat format : table_formats()) {
    format.smooth = format.hadamard = true;
    request.key_format = format;
    request.value_format = format;
    request.key_gain = true;
    const QuantizeResult with = quantize_kv(request);
    request.key_gain = false;
    const QuantizeResult without = quantize_kv(request);
    const QuantizedTensor& keys = item(without).keys;
    FloatTensor inner{1, 2, 40, 16, {}};
    for (const std::uint16_t bits : values_[0]) inner.data.push_back(f16_to_float(bits));
    transform_keys(inner, format, keys.smooth);
    Codebooks codebooks = trained(format, DType::f16, inner);
    EXPECT_EQ(keys.codebooks, codebooks.entries);
    EXPECT_EQ(keys.stage_scales, codebooks.stage_scales);
    EXPECT_EQ(keys.codes, encode(inner, codebooks).codes);
    EXPECT_TRUE(keys.gain.empty() && item(with).values.gain.empty());
    QuantizedTensor read = item(with).keys;
    EXPECT_EQ(read.codebooks, keys.codebooks);
    EXPECT_EQ(read.stage_scales, keys.stage_scales);
    EXPECT_EQ(read.codes, keys.codes);
    apply_gain(codebooks, inner, "test");
    EXPECT_EQ(gain_fault(read), "");
    take_gain(read);
    EXPECT_EQ(read.codebooks, codebooks.entries);
    EXPECT_EQ(read.stage_scales, codebooks.stage_scales);
    EXPECT_EQ(item(with).values.codebooks, item(without).values.codebooks);
    EXPECT_EQ(item(with).values.stage_scales, item(without).values.stage_scales);
    EXPECT_EQ(item(with).values.codes, item(without).values.codes);
    // The report is of what is stored.
    FloatTensor original{1, 2, 40, 16, {}};
    for (const std::uint16_t bits : values_[0]) original.data.push_back(f16_to_float(bits));
    EXPECT_EQ(with.report[0].input.mse,
              reconstruction_error(original, reconstruct(item(with).keys)).mse);
  }
}

TEST_F(Quantize, ScalarsAndLatticesHaveNoGain) {
  QuantizeKvRequest request = kv_request();
  VqFormat scalar = table_format(2, 16, Scope::channel_group);
  scalar.decoder = Decoder::scalar;
  for (const VqFormat& format : {scalar, samples::lattice_format(Scope::head, 1, true)}) {
    request.key_format = request.value_format = format;
    request.key_gain = true;
    const std::vector<std::byte> with = serialize_bundle(quantize_kv(request).bundle);
    request.key_gain = false;
    EXPECT_EQ(serialize_bundle(quantize_kv(request).bundle), with);
  }
}

// A part has gains of its own.
TEST_F(Quantize, PartsOfKeysTakeTheirGain) {
  QuantizeKvRequest request = kv_request();
  VqFormat parts;
  for (int first = 0; first < 16; first += 8) {
    VqFormat part = table_format(first == 0 ? 8 : 4, 3, Scope::head);
    for (int i = 0; i < 8; ++i) part.channels.push_back(first + i);
    parts.parts.push_back(part);
  }
  request.key_format = parts;
  const QuantizeResult with = quantize_kv(request);
  request.key_gain = false;
  const QuantizeResult without = quantize_kv(request);
  for (std::size_t i = 0; i < 2; ++i) {
    FloatTensor alone{1, 2, 40, 8, {}};
    for (std::size_t at = i * 8; at < values_[0].size(); at += 16) {
      for (std::size_t d = 0; d < 8; ++d) {
        alone.data.push_back(f16_to_float(values_[0][at + d]));
      }
    }
    Codebooks codebooks = trained(part_alone(parts.parts[i]), DType::f16, alone);
    EXPECT_EQ(take_part(item(without).keys, i).codebooks, codebooks.entries);
    apply_gain(codebooks, alone, "test");
    QuantizedTensor read = item(with).keys;
    EXPECT_EQ(gain_fault(read), "");
    take_gain(read);
    EXPECT_EQ(take_part(read, i).codebooks, codebooks.entries);
  }
}

}  // namespace
}  // namespace vqgen
