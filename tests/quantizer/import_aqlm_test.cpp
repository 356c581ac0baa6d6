// AQLM checkpoints: the imported codes stand for the weights that the package decodes, and what is
// not AQLM's layout is refused by name.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "quantizer/model_folder.h"
#include "quantizer/pack.h"
#include "tests/quantizer/imports_folder.h"

namespace vqgen {
namespace {

namespace fs = std::filesystem;

const std::string kModule = "model.layers.0.mlp.up_proj";

class ImportAqlm : public test::ImportsFolder {
 protected:
  static RawCheckpoint checkpoint(int stages, int bits) {
    RawCheckpoint made;
    const std::string name = fmt::format("{}x{}", stages, bits);
    made.config["quantization_config"] = {
        {"quant_method", "aqlm"},     {"in_group_size", 8},
        {"out_group_size", 1},        {"num_codebooks", stages},
        {"nbits_per_codebook", bits}, {"linear_weights_not_to_quantize", {"lm_head.weight"}}};
    const SafetensorsFile file(samples());
    made.add(kModule + ".codes", file, name + ".codes");
    made.add(kModule + ".scales", file, name + ".scales");
    const std::size_t entries = std::size_t{1} << bits;
    std::vector<std::uint16_t> books(static_cast<std::size_t>(stages) * entries * 8);
    for (std::size_t stage = 0; stage < static_cast<std::size_t>(stages); ++stage) {
      const auto rows = file.read_i32(fmt::format("{}.rows.{}", name, stage));
      const auto values = file.read_bits16(fmt::format("{}.values.{}", name, stage));
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto at = (stage * entries + static_cast<std::size_t>(rows[i])) * 8;
        std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(8 * i), 8,
                    books.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    made.add(kModule + ".codebooks", "F16", {stages, 1 << bits, 1, 8}, books);
    made.add("model.norm.weight", "BF16", {3}, std::vector<std::uint16_t>{1, 2, 3});
    made.add("lm_head.weight", "F16", {2, 2}, std::vector<std::uint16_t>{1, 2, 3, 4});
    return made;
  }
  static std::string samples() {
    return VQGEN_SOURCE_DIR "/tests/data/checkpoints/aqlm.safetensors";
  }
  // Keeps the first `kept` vectors of each row of codes.
  static void narrow(RawCheckpoint& made, std::int64_t kept) {
    RawCheckpoint::Tensor& codes = made.tensors.at(kModule + ".codes");
    const auto of_vector = codes.bytes.size() / static_cast<std::size_t>(codes.shape[0]) /
                           static_cast<std::size_t>(codes.shape[1]);
    std::vector<std::byte> bytes;
    for (std::int64_t row = 0; row < codes.shape[0]; ++row) {
      const auto begin =
          codes.bytes.begin() + row * codes.shape[1] * static_cast<std::ptrdiff_t>(of_vector);
      bytes.insert(bytes.end(), begin, begin + kept * static_cast<std::ptrdiff_t>(of_vector));
    }
    codes.shape[1] = kept;
    codes.bytes = std::move(bytes);
  }
};

// The weights of the folder's only layer, [out_features][in_features].
std::vector<float> decoded(const fs::path& folder) {
  const ModelFolder read = read_model_folder(folder);
  EXPECT_EQ(read.layers.size(), 1u);
  const QuantizedLayer& layer = read.layers.front();
  const VqFormat& f = layer.format;
  const SafetensorsFile file(folder);
  const std::vector<std::int32_t> words = file.read_i32(kModule + ".codes");
  const std::vector<float> books = file.read_floats(kModule + ".codebooks");
  const std::vector<float> scales = file.read_floats(kModule + ".output_scales");
  const auto row_words = static_cast<std::size_t>(f.row_words(layer.in_features));
  const auto stages = static_cast<std::size_t>(f.num_codebooks);
  const auto columns = static_cast<std::size_t>(layer.in_features);
  std::vector<std::uint32_t> codes(columns / 8 * stages);
  std::vector<float> weights;
  for (std::size_t row = 0; row < scales.size(); ++row) {
    const std::vector<std::uint32_t> of_row(
        words.begin() + static_cast<std::ptrdiff_t>(row * row_words),
        words.begin() + static_cast<std::ptrdiff_t>((row + 1) * row_words));
    unpack_row(of_row, f.index_bits, codes);
    for (std::size_t i = 0; i < columns; ++i) {
      float sum = 0;
      for (std::size_t stage = 0; stage < stages; ++stage) {
        const std::size_t entry = (stage << f.index_bits) + codes[i / 8 * stages + stage];
        sum += books[entry * 8 + i % 8];
      }
      weights.push_back(sum * scales[row]);
    }
  }
  return weights;
}

TEST_F(ImportAqlm, WeightsAreThoseOfThePackage) {
  const std::pair<int, int> settings[] = {{1, 8}, {2, 8}, {1, 15}, {1, 16}, {2, 12}, {2, 16}};
  for (const auto& [stages, bits] : settings) {
    SCOPED_TRACE(fmt::format("{}x{}", stages, bits));
    const auto all =
        SafetensorsFile(samples()).read_floats(fmt::format("{}x{}.decoded", stages, bits));
    for (const std::int64_t vectors : {8, 5}) {
      if (vectors == 5 && stages == 2) continue;  // rows that fill words
      RawCheckpoint made = checkpoint(stages, bits);
      narrow(made, vectors);
      made.write(model());
      import();
      std::vector<float> expected;
      for (std::size_t row = 0; row < 8; ++row) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(row * 64);
        expected.insert(expected.end(), begin, begin + 8 * vectors);
      }
      EXPECT_EQ(decoded(out()), expected);
      fs::remove_all(out());
    }
  }
}

TEST_F(ImportAqlm, OtherTensorsAndFilesAreCarriedOver) {
  checkpoint(2, 8).write(model());
  publish_text(model() / "pytorch_model.bin", "weights");
  const ImportReport report = import();
  ASSERT_EQ(report.kinds.size(), 3u);
  EXPECT_EQ(report.kinds[0].from, "F16");
  EXPECT_EQ(report.kinds[1].from, "aqlm 2x8");
  EXPECT_EQ(report.kinds[1].to, "d8b8x2");
  EXPECT_EQ(report.kinds[1].bytes_before, 8u * 16 + 2 * 256 * 8 * 2 + 8 * 2);
  EXPECT_EQ(report.kinds[1].bytes_after, 8u * 16 + 2 * 256 * 8 * 2 + 8 * 4);
  EXPECT_EQ(report.left_out, std::vector<std::string>{"pytorch_model.bin"});
  const SafetensorsFile file(out());
  EXPECT_EQ(file.read_bits16("model.norm.weight"), (std::vector<std::uint16_t>{1, 2, 3}));
  EXPECT_EQ(file.at("model.norm.weight").dtype, "BF16");
  EXPECT_EQ(read_text(out() / "tokenizer.json"), "{}\n");
  const Json config = parse_json(read_text(out() / "config.json"), "config");
  EXPECT_EQ(config["quantization_config"]["quant_method"], "vqgen");
  EXPECT_EQ(config["quantization_config"]["modules_to_not_convert"], Json{"lm_head"});
  EXPECT_EQ(config["torch_dtype"], "float16");
}

struct Killed {};

TEST_F(ImportAqlm, GoesOnAfterAKillToTheSameBytes) {
  checkpoint(2, 8).write(model());
  import();
  fs::rename(out(), folder_ / "whole");
  ImportRequest request{model(), out()};
  int tensors = 0;
  request.progress = [&](double, const std::string&) {
    if (++tensors == 3) throw Killed();
  };
  EXPECT_THROW(import_model(request), Killed);
  EXPECT_TRUE(fs::exists(folder_ / "out.partial"));
  import();
  EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
  for (const auto& entry : fs::directory_iterator(folder_ / "whole")) {
    EXPECT_EQ(read_text(out() / entry.path().filename()), read_text(entry.path()));
  }
}

TEST_F(ImportAqlm, RefusesSettingsThatNoKernelReads) {
  const auto refused = [&](const char* key, const Json& value) {
    RawCheckpoint made = checkpoint(2, 8);
    made.config["quantization_config"][key] = value;
    const std::string message = refusal(made);
    EXPECT_NE(message.find(key), std::string::npos) << message;
    return message;
  };
  EXPECT_NE(refused("in_group_size", 16).find("needs weights with vector_size 16"),
            std::string::npos);
  EXPECT_NE(refused("in_group_size", 32).find("vector_size 32"), std::string::npos);
  EXPECT_NE(refused("num_codebooks", 8).find("8 residual stages"), std::string::npos);
  EXPECT_NE(refused("nbits_per_codebook", 1).find("codes of 1 bits"), std::string::npos);
  EXPECT_NE(refused("out_group_size", 8).find("vectors along output"), std::string::npos);
  refused("in_group_size", "8");
  refused("num_codebooks", 0);
}

TEST_F(ImportAqlm, RefusesTensorsThatDoNotFit) {
  const RawCheckpoint good = checkpoint(2, 8);
  const auto refused = [&](const std::function<void(RawCheckpoint&)>& damage,
                           const std::string& words) {
    RawCheckpoint made = good;
    damage(made);
    const std::string message = refusal(made);
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_NE(message.find("model.safetensors"), std::string::npos) << message;
  };
  const auto tensor = [](RawCheckpoint& made, const char* suffix) -> RawCheckpoint::Tensor& {
    return made.tensors.at(kModule + suffix);
  };
  refused([&](auto& made) { made.tensors.erase(kModule + ".scales"); }, "up_proj.scales': is not");
  refused([&](auto& made) { made.tensors.erase(kModule + ".codes"); }, "is there without");
  refused([&](auto& made) { tensor(made, ".codes").dtype = "U8"; }, "is U8 where codes of 8 bits");
  refused([&](auto& made) { tensor(made, ".codes").bytes.pop_back(); }, "has 127 bytes where");
  refused([&](auto& made) { tensor(made, ".codes").shape = {8, 16}; }, "has shape [8, 16]");
  refused([&](auto& made) { tensor(made, ".codes").shape = {8, 8, -2}; }, "must be");
  refused(
      [&](auto& made) {
        tensor(made, ".codebooks").shape = {2, 256, 8};
      },
      "has shape [2, 256, 8]");
  refused([&](auto& made) { tensor(made, ".scales").shape = {8}; }, "has shape [8]");
  refused([&](auto& made) { made.tensors[kModule + ".weight"] = made.tensors["lm_head.weight"]; },
          "is there beside");
  refused([&](auto& made) { tensor(made, ".scales").bytes[1] = std::byte{0x7c}; }, "element 0 is");
  refused([&](auto& made) { tensor(made, ".codebooks").bytes[1] = std::byte{0x7e}; }, "element 0");
  refused([&](auto& made) { made.config["num_hidden_layers"] = 2; }, "layer 1 of 2");
}

TEST_F(ImportAqlm, RefusesCodesOfMoreBits) {
  RawCheckpoint made = checkpoint(1, 15);
  made.tensors.at(kModule + ".codes").bytes[1] = std::byte{0x40};
  made.tensors.at(kModule + ".codes").bytes[0] = std::byte{0};
  EXPECT_NE(refusal(made).find("code 0 of row 0 is 16384, which is no number of 15 bits"),
            std::string::npos);
}

TEST_F(ImportAqlm, RefusesOtherMethodsByName) {
  const auto refused = [&](const Json& quantization, const std::string& words) {
    RawCheckpoint made = checkpoint(2, 8);
    made.config["quantization_config"] = quantization;
    const std::string message = refusal(made);
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  refused({{"quant_method", "vptq"}}, "it needs vectors along output features");
  refused({{"quant_method", "gptq"}}, "it needs an importer, which vqgen does not have");
  refused({{"quant_method", "vqgen"}}, "is vqgen's already");
  refused({{"quant_method", "other"}}, "'bitsandbytes' and QuIP# are: quantize the original");
  refused({{"bits", 4}}, "quant_method");
  RawCheckpoint made = checkpoint(2, 8);
  made.config.erase("quantization_config");
  EXPECT_NE(refusal(made).find("the model is not quantized"), std::string::npos);
  made.config["quip_params"] = {{"decode_mode", "quantlut_sym"}};
  EXPECT_NE(refusal(made).find("is of QTIP, which is not read: it needs codebooks"),
            std::string::npos);
}

}  // namespace
}  // namespace vqgen
