// QuIP# checkpoints: the imported codes stand for the numbers that the package decodes, signs and
// scales are where the rotations take them, and what is not E8P12's layout is refused by name.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "quantizer/model_folder.h"
#include "tests/quantizer/imports_folder.h"
#include "tests/quantizer/quip_checkpoint.h"

namespace vqgen {
namespace {

namespace fs = std::filesystem;

const std::string kLayer = "model.layers.0.";
const std::string kDown = kLayer + "mlp.down_proj";

class ImportQuip : public test::ImportsFolder {
 protected:
  static RawCheckpoint one() {
    RawCheckpoint made = quip_checkpoint(kDown);
    made.tensors.erase(kDown + ".scaleWH");
    return made;
  }
};

TEST_F(ImportQuip, CodesAreThoseOfThePackage) {
  one().write(model());
  import();
  const SafetensorsFile file(out());
  const std::vector<std::int32_t> words = file.read_i32(kDown + ".codes");
  const std::vector<float> table = file.read_floats(kDown + ".codebooks");
  const SafetensorsFile samples(quip_samples());
  const std::vector<float> wanted = samples.read_floats("decoded");
  ASSERT_EQ(words.size(), 32u * 8);
  ASSERT_EQ(table.size(), 256u * 8);
  for (std::size_t i = 0; i < wanted.size() / 8; ++i) {
    const auto code = static_cast<std::uint32_t>(words[i / 2]) >> (i % 2 * 16) & 0xffff;
    float sum = 0;
    for (std::size_t e = 0; e < 8; ++e) {
      const float entry = table[(code & 255) * 8 + e];
      sum += entry;
      float value = e < 7 && (code >> (8 + e) & 1) == 1 ? -entry : entry;
      // The last sign makes the sum of the signed elements even.
      if (e == 7) {
        float before = 0;
        for (std::size_t k = 0; k < 7; ++k) {
          const float other = table[(code & 255) * 8 + k];
          before += (code >> (8 + k) & 1) == 1 ? -other : other;
        }
        const bool even = static_cast<int>(before + entry) % 2 == 0;
        value = even ? entry : -entry;
      }
      ASSERT_EQ(value + (code < 1u << 15 ? 0.25f : -0.25f), wanted[8 * i + e]) << i << " " << e;
    }
    ASSERT_GT(sum, 0);
  }
}

TEST_F(ImportQuip, TheSecondStageIsRightOfTheFirst) {
  one().write(model());
  import();
  const std::vector<std::int32_t> alone = SafetensorsFile(out()).read_i32(kDown + ".codes");
  fs::remove_all(out());
  for (const double scale : {-1.0, 2.0}) {
    RawCheckpoint made = one();
    made.config["quip_params"]["codebook"] = "E8P12RVQ4B";
    made.config["quip_params"]["resid_scale_override"] = scale;
    made.tensors[kDown + ".codebook_id"].bytes[0] = std::byte{17};
    RawCheckpoint::Tensor& codes = made.tensors.at(kDown + ".Qidxs");
    const std::vector<std::byte> first = codes.bytes;
    codes.shape[1] *= 2;
    codes.bytes.clear();
    const std::ptrdiff_t row_bytes = std::ssize(first) / 32;
    for (std::ptrdiff_t row = 0; row < 32; ++row) {  // the other tile's codes behind each row's
      const auto begin = first.begin() + row * row_bytes;
      const auto other = first.begin() + (row + 16) % 32 * row_bytes;
      codes.bytes.insert(codes.bytes.end(), begin, begin + row_bytes);
      codes.bytes.insert(codes.bytes.end(), other, other + row_bytes);
    }
    made.write(model());
    import();
    const SafetensorsFile file(out());
    const float residual = 0.125f / (scale > 0 ? 2.0f : 3.45f);
    EXPECT_EQ(file.read_floats(kDown + ".stage_scales"), (std::vector<float>{0.125f, residual}));
    const std::vector<std::int32_t> both = file.read_i32(kDown + ".codes");
    ASSERT_EQ(both.size(), 2 * alone.size());
    const auto code = [](const std::vector<std::int32_t>& words, std::size_t i) {
      return static_cast<std::uint32_t>(words[i / 2]) >> (i % 2 * 16) & 0xffff;
    };
    for (std::size_t row = 0; row < 32; ++row) {
      for (std::size_t vector = 0; vector < 16; ++vector) {
        const std::size_t at = row * 16 + vector;
        ASSERT_EQ(code(both, 2 * at), code(alone, at));
        ASSERT_EQ(code(both, 2 * at + 1), code(alone, (row + 16) % 32 * 16 + vector));
      }
    }
    fs::remove_all(out());
  }
}

TEST_F(ImportQuip, TheTableIsThatOfThePackage) {
  one().write(model());
  import();
  const std::vector<float> table = SafetensorsFile(out()).read_floats(kDown + ".codebooks");
  const SafetensorsFile samples(quip_samples());
  std::vector<std::uint8_t> twice(256 * 8);
  samples.read_bytes(samples.at("table"), 0, std::as_writable_bytes(std::span(twice)));
  for (std::size_t i = 0; i < twice.size(); ++i) ASSERT_EQ(2 * table[i], twice[i]) << i;
}

TEST_F(ImportQuip, SignsScalesAndSizesAreCarriedOver) {
  RawCheckpoint made = quip_checkpoint(kDown);
  made.config["quip_params"]["rescale_WH"] = true;
  made.write(model());
  const ImportReport report = import();
  ASSERT_EQ(report.kinds.size(), 2u);
  EXPECT_EQ(report.kinds[0].from, "quip# E8P12");
  EXPECT_EQ(report.kinds[0].count, 1u);
  const SafetensorsFile file(out()), before(model());
  const std::vector<float> signs = file.read_floats(kDown + ".input_signs");
  const std::vector<float> su = before.read_floats(kDown + ".SU");
  const std::vector<float> scales = before.read_floats(kDown + ".scaleWH");
  for (std::size_t i = 0; i < signs.size(); ++i) EXPECT_EQ(signs[i], su[i] / scales[i]);
  EXPECT_EQ(file.read_floats(kDown + ".output_signs"), before.read_floats(kDown + ".SV"));
  EXPECT_EQ(file.read_floats(kDown + ".stage_scales"), std::vector<float>{0.125f});
  const ModelFolder read = read_model_folder(out());
  ASSERT_EQ(read.layers.size(), 1u);
  EXPECT_EQ(read.layers[0].out_features, 32);
  EXPECT_EQ(read.layers[0].in_features, 128);
  ASSERT_NE(read.quantization.rotation_of(kDown), nullptr);
  EXPECT_TRUE(read.quantization.rotation_of(kDown)->parts.empty());
  EXPECT_EQ(read.quantization.rotation_of("model.layers.0.mlp.up_proj"), nullptr);
}

TEST_F(ImportQuip, FusedLayersKeepTheirPartsAndTakeTheirScales) {
  struct Case {
    const char* from;
    const char* to;
    std::vector<RotatedPart> parts;
    std::vector<float> scales;
  };
  const Case cases[] = {
      {"self_attn.qkv_proj",
       "self_attn.qkv_proj",
       {{"q_proj", 16}, {"k_proj", 8}, {"v_proj", 8}},
       {2, 0.5f, 4}},
      {"mlp.upgate_proj", "mlp.gate_up_proj", {{"up_proj", 16}, {"gate_proj", 16}}, {2, 0.5f}}};
  for (const Case& each : cases) {
    RawCheckpoint made = quip_checkpoint(kLayer + each.from);
    made.tensors.erase(kLayer + each.from + ".scaleWH");
    made.write(model());
    import();
    const ModelFolder read = read_model_folder(out());
    const RowRotation* const rotation = read.quantization.rotation_of(kLayer + each.to);
    ASSERT_NE(rotation, nullptr);
    EXPECT_EQ(rotation->parts, each.parts);
    const SafetensorsFile file(out()), before(model());
    const std::vector<float> signs = file.read_floats(kLayer + each.to + ".output_signs");
    const std::vector<float> sv = before.read_floats(kLayer + each.from + ".SV");
    std::size_t row = 0;
    for (std::size_t part = 0; part < each.parts.size(); ++part) {
      for (std::int64_t i = 0; i < each.parts[part].out_features; ++i, ++row) {
        EXPECT_EQ(signs[row], sv[row] * each.scales[part]);
      }
    }
    fs::remove_all(out());
  }
}

TEST_F(ImportQuip, RefusesOtherSettings) {
  const auto refuse = [&](const char* key, const Json& value, const std::string& words) {
    RawCheckpoint made = one();
    made.config["quip_params"][key] = value;
    const std::string message = refusal(made);
    EXPECT_NE(message.find(std::string("config.json: /quip_params/") + key), std::string::npos)
        << message;
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  refuse("codebook", "E8P12RVQ3B", "is 'E8P12RVQ3B', and 'E8P12' and 'E8P12RVQ4B' are");
  refuse("codebook", "D4", "take another model");
  refuse("codebook", 3, "");
  refuse("idx_dtype", "torch.int16", "is 'torch.int16', and 'torch.int64' is read");
  refuse("codebook_version", 0, "is not 1");
  refuse("lora_rank", 16, "low-rank parts");
  refuse("outlier_channel_split", true, "split outliers");
  RawCheckpoint made = one();
  made.config["quip_params"] = {{"decode_mode", "quantlut_sym"}};
  EXPECT_NE(refusal(made).find("is of QTIP"), std::string::npos);
}

TEST_F(ImportQuip, RefusesTensorsThatDoNotFit) {
  const auto refuse = [&](const std::function<void(RawCheckpoint&)>& damage,
                          const std::string& words) {
    RawCheckpoint made = one();
    damage(made);
    const std::string message = refusal(made);
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_NE(message.find("model.safetensors: tensor"), std::string::npos) << message;
  };
  const auto tensor = [](RawCheckpoint& made, const char* suffix) -> RawCheckpoint::Tensor& {
    return made.tensors.at(kDown + suffix);
  };
  for (const char* suffix : {".SU", ".SV", ".Wscale", ".codebook_id"}) {
    refuse([&](auto& made) { made.tensors.erase(kDown + suffix); },
           fmt::format("down_proj{}': is not there, though", suffix));
  }
  refuse([&](auto& made) { made.tensors.erase(kDown + ".Qidxs"); }, "is there without");
  refuse([&](auto& made) { tensor(made, ".Qidxs").dtype = "U64"; }, "is U64 where codes of E8P12");
  refuse([&](auto& made) { tensor(made, ".Qidxs").shape = {64, 2}; }, "has shape");
  refuse([&](auto& made) { tensor(made, ".Qidxs").shape = {128}; }, "has shape [128] where E8P12");
  refuse([&](auto& made) { tensor(made, ".SU").shape = {64, 2}; }, "has shape [64, 2]");
  refuse(
      [&](auto& made) {
        tensor(made, ".SU").bytes[3] = std::byte{0x7f},
                     tensor(made, ".SU").bytes[2] = std::byte{0xc0};
      },
      "element 0");
  refuse([&](auto& made) { tensor(made, ".codebook_id").bytes[0] = std::byte{17}; },
         "is 17 where E8P12 is 7");
  refuse([&](auto& made) { made.tensors[kDown + ".A"] = tensor(made, ".SV"); }, "is there beside");
  refuse([&](auto& made) { made.tensors[kDown + ".scaleWH"] = tensor(made, ".SU"); },
         "and rescale_WH of");
  refuse(
      [&](auto& made) {
        made.tensors[kDown + ".scaleWH"] = tensor(made, ".SU");
        std::fill_n(made.tensors[kDown + ".scaleWH"].bytes.begin(), 4, std::byte{0});
        made.config["quip_params"]["rescale_WH"] = true;
      },
      "element 0 is 0, by which inputs are divided");
  refuse([&](auto& made) { made.tensors[kDown + ".fuse_scales"] = tensor(made, ".Wscale"); },
         "is of a layer that is several");
  refuse(
      [&](auto& made) {
        made = quip_checkpoint(kLayer + "self_attn.qkv_proj");
        made.tensors.erase(kLayer + "self_attn.qkv_proj.scaleWH");
        made.config["head_dim"] = 8;
      },
      "has 32 outputs, and the heads of");
}

TEST_F(ImportQuip, RefusesSizesThatNoMatrixRotates) {
  RawCheckpoint made = one();
  made.tensors.at(kDown + ".Qidxs").shape = {16 * 11, 4};
  made.tensors.at(kDown + ".Qidxs").bytes.resize(16 * 11 * 4 * 8);
  made.tensors.at(kDown + ".SV").shape = {16 * 11};
  made.tensors.at(kDown + ".SV").bytes.resize(16 * 11 * 4);
  EXPECT_NE(refusal(made).find("no matrix rotates 176 features"), std::string::npos);
}

TEST_F(ImportQuip, AFolderWhoseSignsAreMissingIsRefused) {
  one().write(model());
  import();
  std::string config = read_text(out() / "config.json");
  Json json = parse_json(config, "config");
  json["quantization_config"].erase("rotations");
  publish_text(out() / "config.json", json.dump());
  EXPECT_NE(message_of([&] { read_model_folder(out()); }, ErrorKind::bad_input)
                .find("input_signs': is there, but the format"),
            std::string::npos);
}

}  // namespace
}  // namespace vqgen
