// Quantizing keys in parts to codes and bundles: each part equals what its channels alone would
// give.
#include "quantizer/parts.h"

#include "quantizer/access_counts.h"
#include "quantizer/basis.h"
#include "quantizer/bundle.h"
#include "quantizer/encode.h"
#include "quantizer/pack.h"
#include "quantizer/train/quantize.h"
#include "quantizer/train/split.h"
#include "tests/quantizer/samples.h"
#include "tests/write_safetensors.h"

namespace vqgen {
namespace {

using samples::normal_floats;
using samples::table_format;

// 24 of 32 channels and the other 8, both out of order; rows of 45 and of 24 bits.
VqFormat two_parts() {
  VqFormat first = table_format(8, 5, Scope::head, 3);
  VqFormat second = table_format(4, 4, Scope::tensor, 3);
  for (int i = 0; i < 24; ++i) first.channels.push_back((i * 7 + 3) % 32);
  for (int i = 24; i < 32; ++i) second.channels.push_back((i * 7 + 3) % 32);
  return in_parts({first, second});
}

struct Files {
  samples::TemporaryDirectory directory;
  std::vector<std::uint16_t> keys = samples::bits_of(normal_floats(2 * 40 * 32, 1), DType::f16);
  std::vector<std::uint16_t> values = samples::bits_of(normal_floats(2 * 40 * 32, 2), DType::f16);

  QuantizeKvRequest request() {
    std::vector<TensorView> views;
    views.push_back(tensor_view("layer0.k", TensorType::f16, {2, 40, 32}, keys));
    views.push_back(tensor_view("layer0.v", TensorType::f16, {2, 40, 32}, values));
    write_safetensors(directory / "kv.safetensors", views, {});
    QuantizeKvRequest request;
    request.any_format = true;  // of a head_dim that is quick to train
    request.input = directory / "kv.safetensors";
    request.keys = "layer*.k";
    request.values = "layer*.v";
    request.key_format = two_parts();
    request.value_format = table_format(4, 4);
    return request;
  }
};

std::vector<float> floats_of(const std::vector<std::uint16_t>& bits) {
  std::vector<float> floats;
  for (const std::uint16_t each : bits) floats.push_back(f16_to_float(each));
  return floats;
}

const QuantizedTensor& keys_of(const QuantizeResult& result) {
  return std::get<AttentionData>(result.bundle.items[0].data).keys;
}

TEST(QuantizedParts, AreWhatTheirChannelsAloneWouldBe) {
  Files files;
  const QuantizeKvRequest request = files.request();
  const QuantizeResult result = quantize_kv(request);
  const QuantizedTensor& keys = keys_of(result);
  EXPECT_EQ(keys.row_words, 2 + 1);
  EXPECT_EQ(keys.units, 2 + 1);
  ASSERT_EQ(result.report.size(), 4u);
  EXPECT_EQ(result.report[1].name, "layer0.keys, part 1");
  EXPECT_EQ(result.report[2].name, "layer0.keys");
  EXPECT_EQ(result.report[2].format, "d8b5x3_and_d4b4x3");
  EXPECT_EQ(result.report[2].bits_per_element, 3.0);
  const FloatTensor all{1, 2, 40, 32, floats_of(files.keys)};
  EXPECT_NEAR(result.report[2].input.relative,
              reconstruction_error(all, reconstruct(keys)).relative, 1e-6);
  for (std::size_t i = 0; i < 2; ++i) {
    const VqFormat& part = request.key_format.parts[i];
    const auto columns = static_cast<std::int64_t>(part.channels.size());
    std::vector<std::uint16_t> channels;
    for (std::size_t row = 0; row < 80; ++row) {
      for (const int channel : part.channels) {
        channels.push_back(files.keys[row * 32 + static_cast<std::size_t>(channel)]);
      }
    }
    std::vector<TensorView> views;
    views.push_back(tensor_view("layer0.k", TensorType::f16, {2, 40, columns}, channels));
    views.push_back(tensor_view("layer0.v", TensorType::f16, {2, 40, columns}, channels));
    write_safetensors(files.directory / "part.safetensors", views, {});
    QuantizeKvRequest alone = request;
    alone.input = files.directory / "part.safetensors";
    alone.key_format = part;
    alone.key_format.channels.clear();
    const QuantizeResult of_part = quantize_kv(alone);
    const QuantizedTensor taken = take_part(keys, i);
    EXPECT_EQ(taken.codes, keys_of(of_part).codes);
    EXPECT_EQ(taken.codebooks, keys_of(of_part).codebooks);
    EXPECT_EQ(taken.units, keys_of(of_part).units);
    EXPECT_EQ(result.report[i].input.mse, of_part.report[0].input.mse);
    // Rows and codebooks follow each other.
    EXPECT_EQ(keys.codes[i * 2], taken.codes[0]);
    EXPECT_EQ(keys.codebooks[i * 2 * 3 * 32 * 8], taken.codebooks[0]);
    const FloatTensor whole = reconstruct(keys);
    const FloatTensor decoded = reconstruct(taken);
    for (std::int64_t row = 0; row < 80; ++row) {
      for (std::size_t j = 0; j < part.channels.size(); ++j) {
        EXPECT_EQ(whole.row(row)[static_cast<std::size_t>(part.channels[j])], decoded.row(row)[j]);
      }
    }
  }
}

TEST(QuantizedParts, JoinToWhatTheyWereTakenFrom) {
  Files files;
  const QuantizeResult result = quantize_kv(files.request());
  const QuantizedTensor& keys = keys_of(result);
  const std::vector<QuantizedTensor> parts{take_part(keys, 0), take_part(keys, 1)};
  const QuantizedTensor joined = join_parts(keys.format, parts, keys.columns);
  EXPECT_EQ(joined.codes, keys.codes);
  EXPECT_EQ(joined.codebooks, keys.codebooks);
  EXPECT_EQ(std::tuple(joined.units, joined.row_words, joined.columns),
            std::tuple(keys.units, keys.row_words, keys.columns));
}

// Stage scales stand part after part, as codebooks do, and decode each part by its own.
TEST(QuantizedParts, HaveScalesOfTheirOwn) {
  Files files;
  QuantizeKvRequest request = files.request();
  for (VqFormat& part : request.key_format.parts) {
    part.stage_scales = true;
    part.entry_type = EntryType::int8;
  }
  request.key_format = in_parts(request.key_format.parts);
  const QuantizeResult result = quantize_kv(request);
  const QuantizedTensor& keys = keys_of(result);
  ASSERT_EQ(keys.stage_scales.size(), 2 * 3 + 3u);
  const std::vector<QuantizedTensor> parts{take_part(keys, 0), take_part(keys, 1)};
  EXPECT_EQ(std::vector(keys.stage_scales.begin() + 6, keys.stage_scales.end()),
            parts[1].stage_scales);
  EXPECT_EQ(join_parts(keys.format, parts, keys.columns).stage_scales, keys.stage_scales);
  const FloatTensor all{1, 2, 40, 32, floats_of(files.keys)};
  EXPECT_LT(reconstruction_error(all, reconstruct(keys)).relative, 0.5);

  const std::vector<std::byte> bytes = serialize_bundle(result.bundle);
  const SafetensorsFile file(bytes, "b");
  EXPECT_EQ(file.at("layer0.keys.stage_scales").shape, std::vector<std::int64_t>{9});
  const Bundle read = read_bundle(file);
  const auto& again = std::get<AttentionData>(read.items[0].data).keys;
  EXPECT_EQ(again.stage_scales, keys.stage_scales);

  // A gain of a unit multiplies its stages' scales.
  QuantizedTensor longer = keys;
  longer.gain = {2, 3, 4};
  take_gain(longer);
  for (std::size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(longer.stage_scales[i], keys.stage_scales[i] * static_cast<float>(2 + i / 3)) << i;
  }
}

TEST(QuantizedParts, ABundleKeepsThem) {
  Files files;
  const Bundle bundle = quantize_kv(files.request()).bundle;
  const std::vector<std::byte> bytes = serialize_bundle(bundle);
  const Bundle again = read_bundle(SafetensorsFile(bytes, "b"));
  EXPECT_EQ(serialize_bundle(again), bytes);
  const auto& keys = std::get<AttentionData>(again.items[0].data).keys;
  EXPECT_EQ(keys.format, two_parts());
  EXPECT_EQ(keys.codes, std::get<AttentionData>(bundle.items[0].data).keys.codes);
  EXPECT_EQ(SafetensorsFile(bytes, "b").at("layer0.keys.codebooks").shape,
            (std::vector<std::int64_t>{2 * 3 * 32 * 8 + 3 * 16 * 4}));
}

TEST(QuantizedParts, ABundleOfOtherSizesIsRefused) {
  Files files;
  const std::vector<std::byte> bytes = serialize_bundle(quantize_kv(files.request()).bundle);
  const SafetensorsFile file(bytes, "b");
  for (const char* name : {"layer0.keys.codebooks", "layer0.keys.codes"}) {
    std::vector<TensorView> views = samples::views_of(bytes);
    const std::vector<std::uint16_t> one(2);
    for (TensorView& view : views) {
      if (view.name == name) view = tensor_view(name, TensorType::f16, {2}, one);
    }
    const std::string message = message_of(
        [&] { read_bundle(SafetensorsFile(serialize_safetensors(views, file.metadata()), "b")); });
    EXPECT_NE(message.find(name), std::string::npos) << message;
  }
}

TEST(QuantizedParts, ChannelsAreSharedOutByTheirErrors) {
  FloatTensor keys{1, 1, 3, 4, {1, 2, 0, 4, 1, 2, 0, 4, 1, 2, 0, 4}};
  FloatTensor again{1, 1, 3, 4, {1, 1, 0, 3, 1, 2, 0, 4, 1, 2, 0, 5}};
  EXPECT_EQ(channel_errors(keys, again), (std::vector<double>{0, 1.0 / 12, 0, 2.0 / 48}));

  VqFormat few = table_format(2, 2), many = table_format(2, 4);
  few.channels = {0, 1};
  many.channels = {2, 3};
  const VqFormat shared =
      share_channels(in_parts({few, many}), std::vector<double>{0.5, 0.1, 0.7, 0.2});
  EXPECT_EQ(shared.parts[0].channels, (std::vector<int>{1, 3}));
  EXPECT_EQ(shared.parts[1].channels, (std::vector<int>{0, 2}));
  EXPECT_EQ(shared.vector_size, 2);

  Files files;
  QuantizeKvRequest request = files.request();
  request.split_by = table_format(32, 4);
  const VqFormat found = keys_of(quantize_kv(request)).format;
  EXPECT_EQ(found.parts[0].channels.size(), 24u);
  EXPECT_NE(found, request.key_format);
  request.key_format = found;
  request.split_by.reset();
  EXPECT_EQ(keys_of(quantize_kv(request)).format, found);
  request.split_by = table_format(5, 4);
  EXPECT_NE(message_of([&] { quantize_kv(request); }).find("split by"), std::string::npos);
  request.key_format = table_format(4, 4);
  EXPECT_NE(message_of([&] { quantize_kv(request); }).find("not in parts"), std::string::npos);
}

TEST(QuantizedParts, HaveNoAccessCountsAndAreRepacked) {
  Files files;
  Bundle bundle = quantize_kv(files.request()).bundle;
  const std::string counted = message_of([&] { profile_bundle(bundle); });
  EXPECT_EQ(counted.find(bundle.items[0].name + ".keys: is in parts"), 0u) << counted;
  auto& data = std::get<AttentionData>(bundle.items[0].data);
  EXPECT_NE(message_of([&] { reorder(data.keys, {}); }).find("rows in parts"), std::string::npos);
  Bundle values = bundle;
  auto& of_values = std::get<AttentionData>(values.items[0].data);
  std::swap(of_values.keys, of_values.values);
  const std::string named = message_of([&] { profile_bundle(values); });
  EXPECT_EQ(named.find(bundle.items[0].name + ".values: is in parts"), 0u) << named;
  const auto plain = data.keys.codes;
  repack(data.keys, {4, 1});
  EXPECT_NE(data.keys.codes, plain);
  repack(data.keys, {});
  EXPECT_EQ(data.keys.codes, plain);
}

}  // namespace
}  // namespace vqgen
