// Checkpoints of bitsandbytes: the imported codes stand for the weights that the package decodes,
// up to the f16 of scales and levels, and what is not its layout is refused by name.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "quantizer/encode.h"
#include "quantizer/model_folder.h"
#include "tests/quantizer/bitsandbytes_checkpoint.h"
#include "tests/quantizer/imports_folder.h"

namespace vqgen {
namespace {

namespace fs = std::filesystem;

class ImportBitsandbytes : public test::ImportsFolder {};

// The weights of the folder's only layer.
std::vector<float> decoded_pairs(const fs::path& folder) {
  const ModelFolder read = read_model_folder(folder);
  EXPECT_EQ(read.layers.size(), 1u);
  const QuantizedLayer& layer = read.layers.front();
  const SafetensorsFile file(folder);
  QuantizedTensor tensor;
  tensor.format = layer.format;
  tensor.dtype = DType::f16;
  tensor.rows = layer.out_features;
  tensor.columns = layer.in_features;
  tensor.units = 1;
  tensor.row_words = layer.format.row_words(layer.in_features);
  for (const std::int32_t word : file.read_i32(kBitsandbytesModule + ".codes")) {
    tensor.codes.push_back(static_cast<std::uint32_t>(word));
  }
  tensor.codebooks = file.read_bits16(kBitsandbytesModule + ".codebooks");
  return decode(tensor).data;
}

TEST_F(ImportBitsandbytes, WeightsAreThoseOfThePackage) {
  for (const char* const type : {"nf4", "nf4_double", "fp4"}) {
    SCOPED_TRACE(type);
    bitsandbytes_checkpoint(type).write(model());
    import();
    const std::vector<float> weights = decoded_pairs(out());
    const std::vector<float> expected =
        SafetensorsFile(bitsandbytes_samples()).read_floats(fmt::format("{}.decoded", type));
    ASSERT_EQ(weights.size(), expected.size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
      // Half a unit in the last place of f16 for each of level, scale and the package's result.
      ASSERT_LE(std::fabs(double{weights[i]} - double{expected[i]}),
                1.5 * std::ldexp(std::fabs(double{expected[i]}), -10) + std::ldexp(1.0, -25))
          << i;
    }
    fs::remove_all(out());
  }
}

TEST_F(ImportBitsandbytes, SaysWhatBecameOfLayers) {
  bitsandbytes_checkpoint("nf4_double").write(model());
  const ImportReport report = import();
  ASSERT_EQ(report.kinds.size(), 2u);
  EXPECT_EQ(report.kinds[0].from, "bitsandbytes nf4");
  EXPECT_EQ(report.kinds[0].to, "d2b8g64");
  EXPECT_EQ(report.kinds[0].bytes_before, 1024u + 32 + 64 + 4 + 1024);
  const Json config = parse_json(read_text(out() / "config.json"), "config");
  EXPECT_EQ(config["quantization_config"]["quant_method"], "vqgen");
  EXPECT_EQ(config["quantization_config"]["format"]["group_inputs"], 64);
  EXPECT_EQ(SafetensorsFile(out()).read_bits16("model.norm.weight"),
            (std::vector<std::uint16_t>{1, 2, 3}));
}

TEST_F(ImportBitsandbytes, RefusesWhatDoesNotFit) {
  const auto refused = [&](const std::function<void(RawCheckpoint&)>& damage,
                           const std::string& words) {
    RawCheckpoint made = bitsandbytes_checkpoint("nf4_double");
    damage(made);
    const std::string message = refusal(made);
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  const auto tensor = [](RawCheckpoint& made, const std::string& suffix) -> RawCheckpoint::Tensor& {
    return made.tensors.at(kBitsandbytesModule + suffix);
  };
  const auto set_state = [&](RawCheckpoint& made, const char* key, const Json& value) {
    RawCheckpoint::Tensor& state = tensor(made, ".weight.quant_state.bitsandbytes__nf4");
    Json json = parse_json({reinterpret_cast<const char*>(state.bytes.data()), state.bytes.size()},
                           "state");
    json[key] = value;
    if (value.is_null()) json.erase(key);
    const std::string text = json.dump();
    const auto bytes = std::as_bytes(std::span(text));
    state.bytes.assign(bytes.begin(), bytes.end());
    state.shape = {static_cast<std::int64_t>(text.size())};
  };
  refused([&](auto& made) { made.config["quantization_config"]["load_in_4bit"] = false; },
          "models of 8 bits are not read");
  refused([&](auto& made) { set_state(made, "blocksize", 4096); }, "blocksize");
  refused([&](auto& made) { set_state(made, "blocksize", 256); },
          "is 256, which does not divide the 128 inputs");
  refused([&](auto& made) { set_state(made, "shape", {16, 64}); }, "has shape [1024, 1]");
  refused([&](auto& made) { set_state(made, "shape", nullptr); }, "shape");
  refused([&](auto& made) { set_state(made, "dtype", "int8"); }, "dtype");
  refused([&](auto& made) { set_state(made, "nested_offset", nullptr); }, "nested_offset");
  refused([&](auto& made) { tensor(made, ".weight.quant_state.bitsandbytes__nf4").bytes[0] = {}; },
          "bitsandbytes__nf4");
  refused([&](auto& made) { tensor(made, ".weight").dtype = "I8"; }, "is I8 where 4 bits");
  refused([&](auto& made) { tensor(made, ".weight.absmax").shape = {31}; }, "has shape [31]");
  refused([&](auto& made) { tensor(made, ".weight.absmax").dtype = "I8"; }, "nested scales are U8");
  refused([&](auto& made) { tensor(made, ".weight.nested_absmax").bytes[3] = std::byte{0x7f}; },
          "absmax");
  const std::string missing[] = {".weight.quant_map", ".weight.nested_absmax",
                                 ".weight.nested_quant_map",
                                 ".weight.quant_state.bitsandbytes__nf4"};
  for (const std::string& suffix : missing) {
    refused([&](auto& made) { made.tensors.erase(kBitsandbytesModule + suffix); },
            suffix + "': is not there");
  }
  refused([&](auto& made) { made.tensors.erase(kBitsandbytesModule + ".weight.absmax"); },
          "is there without");
}

}  // namespace
}  // namespace vqgen
