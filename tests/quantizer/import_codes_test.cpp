// GGUF's linear layers with the codes of i-quants: the folder's weights are those
// that ggml decodes, and all other layers are dense.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>

#include "core/error.h"
#include "core/profiles.h"
#include "quantizer/encode.h"
#include "quantizer/import/gguf_codes.h"
#include "quantizer/import/import_model.h"
#include "quantizer/model_folder.h"
#include "tests/in_folder.h"
#include "tests/message_of.h"
#include "tests/quantizer/gguf_models.h"

namespace vqgen {
namespace {

namespace fs = std::filesystem;
using gguf_models::random_blocks;
using gguf_models::wide_llama;

constexpr std::uint32_t kF16 = 1, kIq1SId = 19, kIq1MId = 29, kIq2XxsId = 16, kIq2XsId = 17,
                        kIq3XxsId = 18, kIq3SId = 21, kIq2SId = 22, kIq4XsId = 23;

std::vector<float> dequantized(const GgufBuilder::Tensor& tensor) {
  const GgufType& type = *find_gguf_type(tensor.type);
  const std::size_t blocks = tensor.bytes.size() / static_cast<std::size_t>(type.bytes);
  std::vector<float> weights(blocks * static_cast<std::size_t>(type.block));
  type.decode(std::as_bytes(std::span(tensor.bytes)).data(), blocks, weights.data());
  return weights;
}

// Rows of heads of 64 in the order of Hugging Face: row 2 i + j of a head becomes j * 32 + i.
std::vector<float> permuted(const std::vector<float>& weights, std::size_t columns) {
  std::vector<float> result(weights.size());
  for (std::size_t row = 0; row < weights.size() / columns; ++row) {
    const std::size_t to = row / 64 * 64 + row % 2 * 32 + row % 64 / 2;
    std::copy_n(weights.begin() + static_cast<std::ptrdiff_t>(row * columns), columns,
                result.begin() + static_cast<std::ptrdiff_t>(to * columns));
  }
  return result;
}

class ImportCodes : public test::InFolder {
 protected:
  fs::path out() const { return folder_ / "out"; }
  ImportReport import(const GgufBuilder& made, bool dense = false, DType dtype = DType::f16) const {
    publish_text(folder_ / "model.gguf", made.file());
    ImportRequest request{folder_ / "model.gguf", out()};
    request.dense = dense;
    request.dtype = dtype;
    return import_model(request);
  }
  // The weights of a layer of the folder, by vqgen's own decoder.
  std::vector<float> decoded(const std::string& module) const {
    const ModelFolder read = read_model_folder(out());
    const auto layer = std::ranges::find(read.layers, module, &QuantizedLayer::module);
    if (layer == read.layers.end()) return {};
    const SafetensorsFile file(out());
    QuantizedTensor tensor = weight_sizes(layer->format, read.quantization.dtype,
                                          layer->out_features, layer->in_features, module);
    for (const std::int32_t word : file.read_i32(module + ".codes")) {
      tensor.codes.push_back(static_cast<std::uint32_t>(word));
    }
    tensor.codebooks = file.read_bits16(module + ".codebooks");
    if (layer->format.stage_scales) {
      tensor.stage_scales = file.read_floats(module + ".stage_scales");
    }
    return reconstruct(tensor).data;
  }
};

TEST(GgufCodes, FormatsAreThePresets) {
  const std::map<std::string, std::string> presets{
      {"IQ1_S", "iq1-s"}, {"IQ1_M", "iq1-m"},     {"IQ2_XXS", "iq2-xxs"}, {"IQ2_XS", "iq2-xs"},
      {"IQ2_S", "iq2-s"}, {"IQ3_XXS", "iq3-xxs"}, {"IQ3_S", "iq3-s"},     {"Q2_K", "q2-k"}};
  std::size_t found = 0;
  for (std::uint32_t id = 0; id < 64; ++id) {
    const GgufType* const type = find_gguf_type(id);
    const auto format = type == nullptr ? std::nullopt : gguf_codes_format(*type);
    if (!format) continue;
    ++found;
    ASSERT_TRUE(presets.contains(type->name)) << type->name;
    EXPECT_EQ(*format, find_format(presets.at(type->name), "test"));
  }
  EXPECT_EQ(found, presets.size());
}

TEST(GgufCodes, SizesThatNoKernelReadsHaveAReason) {
  const VqFormat format = gguf_codes_format(*find_gguf_type(kIq3SId)).value();
  EXPECT_EQ(no_kernel_reads(format, DType::f16, 512, 256), "");
  EXPECT_NE(no_kernel_reads(format, DType::f16, (1 << 24) + 1, 256).find("weights are 16777217 x"),
            std::string::npos);
  EXPECT_NE(no_kernel_reads(format, DType::f16, 512, 128).find("no whole blocks of 256"),
            std::string::npos);
}

// Products of a block's scale (11 bits), 2 s + 1 (5) and an entry (6) are exact in float, and so
// are those that Q2_K subtracts, so there is no tolerance.
TEST_F(ImportCodes, WeightsAreThoseOfTheBlocks) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const std::uint32_t id :
         {kIq1SId, kIq1MId, kIq2XxsId, kIq2XsId, kIq2SId, kIq3XxsId, kIq3SId, kQ2KType}) {
      GgufBuilder made = wide_llama({id});
      SCOPED_TRACE(find_gguf_type(id)->name);
      const ImportReport report = import(made, false, dtype);
      const auto kind = std::ranges::find(report.kinds, std::string(find_gguf_type(id)->name),
                                          &ImportedKind::from);
      ASSERT_NE(kind, report.kinds.end());
      EXPECT_EQ(kind->to, short_name(gguf_codes_format(*find_gguf_type(id)).value()));
      EXPECT_EQ(fmt::format("{} {}", kind->count, kind->unit), "14 linear layers");
      for (const char* layer : {"0", "1"}) {
        const auto stored = [&](const char* name) {
          return dequantized(made.find(fmt::format("blk.{}.{}.weight", layer, name)));
        };
        const auto written = [&](const char* name) {
          return decoded(fmt::format("model.layers.{}.{}", layer, name));
        };
        EXPECT_EQ(written("self_attn.q_proj"), permuted(stored("attn_q"), 256));
        EXPECT_EQ(written("self_attn.k_proj"), permuted(stored("attn_k"), 256));
        EXPECT_EQ(written("self_attn.v_proj"), stored("attn_v"));
        EXPECT_EQ(written("self_attn.o_proj"), stored("attn_output"));
        EXPECT_EQ(written("mlp.gate_proj"), stored("ffn_gate"));
        EXPECT_EQ(written("mlp.up_proj"), stored("ffn_up"));
        EXPECT_EQ(written("mlp.down_proj"), stored("ffn_down"));
      }
      fs::remove_all(out());
    }
  }
}

TEST_F(ImportCodes, TypesAreMixed) {
  GgufBuilder made = wide_llama({kIq2XxsId, kIq3SId, kIq4XsId, kF16, kIq3XxsId, kIq2XxsId});
  const ImportReport report = import(made);
  const ModelFolder read = read_model_folder(out());
  const SafetensorsFile file(out());
  EXPECT_EQ(read.quantization.format, find_format("iq2-xxs", "test"));
  std::size_t kept = 0;
  std::map<std::uint32_t, std::size_t> counts;
  for (int layer = 0; layer < 2; ++layer) {
    const std::pair<const char*, const char*> names[] = {
        {"attn_v", "self_attn.v_proj"}, {"attn_output", "self_attn.o_proj"},
        {"ffn_gate", "mlp.gate_proj"},  {"ffn_up", "mlp.up_proj"},
        {"ffn_down", "mlp.down_proj"},  {"attn_q", "self_attn.q_proj"},
        {"attn_k", "self_attn.k_proj"}};
    for (const auto& [stored, becomes] : names) {
      const GgufBuilder::Tensor& tensor = made.find(fmt::format("blk.{}.{}.weight", layer, stored));
      const std::string module = fmt::format("model.layers.{}.{}", layer, becomes);
      SCOPED_TRACE(module);
      const bool codes = gguf_codes_format(*find_gguf_type(tensor.type)).has_value();
      ++counts[tensor.type];
      kept += codes;
      EXPECT_EQ(file.find(module + ".codes") != nullptr, codes);
      EXPECT_EQ(file.find(module + ".weight") != nullptr, !codes);
      EXPECT_EQ(std::ranges::count(read.quantization.modules_to_not_convert, module),
                codes ? 0 : 1);
      if (!codes) continue;
      EXPECT_EQ(read.quantization.format_of(module),
                gguf_codes_format(*find_gguf_type(tensor.type)));
      if (std::string_view(stored) == "attn_q" || std::string_view(stored) == "attn_k") {
        EXPECT_EQ(decoded(module), permuted(dequantized(tensor), 256));
      } else {
        EXPECT_EQ(decoded(module), dequantized(tensor));
      }
    }
  }
  EXPECT_EQ(counts.size(), 5u);
  EXPECT_EQ(read.layers.size(), kept);
  for (const char* module : {"model.embed_tokens", "lm_head"}) {
    EXPECT_EQ(std::ranges::count(read.quantization.modules_to_not_convert, module), 1);
  }
  const auto dense = std::ranges::find(report.kinds, "IQ4_XS", &ImportedKind::from);
  ASSERT_NE(dense, report.kinds.end());
  EXPECT_EQ(dense->to, "F16");
}

// Expert `number` of 3.
std::vector<float> of_expert(const std::vector<float>& weights, std::size_t number) {
  const auto size = static_cast<std::ptrdiff_t>(weights.size() / 3);
  const auto first = weights.begin() + static_cast<std::ptrdiff_t>(number) * size;
  return {first, first + size};
}

TEST_F(ImportCodes, ExpertsAreLayersOfTheirOwn) {
  struct Names {
    const char* architecture;
    const char* module;
    std::array<const char*, 3> projections;
    const char* router;
    std::uint32_t down;  // the type of the third
    const char* type;
    unsigned block_bytes;
  };
  const Names each[] = {{"llama",
                         "block_sparse_moe.experts",
                         {"w1", "w3", "w2"},
                         "block_sparse_moe.gate",
                         kQ2KType,
                         "Q2_K",
                         84},
                        {"qwen3moe",
                         "mlp.experts",
                         {"gate_proj", "up_proj", "down_proj"},
                         "mlp.gate",
                         kIq3SId,
                         "IQ3_S",
                         110}};
  for (const Names& names : each) {
    SCOPED_TRACE(names.architecture);
    GgufBuilder made =
        gguf_models::wide_mixture(names.architecture, {kIq2XxsId, kIq2XxsId, names.down});
    const ImportReport report = import(made);
    const auto kind = std::ranges::find(report.kinds, std::string(names.type), &ImportedKind::from);
    EXPECT_EQ(report.notes.size(), 1u);  // that there is no tokenizer
    ASSERT_NE(kind, report.kinds.end());
    EXPECT_EQ(fmt::format("{} {}", kind->count, kind->unit), "3 linear layers");
    EXPECT_EQ(kind->bytes_before, 3u * 512 * 256 / 256 * names.block_bytes);
    const ModelFolder read = read_model_folder(out());
    EXPECT_EQ(read.layers.size(), 9u);
    // One pattern for the experts that differ.
    ASSERT_EQ(read.quantization.overrides.size(), 1u);
    EXPECT_EQ(read.quantization.overrides[0].modules,
              fmt::format("model.layers.0.{}.*.{}", names.module, names.projections[2]));
    const char* const stored[] = {"blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight",
                                  "blk.0.ffn_down_exps.weight"};
    for (std::size_t i = 0; i < 3; ++i) {
      const std::vector<float> all = dequantized(made.find(stored[i]));
      for (std::size_t expert = 0; expert < 3; ++expert) {
        EXPECT_EQ(decoded(fmt::format("model.layers.0.{}.{}.{}", names.module, expert,
                                      names.projections[i])),
                  of_expert(all, expert));
      }
    }
    const SafetensorsFile file(out());
    EXPECT_EQ(file.read_bits16(fmt::format("model.layers.0.{}.weight", names.router)),
              gguf_models::halves(3 * 256, 5));
    EXPECT_EQ(std::ranges::count(read.quantization.modules_to_not_convert,
                                 fmt::format("model.layers.0.{}", names.router)),
              1);
    fs::remove_all(out());
  }
}

TEST_F(ImportCodes, ExpertsMayBeDense) {
  GgufBuilder made = gguf_models::wide_mixture("qwen3moe", {kIq2XxsId, kIq2XxsId, kIq4XsId});
  for (const bool dense : {false, true}) {
    const ImportReport report = import(made, dense);
    EXPECT_EQ(std::ranges::count_if(report.notes,
                                    [](const std::string& note) {
                                      return note.starts_with(
                                          "model.layers.0.mlp.experts.*.down_proj are dense, and ");
                                    }),
              dense ? 0 : 1);
    const SafetensorsFile file(out());
    const std::vector<float> exact = dequantized(made.find("blk.0.ffn_down_exps.weight"));
    for (std::size_t expert = 0; expert < 3; ++expert) {
      const std::string name =
          fmt::format("model.layers.0.mlp.experts.{}.down_proj.weight", expert);
      ASSERT_NE(file.find(name), nullptr);
      EXPECT_EQ(file.at(name).shape, (std::vector<std::int64_t>{256, 512}));
      const std::vector<float> own = of_expert(exact, expert);
      const std::vector<std::uint16_t> written = file.read_bits16(name);
      for (std::size_t i = 0; i < own.size(); ++i) ASSERT_EQ(written[i], f16_from_float(own[i]));
    }
    EXPECT_EQ(file.find("model.layers.0.mlp.experts.2.up_proj.weight") != nullptr, dense);
    if (!dense) {
      const auto modules = read_model_folder(out()).quantization.modules_to_not_convert;
      EXPECT_EQ(std::ranges::count(modules, "model.layers.0.mlp.experts.*.down_proj"), 1);
    }
    fs::remove_all(out());
  }
  const auto config = [&](const char* architecture) {
    import(gguf_models::wide_mixture(architecture, {kIq2XxsId, kIq2XxsId, kIq3SId}), true);
    const Json json = parse_json(read_text(out() / "config.json"), "config.json");
    fs::remove_all(out());
    return json;
  };
  const Json qwen = config("qwen3moe"), mixtral = config("llama");
  EXPECT_EQ(qwen["architectures"][0], "Qwen3MoeForCausalLM");
  EXPECT_EQ(qwen["model_type"], "qwen3_moe");
  EXPECT_EQ(qwen["num_experts"], 3);
  EXPECT_EQ(qwen["num_experts_per_tok"], 2);
  EXPECT_EQ(qwen["moe_intermediate_size"], 512);
  EXPECT_EQ(qwen["intermediate_size"], 1024);
  EXPECT_EQ(qwen["norm_topk_prob"], true);
  EXPECT_EQ(mixtral["model_type"], "mixtral");
  EXPECT_EQ(mixtral["num_local_experts"], 3);
  EXPECT_EQ(mixtral["intermediate_size"], 512);
}

TEST_F(ImportCodes, ExpertsThatDoNotFitAreRefused) {
  const auto refused = [&](const std::function<void(GgufBuilder&)>& change,
                           const std::string& words) {
    GgufBuilder made = gguf_models::wide_mixture("qwen3moe", {kIq2XxsId, kIq2XxsId, kIq3SId});
    change(made);
    const std::string message = message_of([&] { import(made); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_FALSE(fs::exists(out()));
  };
  refused(
      [](auto& made) {
        made.find("blk.0.ffn_up_exps.weight").axes = {256, 768, 2};
      },
      "'blk.0.ffn_up_exps.weight': has shape [2, 768, 256] where the metadata asks for "
      "[3, 512, 256]");
  refused([](auto& made) { made.find("blk.0.ffn_gate_inp.weight").name = "blk.0.ffn_gate.weight"; },
          "'blk.0.ffn_gate_inp.weight': is not there");
  refused([](auto& made) { gguf_models::add_floats(made, "blk.0.ffn_up_shexp.weight", 256); },
          "'blk.0.ffn_up_shexp.weight': is no tensor of qwen3moe");
}

TEST_F(ImportCodes, EmbeddingsAndLmHeadAreDense) {
  GgufBuilder made = wide_llama({kIq3SId});
  for (const char* name : {"token_embd.weight", "output.weight"}) {
    GgufBuilder::Tensor& tensor = made.find(name);
    tensor.type = kIq3SId;
    tensor.bytes = random_blocks(110, 64 * 256 / 256, 5);
  }
  import(made);
  const SafetensorsFile file(out());
  EXPECT_NE(file.find("model.embed_tokens.weight"), nullptr);
  EXPECT_NE(file.find("lm_head.weight"), nullptr);
}

TEST_F(ImportCodes, DenseIsOnRequest) {
  GgufBuilder made = wide_llama({kIq2XxsId});
  import(made, true);
  const SafetensorsFile file(out());
  for (const TensorInfo& info : file.tensors()) EXPECT_TRUE(info.name.ends_with(".weight"));
  const auto weights = file.read_bits16("model.layers.0.mlp.up_proj.weight");
  const auto exact = dequantized(made.find("blk.0.ffn_up.weight"));
  ASSERT_EQ(weights.size(), exact.size());
  for (std::size_t i = 0; i < exact.size(); ++i) ASSERT_EQ(weights[i], f16_from_float(exact[i]));
  EXPECT_FALSE(read_model_config(out()).quantization);
  ImportRequest folder{out(), folder_ / "again"};
  folder.dense = true;
  EXPECT_NE(message_of([&] { import_model(folder); }).find("--dense goes with a GGUF file"),
            std::string::npos);
}

TEST_F(ImportCodes, ScalesAreFinite) {
  struct Case {
    std::uint32_t type;
    std::size_t at;  // of the second block's f16
  };
  for (const auto& [type, at] :
       {Case{kIq2XxsId, 66}, Case{kQ2KType, 84 + 80}, Case{kQ2KType, 84 + 82}}) {
    for (const unsigned scale : {0x7c00u, 0x7e00u, 0x7bffu}) {
      GgufBuilder made = wide_llama({type});
      std::string& blocks = made.find("blk.0.ffn_up.weight").bytes;
      blocks[at] = static_cast<char>(scale & 255);
      blocks[at + 1] = static_cast<char>(scale >> 8);
      const std::string message = message_of([&] { import(made); });
      EXPECT_NE(message.find("'blk.0.ffn_up.weight': holds a number that f16 does not hold"),
                std::string::npos)
          << message;
      EXPECT_FALSE(fs::exists(out()));
      EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
    }
  }
}

}  // namespace
}  // namespace vqgen
