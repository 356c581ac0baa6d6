// Quantized model folders that lie, and patterns of their config.
#include "quantizer/model_folder.h"

#include <gtest/gtest.h>

#include "quantizer/train/quantize_model.h"
#include "tests/in_folder.h"
#include "tests/message_of.h"
#include "tests/quantizer/samples.h"
#include "tests/tiny_model.h"

namespace vqgen {
namespace {

class FolderOfModel : public test::InFolder {
 protected:
  void SetUp() override {
    test::InFolder::SetUp();
    TinyModel().write(folder_ / "model");
    QuantizeModelRequest request;
    request.model = folder_ / "model";
    request.out = out();
    request.format = samples::table_format(8, 4, Scope::tensor);
    request.any_format = true;
    quantize_model(request);
    config_ = parse_json_file(out() / "config.json");
  }
  std::filesystem::path out() const { return folder_ / "out"; }
  Json& quantization() { return config_["quantization_config"]; }
  void expect_refused(const std::vector<std::string>& words) {
    publish_text(out() / "config.json", config_.dump());
    const std::string message = message_of([&] { read_model_folder(out()); });
    for (const std::string& word : words) {
      EXPECT_NE(message.find(word), std::string::npos) << word << " is not in: " << message;
    }
  }
  // The tensors of the second shard, to be written again with changes.
  void change_shard(const std::function<void(std::vector<TensorView>&)>& change) const {
    const std::filesystem::path path = out() / "model-00002-of-00002.safetensors";
    const SafetensorsFile file(path);
    std::map<std::string, std::vector<std::byte>> held;
    std::vector<TensorView> views;
    for (const TensorInfo& info : file.tensors()) {
      std::vector<std::byte>& bytes = held[info.name];
      bytes.resize(static_cast<std::size_t>(info.end - info.begin));
      file.read_bytes(info, 0, bytes);
      views.push_back({info.name, info.type, info.shape, bytes});
    }
    change(views);
    write_safetensors(path, views, {});
  }

  Json config_;
};

TEST_F(FolderOfModel, IsReadAsItWasWritten) {
  const ModelFolder folder = read_model_folder(out());
  ASSERT_EQ(folder.layers.size(), 8u);
  const QuantizedLayer& layer = folder.layers[1];
  EXPECT_EQ(layer.module, "model.layers.0.mlp.up_proj");
  EXPECT_EQ(layer.out_features, 128);
  EXPECT_EQ(layer.in_features, 64);
  EXPECT_EQ(layer.codebook_bytes, 16u * 8 * 2);
  EXPECT_EQ(layer.bytes, 128u * 4 + layer.codebook_bytes);
  EXPECT_EQ(folder.dense_elements, 2 * 32 * 64 + 63 + 2 * (64 + 64));
  EXPECT_EQ(folder.dense_bytes, 2u * static_cast<std::uint64_t>(folder.dense_elements));
}

TEST_F(FolderOfModel, OverridesHaveTheFirstWord) {
  const VqFormat other = samples::table_format(4, 6, Scope::tensor);
  quantization()["overrides"] = {{{"modules", "*.layers.1.*"}, {"format", to_json(other)}},
                                 {{"modules", "*"}, {"format", quantization()["format"]}}};
  publish_text(out() / "config.json", config_.dump());
  const QuantizationConfig read = read_quantization(read_model_config(out()));
  EXPECT_EQ(read.format_of("model.layers.1.mlp.up_proj"), other);
  EXPECT_EQ(read.format_of("model.layers.0.mlp.up_proj"), read.format);
  expect_refused({"model.layers.1.mlp.down_proj.codes", "[64, 2]", "[64, 6]", "quantize again"});
}

TEST_F(FolderOfModel, ConfigsThatAreNotKnownAreRefused) {
  const Json good = config_;
  quantization()["version"] = 2;
  quantization()["future"] = 1;
  expect_refused({"config.json: /quantization_config/version: is format version 2",
                  "knows up to 1; upgrade vqgen"});
  config_ = good;
  quantization()["version"] = "1";
  expect_refused({"config.json: /quantization_config/version: must be a whole number"});
  config_ = good;
  quantization().erase("version");
  publish_text(out() / "config.json", config_.dump());
  EXPECT_EQ(read_quantization(read_model_config(out())).version, 1);
  config_ = good;
  quantization()["future"] = 1;
  expect_refused({"config.json: /quantization_config", "future"});
  config_ = good;
  quantization()["quant_method"] = "gptq";
  expect_refused({"quant_method", "'gptq'", "original model"});
  config_ = good;
  quantization()["weight_shapes"] = Json::array();
  expect_refused({"weight_shapes"});
  config_ = good;
  quantization()["format"]["vector_size"] = 7;
  expect_refused({"/quantization_config/format/vector_size"});
  config_ = good;
  config_.erase("quantization_config");
  expect_refused({"the model is not quantized", "vqgen quantize"});
  config_ = good;
  config_["num_hidden_layers"] = 4;
  expect_refused({"layer 2 of 4"});
}

TEST_F(FolderOfModel, TensorsThatDoNotFitAreRefused) {
  const std::string codes = "model.layers.1.mlp.up_proj.codes";
  change_shard([&](std::vector<TensorView>& views) {
    for (TensorView& view : views) {
      if (view.name == codes) view.shape = {64, 2};
    }
  });
  expect_refused({"model-00002-of-00002.safetensors", codes, "[64, 2]", "[128, 1]"});
  change_shard([&](std::vector<TensorView>& views) {
    for (TensorView& view : views) {
      if (view.name == codes) view.name = "model.layers.1.mlp.up_proj.stage_scales";
    }
  });
  expect_refused({codes, "fetch both again"});  // the index tells of it
  Json index = parse_json_file(out() / "model.safetensors.index.json");
  index["weight_map"].erase(codes);
  publish_text(out() / "model.safetensors.index.json", index.dump());
  expect_refused({codes, "is not there, though other tensors of the layer are"});
  std::filesystem::remove(out() / "model-00002-of-00002.safetensors");
  expect_refused({"model-00002-of-00002.safetensors: cannot read"});
}

TEST(ShapePatterns, StandForLayersOfOneSize) {
  const std::vector<WeightShape> shapes{
      {"h.0.up", 8, 4}, {"h.1.up", 8, 4}, {"h.0.v", 2, 4}, {"h.1.v", 4, 4}, {"h.0.a.up", 2, 2}};
  const std::vector<WeightShape> patterns = shape_patterns(shapes);
  EXPECT_EQ(patterns, (std::vector<WeightShape>{
                          {"h.0.v", 2, 4}, {"h.1.v", 4, 4}, {"h.*.a.up", 2, 2}, {"h.*.up", 8, 4}}));
  // Where a star would stand for too much, the names stay.
  const std::vector<WeightShape> nested{{"h.0.up", 8, 4}, {"h.1.2.up", 2, 2}};
  QuantizationConfig config;
  config.weight_shapes = shape_patterns(nested);
  EXPECT_EQ(config.shape_of("h.0.up")->out_features, 8);
  EXPECT_EQ(config.shape_of("h.1.2.up")->out_features, 2);
}

TEST(ShapePatterns, AreFewForManyExperts) {
  std::vector<WeightShape> shapes{{"m.layers.0.mlp.gate_proj", 96, 64},
                                  {"m.layers.0.mlp.down_proj", 64, 96}};
  for (int layer = 1; layer < 20; ++layer) {
    const std::string stem = "m.layers." + std::to_string(layer) + ".mlp.";
    shapes.push_back({stem + "shared_experts.gate_proj", 48, 64});
    for (int expert = 0; expert < 256; ++expert) {
      const std::string own = stem + "experts." + std::to_string(expert);
      shapes.push_back({own + ".gate_proj", 32, 64});
      shapes.push_back({own + ".down_proj", 64, 32});
    }
  }
  EXPECT_EQ(shape_patterns(shapes).size(), 5u);
}

TEST(LayerNumber, IsTheFirstPartThatIsANumber) {
  EXPECT_EQ(layer_number("model.layers.12.mlp.experts.3.up"), 12);
  EXPECT_EQ(layer_number("model.layers2.mlp"), -1);
  EXPECT_EQ(layer_number("lm_head"), -1);
}

}  // namespace
}  // namespace vqgen
