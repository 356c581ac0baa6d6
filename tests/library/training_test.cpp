// Codebooks through the C functions, on the host's cores and on a device.
#include <vqgen/vqgen.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "core/json/json.h"
#include "tests/library/fake_backend.h"

namespace vqgen::library::test {
namespace {

constexpr const char* kFormat =
    R"({"vector_size": 4, "index_bits": 4, "scope": "head", "num_codebooks": 2, "stage_scales": true})";

struct Training {
  std::vector<float> vectors = std::vector<float>(2 * 50 * 16);
  std::vector<std::uint16_t> codebooks = std::vector<std::uint16_t>(2 * 2 * 16 * 4);
  std::vector<float> scales = std::vector<float>(2 * 2);
  vqgen_training_args args{};

  Training() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& value : vectors) value = normal(random);
    args.struct_bytes = sizeof(args);
    args.format = kFormat;
    args.seed = 3;
    args.units = 2;
    args.rows = 50;
    args.columns = 16;
    args.vectors = vectors.data();
    args.codebooks = codebooks.data();
    args.stage_scales = scales.data();
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;
};

TEST(TrainingApi, TrainsOnAllCoresAndOnADevice) {
  Training host, again, device;
  require(vqgen_train_codebooks(nullptr, &host.args));
  require(vqgen_train_codebooks(nullptr, &again.args));
  EXPECT_EQ(host.codebooks, again.codebooks);
  EXPECT_GT(host.scales[0], host.scales[1]);
  EXPECT_GT(host.scales[1], 0.0f);

  vqgen_options options = default_options();
  options.backend = VQGEN_HOST;
  options.cache_dir = "";
  const Runtime runtime(options);
  const DeviceArray<float> on_device(runtime, std::span<const float>(device.vectors));
  device.args.vectors = on_device.data();
  require(vqgen_train_codebooks(runtime.get(), &device.args));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(device.scales[i] / host.scales[i], 1, 1e-4);
  std::size_t other = 0;
  for (std::size_t i = 0; i < host.codebooks.size(); ++i) {
    other += device.codebooks[i] != host.codebooks[i] ? 1u : 0u;
  }
  EXPECT_LE(other, host.codebooks.size() / 20);
  EXPECT_EQ(on_device.fetch(), device.vectors);
}

TEST(TrainingApi, RefusesInWords) {
  const auto why = [](auto change, vqgen_status wanted = VQGEN_BAD_INPUT) {
    Training training;
    change(training);
    EXPECT_EQ(vqgen_train_codebooks(nullptr, &training.args), wanted);
    return std::string(vqgen_last_error());
  };
  expect_words(why([](Training& t) { t.args.struct_bytes = 8; }), {"struct_bytes"});
  expect_words(why([](Training& t) { t.args.vectors = nullptr; }), {"null"});
  expect_words(why([](Training& t) { t.args.stage_scales = nullptr; }), {"stage_scales is null"});
  expect_words(why([](Training& t) { t.args.columns = 18; }), {"[2, 50, 18]", "multiple of 4"});
  expect_words(why([](Training& t) { t.args.units = -1; }), {"[-1, 50, 16]"});
  expect_words(why([](Training& t) { t.args.rows = std::int64_t{1} << 39; }), {"2^40"});
  expect_words(why([](Training& t) { t.args.rows = 3; }), {"12 sub-vectors cannot train 16"});
  expect_words(why([](Training& t) { t.args.element = 2; }), {"element is 2"});
  expect_words(why([](Training& t) { t.args.iterations = -1; }), {"iterations is -1"});
  expect_words(why([](Training& t) { t.args.format = "cq"; }), {"format", "cq"});
  expect_words(why([](Training& t) { t.args.format = "quip-2"; }, VQGEN_INFEASIBLE),
               {"decoder e8p", "use vqgen quantize"});
  expect_words(why([](Training& t) { t.args.format = "vecinfer-d4b8"; }),
               {"smooth and hadamard", R"("smooth": false, "hadamard": false)"});
  expect_words(why([](Training& t) { t.args.format = "aqlm-2x8"; }), {R"("output_scales": false)"});
  expect_words(why([](Training& t) { t.args.format = "int8-token"; }, VQGEN_INFEASIBLE),
               {"decoder scalar"});
  expect_words(why([](Training& t) { t.vectors[7] = std::nanf(""); }), {"must be finite"});
}

TEST(TrainingApi, TellsTheFieldsOfAFormat) {
  char* text = nullptr;
  require(vqgen_format_fields("vecinfer-d8b12", &text));
  const Json fields = Json::parse(text);
  vqgen_text_free(text);
  EXPECT_EQ(fields["vector_size"], 8);
  EXPECT_EQ(fields["num_codebooks"], 1);
  EXPECT_EQ(fields["smooth"], true);
  EXPECT_EQ(vqgen_format_fields("{", &text), VQGEN_BAD_INPUT);
}

TEST(TrainingApi, TellsTheTensorsOfAQuantizedLayer) {
  const auto told = [](const char* format, std::int64_t in_features) {
    char* text = nullptr;
    require(vqgen_weight_tensors(format, VQGEN_BF16, 96, in_features, &text));
    const Json json = Json::parse(text);
    vqgen_text_free(text);
    return json;
  };
  const Json lattice = told(R"({"preset": "quip-2", "output_scales": true})", 64);
  EXPECT_EQ(lattice["tensors"], Json::parse(R"({"codes": ["I32", [96, 4]],
      "codebooks": ["BF16", [1, 1, 256, 8]], "stage_scales": ["F32", [1, 1]],
      "output_scales": ["F32", [96]]})"));
  EXPECT_EQ(lattice["refused"], "");
  const Json wide = told(R"({"vector_size": 32, "index_bits": 6, "scope": "tensor"})", 64);
  EXPECT_EQ(wide["tensors"]["codebooks"], Json::parse(R"(["BF16", [1, 1, 64, 32]])"));
  EXPECT_NE(wide["refused"].get<std::string>().find("vector_size 32"), std::string::npos) << wide;
  char* text = nullptr;
  EXPECT_EQ(vqgen_weight_tensors("aqlm-2x8i8", VQGEN_F16, 96, 63, &text), VQGEN_BAD_INPUT);
  EXPECT_EQ(vqgen_weight_tensors("aqlm-2x8i8", 2, 96, 64, &text), VQGEN_BAD_INPUT);
  EXPECT_EQ(vqgen_weight_tensors("vecinfer-d4b8", VQGEN_F16, 96, 64, &text), VQGEN_BAD_INPUT);
  EXPECT_EQ(vqgen_weight_tensors("aqlm-2x8i8", VQGEN_F16, 0, 64, &text), VQGEN_BAD_INPUT);
}

}  // namespace
}  // namespace vqgen::library::test
