#include "quantizer/train/quantize.h"

#include <cmath>

#include "tests/quantizer/quantize_files.h"

namespace vqgen {
namespace {

using samples::table_format;

const std::filesystem::path kData = std::filesystem::path(VQGEN_SOURCE_DIR) / "tests" / "data";

// A bias lowers the errors of keys but not those of what softmax sees, in parts or not.
TEST_F(Quantize, KeysHaveErrorsWithoutTheirMean) {
  QuantizeKvRequest request = kv_request();
  request.key_format.smooth = request.key_format.hadamard = false;
  const QuantizeResult plain = quantize_kv(request);
  for (std::size_t tensor = 0; tensor < names_.size(); tensor += 4) {
    for (std::size_t i = 3; i < values_[tensor].size(); i += 16) {
      values_[tensor][i] = element_from_float(DType::f16, f16_to_float(values_[tensor][i]) + 30.0f);
    }
  }
  request.input = write("biased.safetensors");
  VqFormat parts;
  for (int first = 0; first < 16; first += 8) {
    VqFormat part = request.key_format;
    for (int i = 0; i < 8; ++i) part.channels.push_back(first + i);
    parts.parts.push_back(part);
  }
  const QuantizeResult biased = quantize_kv(request);
  request.key_format = parts;
  const QuantizeResult in_parts = quantize_kv(request);
  EXPECT_FALSE(plain.report[1].centered || biased.report[1].centered);  // values
  const TensorReport& before = plain.report[0];
  EXPECT_LT(before.centered->common_share, 0.2);
  EXPECT_NEAR(before.centered->input.relative, before.input.relative, 0.1);
  for (const TensorReport* after : {&biased.report[0], &in_parts.report[2]}) {
    EXPECT_EQ(after->name, "layer0.keys");
    EXPECT_GT(after->centered->common_share, kMostCommon);
    EXPECT_LT(after->input.relative, before.input.relative / 4);
    EXPECT_GT(after->centered->input.relative, before.centered->input.relative / 2);
    EXPECT_EQ(after->centered->input.relative, after->centered->calibration.relative);
  }
}

TEST_F(Quantize, MakesAnItemOfEachLayer) {
  QuantizeKvRequest request = kv_request();
  request.keep_original = true;
  std::vector<double> fractions;
  request.options.progress = [&](double fraction, const std::string&) {
    fractions.push_back(fraction);
  };
  const QuantizeResult result = quantize_kv(request);
  ASSERT_EQ(result.bundle.items.size(), 2u);
  EXPECT_EQ(result.bundle.items[0].name, "layer0");
  EXPECT_EQ(result.bundle.items[1].name, "layer1");
  EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
  EXPECT_EQ(fractions.back(), 1.0);
  ASSERT_EQ(result.report.size(), 4u);
  EXPECT_EQ(result.report[1].name, "layer0.values");
  EXPECT_EQ(result.report[0].format, "d4b4");
  EXPECT_EQ(result.report[0].bits_per_element, 2.0);  // 16 bits of codes in a word of 32
  EXPECT_EQ(result.report[0].codebook_bytes, 2 * 16 * 4 * 2);
  EXPECT_GT(result.report[0].input.mse, 0.0);
  EXPECT_LT(result.report[0].input.relative, 0.8);

  const auto& data = std::get<AttentionData>(result.bundle.items[0].data);
  EXPECT_EQ(data.keys.smooth.size(), 32u);
  EXPECT_TRUE(data.values.smooth.empty());
  EXPECT_FALSE(data.values.format.hadamard);
  EXPECT_EQ(data.original_keys, values_[0]);
  EXPECT_EQ(data.original_values, values_[1]);
  // The reader accepts what was made.
  write_bundle(directory_ / "bundle.safetensors", result.bundle);
  const Bundle again = read_bundle(directory_ / "bundle.safetensors");
  EXPECT_EQ(serialize_bundle(again), serialize_bundle(result.bundle));
}

TEST_F(Quantize, QueriesBecomeSequencesOverOneSharedCache) {
  const QuantizeResult result = quantize_kv(kv_request());
  const auto& data = std::get<AttentionData>(result.bundle.items[0].data);
  EXPECT_EQ(data.batch, 8);
  EXPECT_EQ(data.query_heads, 4);
  EXPECT_EQ(data.keys.batch, 1);
  EXPECT_EQ(data.lengths, (std::vector<std::int32_t>{33, 34, 35, 36, 37, 38, 39, 40}));
  for (std::size_t query = 0; query < 8; ++query) {
    for (std::size_t head = 0; head < 4; ++head) {
      for (std::size_t i = 0; i < 16; ++i) {
        ASSERT_EQ(data.queries[(query * 4 + head) * 16 + i],
                  values_[2][(head * 8 + query) * 16 + i]);
      }
    }
  }
}

TEST_F(Quantize, WithoutQueriesNoneAreStored) {
  QuantizeKvRequest request = kv_request();
  request.queries.clear();
  const QuantizeResult result = quantize_kv(request);
  EXPECT_EQ(std::get<AttentionData>(result.bundle.items[0].data).batch, 0);
  read_bundle(SafetensorsFile(serialize_bundle(result.bundle), "b"));
}

TEST_F(Quantize, TheSameRequestGivesTheSameBytes) {
  QuantizeKvRequest request = kv_request();
  const std::vector<std::byte> first = serialize_bundle(quantize_kv(request).bundle);
  EXPECT_EQ(serialize_bundle(quantize_kv(request).bundle), first);
  request.options.seed = 2;
  EXPECT_NE(serialize_bundle(quantize_kv(request).bundle), first);
}

TEST_F(Quantize, CachesOfSeveralSequencesKeepTheirBatch) {
  add("a.k", {3, 2, 20, 16}, 1);
  add("a.v", {3, 2, 20, 16}, 2);
  add("a.q", {4, 8, 16}, 3);
  QuantizeKvRequest request;
  request.any_format = true;
  request.input = write("kv.safetensors");
  request.keys = "a.k";
  request.values = "a.v";
  request.key_format = request.value_format = table_format(4, 4);
  const QuantizeResult result = quantize_kv(request);
  const auto& data = std::get<AttentionData>(result.bundle.items[0].data);
  EXPECT_EQ(result.bundle.items[0].name, "a");
  EXPECT_EQ(data.keys.batch, 3);
  read_bundle(SafetensorsFile(serialize_bundle(result.bundle), "b"));
  request.queries = "a.q";
  EXPECT_NE(message_of([&] { quantize_kv(request); }).find("goes with one sequence"),
            std::string::npos);
}

TEST_F(Quantize, CalibrationMayBeAnotherFile) {
  QuantizeKvRequest request = kv_request();
  for (auto& values : values_) std::rotate(values.begin(), values.begin() + 16, values.end());
  request.calibration = write("calibration.safetensors");
  const QuantizeResult result = quantize_kv(request);
  EXPECT_NE(result.report[0].calibration.mse, result.report[0].input.mse);

  shapes_[0] = {1, 80, 16};
  request.calibration = write("calibration.safetensors");
  EXPECT_NE(message_of([&] { quantize_kv(request); })
                .find("calibration.safetensors: tensor "
                      "'layer0.k': has shape [1, 80, 16]"),
            std::string::npos);
  names_[0] = "other";
  request.calibration = write("calibration.safetensors");
  EXPECT_NE(message_of([&] { quantize_kv(request); }).find("'layer0.k': is not there"),
            std::string::npos);
}

TEST_F(Quantize, RequestsThatDoNotFitAreRefusedByName) {
  const QuantizeKvRequest good = kv_request();
  const auto refused = [&](const std::function<void(QuantizeKvRequest&)>& spoil,
                           const std::string& expected) {
    QuantizeKvRequest request = good;
    spoil(request);
    const std::string message = message_of([&] { quantize_kv(request); });
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  };
  refused([](auto& r) { r.keys = "layer9.k"; }, "tensor 'layer9.k': is not there");
  refused([](auto& r) { r.keys = "x*.k"; },
          "--keys 'x*.k' matches no tensor; the file has layer0.k, ");
  refused([](auto& r) { r.keys = "*"; }, "matches two tensors of 'layer0'");
  refused([](auto& r) { r.values = "layer0.v"; }, "--values 'layer0.v' has 0 stars");
  refused([](auto& r) { r.values = "layer*.w"; }, "'layer0.w': is not there");
  refused([](auto& r) { r.values = "layer*.q"; }, "they must agree");
  refused([](auto& r) { r.queries = "layer*.odd"; }, "queries are [query_heads, n, head_dim]");
  refused([](auto& r) { r.key_format.vector_size = 3; }, "/keys/vector_size");
  refused([](auto& r) { r.key_format.group_channels = 8; }, "/keys/group_channels");
  refused([](auto& r) { r.value_format.scope = Scope::tile; }, "/values");
  refused([](auto& r) { r.key_format.output_scales = true; }, "/keys/output_scales");
  refused([](auto& r) { r.key_format.index_bits = 9; }, "cannot train 512 entries");
}

TEST_F(Quantize, HadamardNeedsAnOrderWithAMatrix) {
  add("a.k", {1, 40, 72}, 1);
  add("a.v", {1, 40, 72}, 2);
  QuantizeKvRequest request;
  request.any_format = true;
  request.input = write("kv.safetensors");
  request.keys = "a.k";
  request.values = "a.v";
  request.key_format = request.value_format = table_format(4, 4);
  quantize_kv(request);
  request.key_format.hadamard = true;
  EXPECT_NE(message_of([&] { quantize_kv(request); }).find("power of two"), std::string::npos);
}

TEST_F(Quantize, NumbersThatAreNoneAreRefusedByNameAndIndex) {
  QuantizeKvRequest request = kv_request();
  values_[1][5] = 0x7e00;
  request.input = write("kv.safetensors");
  EXPECT_NE(message_of([&] { quantize_kv(request); }).find("tensor 'layer0.v': element 5 is nan"),
            std::string::npos);
  values_[1][5] = 0;
  values_[2][7] = 0xfc00;
  request.input = write("kv.safetensors");
  EXPECT_NE(message_of([&] { quantize_kv(request); }).find("tensor 'layer0.q': element 7 is -inf"),
            std::string::npos);
}

TEST_F(Quantize, TheElementTypeIsTheTensorsOwnUnlessAsked) {
  QuantizeKvRequest request = kv_request();
  const auto dtype_of = [&] {
    return std::get<AttentionData>(quantize_kv(request).bundle.items[0].data).dtype;
  };
  EXPECT_EQ(dtype_of(), DType::f16);
  request.dtype = DType::bf16;
  EXPECT_EQ(dtype_of(), DType::bf16);
}

TEST_F(Quantize, WeightsAreDividedByTheirOutputScales) {
  add("blocks.0.q.weight", {64, 48}, 1);
  add("x", {5, 48}, 2);
  add("short.x", {5, 40}, 3);
  for (std::size_t i = 0; i < 48; ++i) {  // row 3 is 64 times as large, row 4 is zero
    values_[0][3 * 48 + i] = f16_from_float(f16_to_float(values_[0][3 * 48 + i]) * 64.0f);
    values_[0][4 * 48 + i] = 0;
  }
  QuantizeWeightsRequest request;
  request.input = write("w.safetensors");
  request.weights = "blocks.*.weight";
  request.inputs = "x";
  request.format = table_format(4, 4, Scope::tensor, 2);
  request.keep_original = true;
  // The error of the rows that are neither scaled up nor zero.
  const auto other_rows = [&](const QuantizeResult& result) {
    const FloatTensor rows = reconstruct(std::get<LinearData>(result.bundle.items[0].data).weights);
    double error = 0;
    for (std::size_t i = 5 * 48; i < rows.data.size(); ++i) {
      error += std::pow(rows.data[i] - f16_to_float(values_[0][i]), 2);
    }
    return error;
  };
  const double plain = other_rows(quantize_weights(request));
  request.format.output_scales = true;
  const QuantizeResult result = quantize_weights(request);
  EXPECT_EQ(result.bundle.items[0].name, "blocks.0.q");
  EXPECT_LT(other_rows(result), plain);
  const auto& data = std::get<LinearData>(result.bundle.items[0].data);
  EXPECT_EQ(data.input_rows, 5);
  EXPECT_EQ(data.x, values_[1]);
  EXPECT_EQ(data.original_weights, values_[0]);
  ASSERT_EQ(data.weights.output_scales.size(), 64u);
  EXPECT_NEAR(data.weights.output_scales[3], 64.0, 24.0);
  EXPECT_EQ(data.weights.output_scales[4], 1.0f);
  EXPECT_EQ(serialize_bundle(read_bundle(SafetensorsFile(serialize_bundle(result.bundle), "b"))),
            serialize_bundle(result.bundle));

  request.format.hadamard = true;
  EXPECT_NE(message_of([&] { quantize_weights(request); }).find("transform keys only"),
            std::string::npos);
  request.format.hadamard = false;
  request.inputs = "short.x";
  EXPECT_NE(message_of([&] { quantize_weights(request); }).find("inputs are [n, in_features]"),
            std::string::npos);
  request.weights = "x";
  request.inputs = "";
  request.format.index_bits = 8;
  EXPECT_NE(message_of([&] { quantize_weights(request); }).find("cannot train"), std::string::npos);
}

// At 2 bits the lattice is better than two trained residual codebooks.
TEST(QuantizeSample, RealWeightsOnTheLattice) {
  QuantizeWeightsRequest request;
  request.input = kData / "tinycode-weight.safetensors";
  request.weights = "*.weight";
  const auto error = [&](const VqFormat& format) {
    request.format = format;
    const QuantizeResult result = quantize_weights(request);
    read_bundle(SafetensorsFile(serialize_bundle(result.bundle), "b"));
    return result.report[0].input.relative;
  };
  VqFormat aqlm = table_format(8, 8, Scope::tensor, 2);
  aqlm.output_scales = true;
  const double at2 = error(samples::lattice_format(Scope::tensor, 1, true));
  const double at4 = error(samples::lattice_format(Scope::tensor, 2, true));
  EXPECT_LT(at2, error(aqlm));
  EXPECT_NEAR(at2, 0.304, 0.004);
  EXPECT_NEAR(at4, 0.0995, 0.003);
}

TEST(QuantizeSample, RealKeysCarryOverFromCalibrationToHeldOutText) {
  QuantizeKvRequest request;
  request.any_format = true;
  request.input = kData / "tinycode-kv-heldout.safetensors";
  request.calibration = kData / "tinycode-kv-calibration.safetensors";
  request.keys = "layer*.k";
  request.values = "layer*.v";
  request.queries = "layer*.q";
  request.key_format = request.value_format = table_format(4, 6);
  request.options.iterations = 10;
  const QuantizeResult plain = quantize_kv(request);
  EXPECT_EQ(plain.bundle.items[0].name, "layer2");
  EXPECT_EQ(plain.report[0].bits_per_element, 1.5);
  for (const TensorReport& line : plain.report) {
    EXPECT_LT(line.calibration.relative, 0.5) << line.name;
    EXPECT_NEAR(line.input.relative, line.calibration.relative, 0.02) << line.name;
  }
  request.key_format.smooth = true;
  const QuantizeResult smoothed = quantize_kv(request);
  EXPECT_LT(smoothed.report[0].input.relative, plain.report[0].input.relative);
  EXPECT_EQ(smoothed.report[1].input.mse, plain.report[1].input.mse) << "values stay as they are";
}

}  // namespace
}  // namespace vqgen
