// Model folders: what is written, refused before training, and continued after a kill.
#include "quantizer/train/quantize_model.h"

#include <gtest/gtest.h>

#include <limits>

#include "quantizer/model_folder.h"
#include "tests/in_folder.h"
#include "tests/message_of.h"
#include "tests/quantizer/samples.h"
#include "tests/tiny_model.h"

namespace vqgen {
namespace {

namespace fs = std::filesystem;

struct Killed {};

class QuantizeModel : public test::InFolder {
 protected:
  fs::path model() const { return folder_ / "model"; }
  fs::path out() const { return folder_ / "out"; }
  fs::path partial() const { return folder_ / "out.partial"; }

  QuantizeModelRequest request() const {
    QuantizeModelRequest request;
    request.model = model();
    request.out = out();
    request.format = samples::table_format(8, 4, Scope::tensor);
    request.format.num_codebooks = 2;
    request.format.stage_scales = request.format.output_scales = true;
    request.any_format = true;  // of sizes that are quick to train
    request.trained_on = "cpu";
    return request;
  }
  // A run that ends as by a kill, once so many layers are finished.
  void kill_after(std::size_t layers, QuantizeModelRequest request) const {
    request.finished = [layers](const LayerReport&, std::size_t done) {
      if (done == layers) throw Killed();
    };
    EXPECT_THROW(quantize_model(request), Killed);
    EXPECT_FALSE(fs::exists(request.out));
  }
  // All files of a folder by name.
  static std::map<std::string, std::string> content(const fs::path& folder) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder)) {
      files[entry.path().filename().string()] = read_text(entry.path());
    }
    return files;
  }
  std::string refusal(const QuantizeModelRequest& request) const {
    QuantizeModelRequest watched = request;
    watched.finished = [](const LayerReport&, std::size_t) { FAIL() << "a layer was trained"; };
    const std::string message = message_of([&] { quantize_model(watched); });
    EXPECT_FALSE(fs::exists(out() / "config.json"));
    return message;
  }
  void expect_refused(const QuantizeModelRequest& request, const std::vector<std::string>& words) {
    const std::string message = refusal(request);
    for (const std::string& word : words) {
      EXPECT_NE(message.find(word), std::string::npos) << word << " is not in: " << message;
    }
    EXPECT_FALSE(fs::exists(partial()));
  }
};

TEST_F(QuantizeModel, WritesCodesAndCopiesAllElse) {
  const TinyModel tiny;
  tiny.write(model());
  publish_text(model() / "pytorch_model.bin", "PK");
  fs::create_directory(model() / "original");
  std::vector<std::string> left_out;
  QuantizeModelRequest wanted = request();
  wanted.judged = [&](const ModelPlan& plan) { left_out = plan.left_out; };
  const QuantizeModelResult result = quantize_model(wanted);
  EXPECT_EQ(result.layers.size(), 8u);
  EXPECT_EQ(left_out, (std::vector<std::string>{"original", "pytorch_model.bin"}));
  EXPECT_FALSE(fs::exists(partial()));
  std::vector<std::string> names;
  for (const auto& [name, text] : content(out())) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"config.json", "model-00001-of-00002.safetensors",
                                             "model-00002-of-00002.safetensors",
                                             "model.safetensors.index.json", "tokenizer.json"}));

  const SafetensorsFile file(out());
  for (const auto& [name, tensor] : tiny.tensors) {
    const bool linear = name.ends_with("proj.weight");
    ASSERT_EQ(file.find(name) == nullptr, linear) << name;
    if (linear) continue;
    EXPECT_EQ(file.at(name).shape, tensor.shape);
    EXPECT_EQ(file.read_bits16(name), tensor.bits) << name;
  }
  const Json config = parse_json_file(out() / "config.json");
  EXPECT_EQ(config["torch_dtype"], "float16");
  EXPECT_EQ(config["rms_norm_eps"], 1e-5);
  EXPECT_EQ(config["quantization_config"]["modules_to_not_convert"],
            (Json{"lm_head", "model.embed_tokens"}));
  EXPECT_EQ(config["quantization_config"]["weight_shapes"].size(), 4u);
}

// A layer of a folder has the codes that a bundle has.
TEST_F(QuantizeModel, LayersAreThoseOfABundle) {
  TinyModel().write(model());
  quantize_model(request());
  QuantizeWeightsRequest bundle;
  bundle.input = model();
  bundle.any_format = true;
  bundle.weights = "*.up_proj.weight";
  bundle.format = request().format;
  const SafetensorsFile file(out());
  for (const BundleItem& item : quantize_weights(bundle).bundle.items) {
    const QuantizedTensor& weights = std::get<LinearData>(item.data).weights;
    const TensorInfo& codes = file.at(item.name + ".codes");
    EXPECT_EQ(codes.shape, (std::vector<std::int64_t>{128, 2}));
    std::vector<std::int32_t> words = file.read_i32(item.name + ".codes");
    EXPECT_TRUE(std::equal(
        words.begin(), words.end(), weights.codes.begin(), weights.codes.end(),
        [](std::int32_t a, std::uint32_t b) { return static_cast<std::uint32_t>(a) == b; }));
    EXPECT_EQ(file.at(item.name + ".codebooks").shape, (std::vector<std::int64_t>{1, 2, 16, 8}));
    EXPECT_EQ(file.read_bits16(item.name + ".codebooks"), weights.codebooks);
    EXPECT_EQ(file.read_floats(item.name + ".stage_scales"), weights.stage_scales);
    EXPECT_EQ(file.read_floats(item.name + ".output_scales"), weights.output_scales);
  }
}

TEST_F(QuantizeModel, GoesOnAfterAKillWithEqualBytes) {
  TinyModel().write(model());
  QuantizeModelRequest whole = request();
  whole.out = folder_ / "whole";
  quantize_model(whole);
  kill_after(3, request());
  EXPECT_TRUE(fs::exists(partial() / "model"));
  {  // a line that the kill has cut
    std::string journal = read_text(partial() / "journal.jsonl");
    publish_text(partial() / "journal.jsonl", journal + R"({"layer":"model.lay)");
  }
  kill_after(5, request());
  std::size_t told = 0;
  QuantizeModelRequest last = request();
  last.judged = [&](const ModelPlan& plan) { told = plan.finished_layers; };
  const QuantizeModelResult result = quantize_model(last);
  EXPECT_EQ(told, 5u);
  for (std::size_t i = 0; i < result.layers.size(); ++i) {
    EXPECT_EQ(result.layers[i].from_earlier_run, i < 5) << i;
    EXPECT_GT(result.layers[i].relative_error, 0);
  }
  EXPECT_EQ(content(out()), content(folder_ / "whole"));
  EXPECT_FALSE(fs::exists(partial()));
}

// What a run has left is believed only as far as its bytes are those of the journal.
TEST_F(QuantizeModel, TrainsAgainWhatIsNotAsTheJournalHasIt) {
  TinyModel().write(model());
  QuantizeModelRequest whole = request();
  whole.out = folder_ / "whole";
  quantize_model(whole);
  fs::create_directory(partial());  // a kill before the first line
  publish_text(partial() / "journal.jsonl", R"({"vqgen_qu)");
  kill_after(3, request());
  fs::remove(partial() / "model" / "model-00001-of-00002.safetensors");
  const QuantizeModelResult result = quantize_model(request());
  for (const LayerReport& layer : result.layers) EXPECT_FALSE(layer.from_earlier_run);
  EXPECT_EQ(content(out()), content(folder_ / "whole"));
}

TEST_F(QuantizeModel, GoesOnWithTheSameArgumentsAlone) {
  TinyModel tiny;
  tiny.write(model());
  kill_after(2, request());
  const auto refused = [&](const QuantizeModelRequest& other, const std::string& name) {
    const std::string message = refusal(other);
    EXPECT_NE(message.find("out.partial: was begun with another '" + name + "'"), std::string::npos)
        << message;
    EXPECT_NE(message.find("give the same arguments to go on, or remove"), std::string::npos);
  };
  QuantizeModelRequest other = request();
  other.options.seed = 2;
  refused(other, "--seed");
  other = request();
  other.exclude = {"*.q_proj"};
  refused(other, "--exclude");
  other = request();
  other.format.output_scales = false;
  refused(other, "--format");
  other = request();
  other.trained_on = "a GPU";
  refused(other, "--device");
  tiny.tensors["model.norm.weight"].bits[0] = 0x3c00;
  tiny.write(model());
  refused(request(), "MODEL_DIR");
  TinyModel().write(model());
  EXPECT_EQ(quantize_model(request()).layers.size(), 8u);
}

TEST_F(QuantizeModel, TwoRunsDoNotShareAFolder) {
  TinyModel().write(model());
  QuantizeModelRequest first = request();
  first.finished = [&](const LayerReport&, std::size_t done) {
    if (done != 1) return;
    EXPECT_NE(message_of([&] { quantize_model(request()); }).find("another run of vqgen"),
              std::string::npos);
  };
  EXPECT_EQ(quantize_model(first).layers.size(), 8u);
}

TEST_F(QuantizeModel, RefusesBadPlaces) {
  TinyModel().write(model());
  QuantizeModelRequest other = request();
  other.out = model();
  expect_refused(other, {"is in the folder of the model"});
  other.out = model() / "inner";
  expect_refused(other, {"is in the folder of the model"});
  other.out = folder_ / "none" / "out";
  expect_refused(other, {"is no folder that can be written"});
  fs::create_directory(out());
  expect_refused(request(), {"--out", "is there already"});
  fs::remove(out());
  fs::create_directory(partial());
  publish_text(partial() / "mine", "");
  EXPECT_NE(refusal(request()).find("is there without a journal"), std::string::npos);
  EXPECT_TRUE(fs::exists(partial() / "mine"));
  fs::remove_all(partial());
  other = request();
  other.model = folder_ / "none";
  expect_refused(other, {"none: is no folder"});
  other.model = folder_;
  expect_refused(other, {"config.json: cannot read"});
}

TEST_F(QuantizeModel, RefusesBadModelsBeforeItTrains) {
  const auto refused = [&](const TinyModel& tiny, const std::vector<std::string>& words) {
    fs::remove_all(model());
    tiny.write(model());
    expect_refused(request(), words);
  };
  TinyModel tiny;
  tiny.config["quantization_config"] = {{"quant_method", "gptq"}};
  refused(tiny, {"config.json", "quantized already"});
  tiny = TinyModel();
  tiny.config["vision_config"] = Json::object();
  refused(tiny, {"config.json: /vision_config", "more than a decoder of text"});
  tiny = TinyModel();
  tiny.config["is_encoder_decoder"] = true;
  refused(tiny, {"/is_encoder_decoder"});
  tiny = TinyModel();
  tiny.config["num_hidden_layers"] = 3;
  refused(tiny, {"layer 2 of 3", "fetch the model again"});
  tiny = TinyModel();
  tiny.tensors["model.layers.1.self_attn.q_proj.bias"].shape = {32, 2};
  refused(tiny, {"model.layers.1.self_attn.q_proj.weight", "stored transposed"});
  tiny = TinyModel();
  tiny.add("model.layers.1.mlp.experts.gate_up_proj", "model-00002-of-00002.safetensors",
           {2, 64, 64});
  refused(tiny, {"experts.gate_up_proj", "[2, 64, 64]", "--exclude '*.experts.*'"});
  tiny = TinyModel();
  tiny.add("model.layers.1.mlp.odd_proj.weight", "model-00002-of-00002.safetensors", {64, 60});
  refused(tiny, {"odd_proj.weight", "vector_size", "leave it out with --exclude"});
  tiny = TinyModel();
  tiny.tensors["model.layers.1.self_attn.q_proj.weight"].type = TensorType::bf16;
  refused(tiny, {"model.layers.1.self_attn.q_proj.weight", "choose one with --dtype"});
  tiny = TinyModel();  // the last tensor of all
  tiny.tensors["model.layers.1.self_attn.q_proj.weight"].bits.back() = 0x7e00;
  refused(tiny, {"model-00002-of-00002.safetensors", "q_proj.weight", "is nan"});
  TinyModel().write(model());
  QuantizeModelRequest none = request();
  none.exclude = {"*"};
  expect_refused(none, {"no linear layer is left"});
}

TEST_F(QuantizeModel, RefusesAnIndexThatLies) {
  TinyModel().write(model());
  Json index = parse_json_file(model() / "model.safetensors.index.json");
  index["weight_map"]["lm_head.weight"] = "model-00001-of-00002.safetensors";
  publish_text(model() / "model.safetensors.index.json", index.dump());
  expect_refused(request(), {"lm_head.weight", "is not in model-00001", "fetch both again"});
}

TEST_F(QuantizeModel, LeavesOutWhatIsExcluded) {
  TinyModel tiny;
  tiny.add("model.layers.0.mlp.gate.weight", "model-00001-of-00002.safetensors", {2, 64});
  tiny.write(model());
  QuantizeModelRequest wanted = request();
  wanted.exclude = {"*.q_proj", "model.layers.0.*.weight", "nothing"};
  std::vector<std::string> warnings;
  wanted.options.warn = [&](const std::string& text) { warnings.push_back(text); };
  const QuantizeModelResult result = quantize_model(wanted);
  ASSERT_EQ(result.layers.size(), 3u);
  EXPECT_EQ(result.layers[0].module, "model.layers.1.mlp.down_proj");
  ASSERT_FALSE(warnings.empty());
  EXPECT_EQ(warnings[0], "--exclude 'nothing' matches no linear layer");
  const ModelFolder folder = read_model_folder(out());
  EXPECT_EQ(folder.layers.size(), 3u);
  const auto& dense = folder.quantization.modules_to_not_convert;
  EXPECT_NE(std::find(dense.begin(), dense.end(), "model.layers.0.mlp.gate"), dense.end());
}

// An expert's matrices are modules; tensors of all experts stay dense where they are excluded.
TEST_F(QuantizeModel, ExpertsAreModules) {
  TinyModel tiny;
  for (const char* layer : {"0", "1"}) {
    const std::string shard = std::string("model-0000") + (*layer == '0' ? "1" : "2");
    const std::string stem = std::string("model.layers.") + layer + ".mlp.";
    tiny.add(stem + "gate.weight", shard + "-of-00002.safetensors", {2, 64});
    for (const char* expert : {"experts.0.", "experts.1.", "experts.10."}) {
      tiny.add(stem + expert + "gate_proj.weight", shard + "-of-00002.safetensors", {32, 64});
      tiny.add(stem + expert + "down_proj.weight", shard + "-of-00002.safetensors", {64, 32});
    }
    tiny.add(stem + "experts.gate_up_proj", shard + "-of-00002.safetensors", {2, 64, 64});
  }
  tiny.write(model());
  QuantizeModelRequest wanted = request();
  wanted.exclude = {"*.experts.gate_up_proj", "*.layers.0.mlp.experts.*"};
  EXPECT_EQ(quantize_model(wanted).layers.size(), 8u + 6u);
  const ModelFolder folder = read_model_folder(out());
  EXPECT_EQ(folder.layers.size(), 14u);
  const QuantizationConfig& told = folder.quantization;
  EXPECT_EQ(told.weight_shapes.size(), 6u);
  EXPECT_EQ(told.shape_of("model.layers.1.mlp.experts.10.gate_proj")->out_features, 32);
  EXPECT_EQ(told.shape_of("model.layers.1.mlp.experts.10.down_proj")->out_features, 64);
  EXPECT_EQ(told.shape_of("model.layers.1.mlp.down_proj")->in_features, 128);
  const auto is_dense = [&](const std::string& module) {
    return std::ranges::count(told.modules_to_not_convert, module) == 1;
  };
  EXPECT_TRUE(is_dense("model.layers.0.mlp.experts.10.gate_proj"));
  EXPECT_TRUE(is_dense("model.layers.1.mlp.gate"));
  const SafetensorsFile file(out());
  EXPECT_EQ(file.at("model.layers.1.mlp.experts.1.gate_proj.codes").shape.front(), 32);
  EXPECT_EQ(file.at("model.layers.1.mlp.experts.gate_up_proj").shape.size(), 3u);
}

TEST_F(QuantizeModel, TakesOneFileWithoutAnIndex) {
  TinyModel tiny;
  for (auto& [name, tensor] : tiny.tensors) tensor.shard = "model.safetensors";
  tiny.write(model());
  fs::remove(model() / "model.safetensors.index.json");
  quantize_model(request());
  EXPECT_EQ(read_model_folder(out()).layers.size(), 8u);
  EXPECT_TRUE(fs::exists(out() / "model-00001-of-00001.safetensors"));
}

}  // namespace
}  // namespace vqgen
