// GGUF files: blocks decode to the bits of ggml and gguf, and a model becomes a Hugging Face
// folder.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "core/files/digest.h"
#include "quantizer/import/dequantize.h"
#include "quantizer/import/grids.h"
#include "quantizer/import/import_model.h"
#include "quantizer/safetensors.h"
#include "tests/in_folder.h"
#include "tests/message_of.h"
#include "tests/quantizer/gguf_models.h"

namespace vqgen {
namespace {

namespace fs = std::filesystem;

const GgufType* type_named(std::string_view name) {
  for (std::uint32_t id = 0; id < 64; ++id) {
    const GgufType* const type = find_gguf_type(id);
    if (type != nullptr && type->name == name) return type;
  }
  return nullptr;
}

TEST(GgufBlocks, DecodeToTheBitsOfThePackage) {
  const SafetensorsFile file(VQGEN_SOURCE_DIR "/tests/data/checkpoints/gguf.safetensors");
  EXPECT_EQ(file.tensors().size(), 41u);
  for (const TensorInfo& info : file.tensors()) {
    SCOPED_TRACE(info.name);
    const GgufType* const type = type_named(info.name.substr(0, info.name.find('.')));
    ASSERT_NE(type, nullptr);
    std::vector<std::byte> blocks(info.end - info.begin);
    file.read_bytes(info, 0, blocks);
    const std::size_t count = blocks.size() / static_cast<std::size_t>(type->bytes);
    EXPECT_EQ(count * static_cast<std::size_t>(type->bytes), blocks.size());
    std::vector<float> weights(count * static_cast<std::size_t>(type->block));
    type->decode(blocks.data(), count, weights.data());
    EXPECT_EQ(sha256_hex(std::as_bytes(std::span(weights))), file.metadata().at(info.name));
  }
}

TEST(GgufBlocks, GridsAreThoseOfThePackage) {
  const SafetensorsFile file(VQGEN_SOURCE_DIR "/tests/data/checkpoints/gguf.safetensors");
  const std::pair<const char*, const std::vector<std::int8_t>&> grids[] = {
      {"IQ1_S.grid", iq1_grid()},       {"IQ2_XXS.grid", iq2_xxs_grid()},
      {"IQ2_XS.grid", iq2_xs_grid()},   {"IQ2_S.grid", iq2_s_grid()},
      {"IQ3_XXS.grid", iq3_xxs_grid()}, {"IQ3_S.grid", iq3_s_grid()}};
  for (const auto& [name, grid] : grids) {
    EXPECT_EQ(sha256_hex(std::as_bytes(std::span(grid))), file.metadata().at(name)) << name;
  }
}

class ImportGguf : public test::InFolder {
 protected:
  fs::path out() const { return folder_ / "out"; }
  fs::path write(const GgufBuilder& made, const std::string& name = "model.gguf") const {
    publish_text(folder_ / name, made.file());
    return folder_ / name;
  }
  std::string refusal(const ImportRequest& request) const {
    const std::string message = message_of([&] { import_model(request); });
    EXPECT_FALSE(fs::exists(out()));
    EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
    return message;
  }
  void expect_refused(const ImportRequest& request, const std::string& words) const {
    const std::string message = refusal(request);
    EXPECT_NE(message.find(words), std::string::npos) << message;
  }
  // A Llama whose file is changed before it is imported.
  void expect_refused(const std::function<void(GgufBuilder&)>& change,
                      const std::string& words) const {
    GgufBuilder made = gguf_models::llama();
    change(made);
    const fs::path path = write(made);
    const std::string message = refusal({path, out()});
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_NE(message.find("model.gguf"), std::string::npos) << message;
  }
};

TEST_F(ImportGguf, LlamaBecomesAHuggingFaceFolder) {
  const fs::path path = write(gguf_models::llama());
  const ImportReport report = import_model({path, out()});
  ASSERT_EQ(report.kinds.size(), 3u);
  EXPECT_EQ(report.kinds[0].from + report.kinds[1].from + report.kinds[2].from, "F16F32Q8_0");
  EXPECT_EQ(report.kinds[2].to, "F16");
  EXPECT_EQ(report.kinds[2].count, 1u);
  EXPECT_EQ(report.kinds[2].bytes_before, 64u * 96 / 32 * 34);
  EXPECT_EQ(report.kinds[2].bytes_after, 64u * 96 * 2);
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("--like HF_DIR"), std::string::npos);
  const SafetensorsFile file(out());
  EXPECT_EQ(file.tensors().size(), 12u);
  // RoPE's pairs are apart again: row 2 i + j of a head came from row j * 8 + i.
  const std::vector<std::uint16_t> stored = gguf_models::halves(64 * 64, 1);
  const std::vector<std::uint16_t> q = file.read_bits16("model.layers.0.self_attn.q_proj.weight");
  for (std::size_t head = 0; head < 4; ++head) {
    for (std::size_t i = 0; i < 8; ++i) {
      for (std::size_t j = 0; j < 2; ++j) {
        const std::size_t from = (head * 16 + 2 * i + j) * 64, to = (head * 16 + j * 8 + i) * 64;
        EXPECT_TRUE(std::equal(stored.begin() + static_cast<std::ptrdiff_t>(from),
                               stored.begin() + static_cast<std::ptrdiff_t>(from + 64),
                               q.begin() + static_cast<std::ptrdiff_t>(to)))
            << head << ' ' << i << ' ' << j;
      }
    }
  }
  EXPECT_EQ(file.read_bits16("model.layers.0.self_attn.v_proj.weight"),
            gguf_models::halves(32 * 64, 3));
  EXPECT_EQ(file.read_floats("model.norm.weight"), std::vector<float>(64, 1.5f));
  // Blocks of Q8_0 are {1/4, 32 numbers from -16 on}.
  EXPECT_EQ(file.read_floats("model.layers.0.mlp.down_proj.weight")[33], -15 * 0.25f);
  const Json config = parse_json(read_text(out() / "config.json"), "config.json");
  const Json expected = {{"architectures", {"LlamaForCausalLM"}},
                         {"bos_token_id", 1},
                         {"dtype", "float16"},
                         {"head_dim", 16},
                         {"hidden_act", "silu"},
                         {"hidden_size", 64},
                         {"intermediate_size", 96},
                         {"max_position_embeddings", 128},
                         {"model_type", "llama"},
                         {"num_attention_heads", 4},
                         {"num_hidden_layers", 1},
                         {"num_key_value_heads", 2},
                         {"rms_norm_eps", 1e-6},
                         {"rope_scaling", {{"factor", 2.0}, {"rope_type", "linear"}}},
                         {"rope_theta", 500000.0},
                         {"tie_word_embeddings", false},
                         {"vocab_size", 32}};
  EXPECT_EQ(config, expected);
}

TEST_F(ImportGguf, Qwen2AndQwen3HaveTensorsOfTheirOwnAndNoPermutation) {
  for (const char* name : {"qwen2", "qwen3"}) {
    SCOPED_TRACE(name);
    const fs::path path = write(gguf_models::qwen(name));
    import_model({path, out(), {}, DType::bf16});
    const SafetensorsFile file(out());
    const auto q = file.read_floats("model.layers.0.self_attn.q_proj.weight");
    for (std::size_t i = 0; i < q.size(); ++i) {
      const float exact = f16_to_float(gguf_models::halves(64 * 64, 1)[i]);
      ASSERT_EQ(q[i], bf16_to_float(bf16_from_float(exact)));
    }
    EXPECT_EQ(file.find("lm_head.weight"), nullptr);
    EXPECT_EQ(file.find("model.layers.0.self_attn.q_proj.bias") != nullptr,
              std::string_view(name) == "qwen2");
    EXPECT_EQ(file.find("model.layers.0.self_attn.k_norm.weight") != nullptr,
              std::string_view(name) == "qwen3");
    const Json config = parse_json(read_text(out() / "config.json"), "config.json");
    EXPECT_EQ(config["model_type"], name);
    EXPECT_EQ(config["tie_word_embeddings"], true);
    EXPECT_EQ(config["dtype"], "bfloat16");
    fs::remove_all(out());
  }
}

TEST_F(ImportGguf, LikeGivesConfigAndTokenizer) {
  GgufBuilder made = gguf_models::llama();
  made.add("rope_freqs.weight", {8}, 0, std::string(32, '\0'));
  made.real("llama.rope.unheard_of", 1);
  const fs::path path = write(made);
  expect_refused({path, out()}, "llama.rope.unheard_of: is a setting that no config.json");
  const fs::path like = folder_ / "like";
  fs::create_directory(like);
  Json config = {{"model_type", "mistral"},
                 {"hidden_size", 64},
                 {"sliding_window", 4096},
                 {"vocab_size", 32},
                 {"num_hidden_layers", 1}};
  publish_text(like / "config.json", config.dump());
  publish_text(like / "tokenizer.json", "{}");
  publish_text(like / "model.safetensors", "weights");
  const ImportReport report = import_model({path, out(), like});
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("rope_freqs.weight is not carried over"), std::string::npos);
  config["dtype"] = "float16";
  EXPECT_EQ(parse_json(read_text(out() / "config.json"), "config.json"), config);
  EXPECT_EQ(read_text(out() / "tokenizer.json"), "{}");
  fs::remove_all(out());
  const auto refused = [&](const char* key, const Json& value, const std::string& words) {
    Json changed = config;
    changed[key] = value;
    publish_text(like / "config.json", changed.dump());
    expect_refused({path, out(), like}, words);
  };
  refused("hidden_size", 128, "/hidden_size: is 128 where");
  refused("model_type", "qwen2", "model_type is 'qwen2' where");
  refused("tie_word_embeddings", true, "tie_word_embeddings is true where");
  refused("quantization_config", Json::object(), "is not of the unquantized model");
}

TEST_F(ImportGguf, SplitsAreOneModel) {
  GgufBuilder first = gguf_models::llama();
  GgufBuilder second;
  import_model({write(first), out()});
  fs::rename(out(), folder_ / "whole");
  second.tensors.assign(first.tensors.begin() + 5, first.tensors.end());
  first.tensors.resize(5);
  for (std::uint32_t i = 0; i < 2; ++i) {
    GgufBuilder& each = i == 0 ? first : second;
    each.number("split.no", i);
    each.number("split.count", 2);
    each.number("split.tensors.count", 12);
  }
  const fs::path path = write(first, "m-00001-of-00002.gguf");
  expect_refused({path, out()}, "m-00002-of-00002.gguf: is not there");
  expect_refused({write(second, "m-00002-of-00002.gguf"), out()},
                 "is split 2 of 2; give the first");
  import_model({path, out()});
  const SafetensorsFile whole(folder_ / "whole"), parts(out());
  ASSERT_EQ(whole.tensors().size(), parts.tensors().size());
  for (const TensorInfo& info : whole.tensors()) {
    EXPECT_EQ(whole.read_bits16(info.name), parts.read_bits16(info.name)) << info.name;
  }
  fs::remove_all(out());
  GgufBuilder twice = second;
  twice.tensors.push_back(first.tensors[0]);
  write(twice, "m-00002-of-00002.gguf");
  expect_refused({path, out()}, "is there twice");
  GgufBuilder numbered;
  numbered.tensors = second.tensors;
  numbered.number("split.no", 0);
  numbered.number("split.count", 2);
  write(numbered, "m-00002-of-00002.gguf");
  expect_refused({path, out()}, "/split.no: is 0 where the file's name says 1");
  second.tensors.pop_back();
  write(second, "m-00002-of-00002.gguf");
  expect_refused({path, out()}, "/split.tensors.count: is 12, and the splits hold 11");
}

TEST_F(ImportGguf, RefusesHeadersThatLie) {
  const auto tensor = [](GgufBuilder& made) -> GgufBuilder::Tensor& {
    return made.find("blk.0.ffn_up.weight");
  };
  expect_refused([](auto& made) { made.version = 1; }, "is GGUF of version 1");
  expect_refused([](auto& made) { made.version = 3u << 24; }, "is a big-endian GGUF file");
  for (const std::uint32_t alignment : {0u, 24u, 1u << 31}) {
    expect_refused([&](auto& made) { made.number("general.alignment", alignment); },
                   "/general.alignment: is");
  }
  expect_refused([](auto& made) { made.number("llama.block_count", 1); },
                 "'llama.block_count' is there twice");
  expect_refused([](auto& made) { made.key_count = std::uint64_t{1} << 63; }, "keys of metadata");
  expect_refused([](auto& made) { made.key("x", 13, ""); }, "key 'x' has the unknown type 13");
  expect_refused(
      [](auto& made) { made.key("x", 9, std::string("\x4\0\0\0\0\0\0\0\0\0\0\x80", 12)); },
      "is cut short");
  expect_refused([](auto& made) { made.key("x", 9, std::string("\x9\0\0\0\1\0\0\0\0\0\0\0", 12)); },
                 "is an array of type 9");
  expect_refused([&](auto& made) { tensor(made).name = "a\nb"; }, "holds a control character");
  expect_refused([&](auto& made) { tensor(made).axes.assign(5, 1); }, "has 5 axes");
  expect_refused(
      [&](auto& made) {
        tensor(made).axes = {64, std::uint64_t{1} << 63};
      },
      "tensor 'blk.0.ffn_up.weight': has an axis of 9223372036854775808");
  expect_refused([&](auto& made) { tensor(made).axes.assign(4, std::uint64_t{1} << 40); },
                 "which no file holds");
  expect_refused([&](auto& made) { tensor(made).axes = {0, 96}; }, "has an axis of 0");
  expect_refused([&](auto& made) { tensor(made).type = 99; }, "has the unknown type 99");
  expect_refused([&](auto& made) { tensor(made).type = 40; }, "is NVFP4, which is not read");
  expect_refused([&](auto& made) { tensor(made).type = 34; }, "is TQ1_0, which is not read");
  expect_refused([&](auto& made) { tensor(made).type = 12; },
                 "has rows of 64 weights, and Q4_K has blocks of 256");
  expect_refused([&](auto& made) { tensor(made).moved = 1; }, "which the alignment 32 does not");
  expect_refused([&](auto& made) { tensor(made).moved = ~std::uint64_t{31}; }, "they overlap");
  expect_refused([&](auto& made) { tensor(made).moved = std::uint64_t{1} << 63; }, "is cut short");
  expect_refused([&](auto& made) { tensor(made).axes = {64, 97}; }, "they overlap");
  expect_refused([&](auto& made) { tensor(made).axes = {64, 95}; }, "has shape [95, 64] where");
  expect_refused([&](auto& made) { tensor(made).name = "blk.0.attn_q.weight"; }, "is there twice");
  expect_refused([&](auto& made) { tensor(made).name = "blk.0.ffn_up_exps.weight"; },
                 "tensor 'blk.0.ffn_up.weight': is not there");
  expect_refused([](auto& made) { made.add("blk.0.ffn_up_exps.weight", {1}, 0, "abcd"); },
                 "is of a mixture of experts");
  expect_refused([](auto& made) { made.add("other", {1}, 0, "abcd"); }, "is no tensor of llama");
  expect_refused([](auto& made) { made.find("output_norm.weight").bytes.replace(0, 4, 4, '\x7f'); },
                 "holds a number that f16 does not hold");
}

TEST_F(ImportGguf, RefusesMetadataThatDoesNotFit) {
  const auto llama_with = [](const std::function<void(GgufBuilder&)>& keys) {
    return [keys](GgufBuilder& made) {
      made.keys.clear();
      made.key_count = 0;
      keys(made);
    };
  };
  expect_refused(llama_with([](auto&) {}), "general.architecture");
  expect_refused(llama_with([](auto& made) { made.word("general.architecture", "mamba"); }),
                 "is 'mamba', and llama (also Mistral and Mixtral), qwen2, qwen3 and qwen3moe are");
  expect_refused(llama_with([](auto& made) { made.word("general.architecture", "llama"); }),
                 "llama.block_count");
  expect_refused(llama_with([](auto& made) {
                   made.word("general.architecture", "llama");
                   made.number("llama.block_count", 1 << 24);
                 }),
                 "is 16777216, and the file has 12 tensors");
  expect_refused([](auto& made) { made.number("llama.attention.value_length", 32); },
                 "is 32 where heads have 16 channels");
  expect_refused([](auto& made) { made.number("llama.expert_count", 8); },
                 "'llama.expert_used_count' is missing");
  expect_refused([](auto& made) { made.number("llama.expert_shared_count", 1); },
                 "/llama.expert_shared_count: is a setting that no config.json is made of");
}

TEST_F(ImportGguf, RefusesFilesThatAreCutShort) {
  const std::string whole = gguf_models::llama().file();
  const fs::path path = folder_ / "model.gguf";
  for (std::size_t length = 0; length < whole.size(); length += length < 2000 ? 7 : 1000) {
    std::ofstream(path, std::ios::binary).write(whole.data(), static_cast<long>(length));
    const std::string message = refusal({path, out()});
    EXPECT_TRUE(message.starts_with(path.string())) << message;
  }
  expect_refused({folder_ / "none", out()}, "none");
  expect_refused({folder_, folder_.string() + "-out"}, "but model.gguf; give a GGUF file itself");
}

}  // namespace
}  // namespace vqgen
