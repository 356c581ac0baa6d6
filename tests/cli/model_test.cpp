// The tool on model folders: quantize, a kill and what follows it, inspect.
#include "core/files/files.h"
#include "tests/cli/tool.h"
#include "tests/tiny_model.h"

namespace vqgen {
namespace {

constexpr const char* kFormat = R"({"vector_size": 8, "index_bits": 4, "num_codebooks": 2})";

class ModelTool : public testing::Test {
 protected:
  Arguments quantize(const std::string& out, const Arguments& more = {}) const {
    Arguments arguments{"quantize", folder.path("model"), "--out", folder.path(out), "--format",
                        kFormat,    "--device",           "cpu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  // The folder's files, each with its content.
  std::map<std::string, std::string> content(const std::string& name) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path(name))) {
      files[entry.path().filename().string()] = read_text(entry.path());
    }
    return files;
  }

  Folder folder;
};

TEST_F(ModelTool, QuantizesAndTellsOfEachLayer) {
  TinyModel().write(folder.path("model"));
  folder.file("model/weights.gguf", "GGUF");
  const Outcome outcome = vqgen(quantize("out"));
  expect_success(outcome);
  const std::vector<std::string> said = lines_of(outcome.err);
  ASSERT_EQ(said.size(), 11u) << outcome.err;
  EXPECT_TRUE(said[0].starts_with("8 linear layers to quantize, ")) << said[0];
  EXPECT_EQ(said[1], "dense: lm_head, model.embed_tokens");
  EXPECT_EQ(said[2], "not copied: weights.gguf");
  EXPECT_TRUE(said[3].starts_with("[1/8] model.layers.0.mlp.down_proj  d8b4x2  relative error 0."))
      << said[3];
  EXPECT_EQ(lines_of(outcome.out).back(), "trained on cpu");
  const Json again = document_of(vqgen(quantize("again", {"--json"})));
  EXPECT_EQ(again["layers"].size(), 8u);
  EXPECT_EQ(again["left_out"], Json{"weights.gguf"});
  EXPECT_EQ(content("out"), content("again"));
}

// The tool is killed as a machine that fails would end it, and goes on.
TEST_F(ModelTool, GoesOnAfterAKill) {
  TinyModel tiny(1);
  for (int i = 0; i < 12; ++i) {
    tiny.add("model.layers.0.part" + std::to_string(i) + ".weight",
             "model-00001-of-00002.safetensors", {512, 512});
  }
  tiny.write(folder.path("model"));
  expect_success(vqgen(quantize("whole")));
  const std::string journal = folder.path("out.partial") + "/journal.jsonl";
  Arguments script{"-c",
                   "journal=$1; shift; \"$@\" 2>/dev/null & child=$!; "
                   "until grep -qs '\"layer\"' \"$journal\"; do sleep 0.01; done; "
                   "kill -9 $child; wait $child 2>/dev/null; exit 0",
                   "bash", journal, VQGEN_TOOL};
  for (const std::string& each : quantize("out")) script.push_back(each);
  expect_success(run_program("bash", script));
  ASSERT_TRUE(std::filesystem::exists(journal));
  EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
  expect_failure(quantize("out", {"--seed", "2"}), 2, {"out.partial", "'--seed'", "1", "2"});
  expect_failure({"inspect", folder.path("out")}, 2, {"out"});
  const Outcome outcome = vqgen(quantize("out"));
  expect_success(outcome);
  EXPECT_NE(outcome.err.find("going on where an earlier run ended"), std::string::npos)
      << outcome.err;
  EXPECT_EQ(content("out"), content("whole"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("out.partial")));
  expect_failure(quantize("out"), 2, {"--out", "is there already", "remove it"});
}

TEST_F(ModelTool, RefusesOptionsOfTensors) {
  TinyModel().write(folder.path("model"));
  const auto refused = [&](const Arguments& more, const std::vector<std::string>& words) {
    expect_failure(quantize("out", more), 2, words);
    EXPECT_FALSE(std::filesystem::exists(folder.path("out.partial")));
  };
  refused({"--input", folder.path("model")}, {"give either a model's folder or --input"});
  refused({"--weights", "*"}, {"--weights goes with --input"});
  refused({"--reorder"}, {"--reorder goes with --input"});
  refused({"--keep-original"}, {"--keep-original goes with --input"});
  refused({"--exclude", "*"}, {"no linear layer is left", "--exclude"});
  expect_failure({"quantize", folder.path("model"), "--out", folder.path("out")}, 2,
                 {"a model's folder goes with --format"});
  expect_failure({"quantize", "--out", folder.path("out")}, 2,
                 {"give a model's folder, or --input"});
  Arguments cache = quantize("out");
  *(std::find(cache.begin(), cache.end(), "--format") + 1) = "vecinfer-d4b8";
  expect_failure(cache, 2, {"model.layers.0.mlp.down_proj.weight"});
}

// A relative path of a folder that is not there yet.
TEST_F(ModelTool, RefusesToWriteIntoTheModel) {
  TinyModel().write(folder.path("model"));
  const Outcome outcome = run_program(
      "bash", {"-c", "cd \"$1\" && exec \"$2\" quantize . --out inner --format aqlm-2x8i8", "bash",
               folder.path("model"), VQGEN_TOOL});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("--out inner: is in the folder of the model"), std::string::npos)
      << outcome.err;
}

TEST_F(ModelTool, RefusesADiskThatIsFull) {
  TinyModel().write(folder.path("model"));
  std::filesystem::create_directory(folder.path("small"));
  const std::string mount = "mount -t tmpfs -o size=16k tmpfs " + folder.path("small");
  if (run_program("unshare", {"-m", "bash", "-c", mount}).exit_code != 0) {
    GTEST_SKIP() << "this user cannot mount a file system";
  }
  Arguments script{"-m", "bash", "-c", mount + " && exec \"$@\"", "bash", VQGEN_TOOL};
  for (const std::string& each : quantize("small/out")) script.push_back(each);
  const Outcome outcome = run_program("unshare", script);
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("16384 free; free some, or choose another place"), std::string::npos)
      << outcome.err;
}

TEST_F(ModelTool, InspectSaysBitsAndMemory) {
  TinyModel().write(folder.path("model"));
  expect_success(vqgen(quantize("out")));
  const Json json = document_of(
      vqgen({"inspect", folder.path("out"), "--context", "1024", "--batch", "2", "--key-format",
             "vecinfer-d4b8i8", "--value-format", "vecinfer-d4b8i8", "--json"}));
  const double weights = 2.0 * (64 * 64 + 32 * 64 + 2 * 128 * 64);
  const double codes = weights / 8;  // bytes: 4 bits for each of two stages of 8 weights
  const double books = 8.0 * 2 * 16 * 8 * 2;
  EXPECT_EQ(json["linear_layers"], 8);
  EXPECT_EQ(json["quantized_bytes"], codes + books);
  EXPECT_EQ(json["codebook_bytes"], books);
  EXPECT_EQ(json["bits_per_weight"], 8 * (codes + books) / weights);
  EXPECT_EQ(json["formats"][0]["format"], "d8b4x2");
  EXPECT_EQ(json["dense_bytes"], 2.0 * (2 * 32 * 64 + 63 + 2 * (64 + 64)));
  EXPECT_EQ(json["fp16_cache_bytes"], 2.0 * 2 * 2 * 2 * 16 * 1024 * 2);
  // Two layers of keys and values: codes of two sequences, and a codebook and scale per head; keys
  // have a factor per channel.
  const double cached =
      2.0 * 2 * (2.0 * 2 * 1024 * 16 / 4 + 2 * (2.0 * 256 * 4 + 4)) + 2.0 * 2 * 16 * 4;
  EXPECT_EQ(json["cache_bytes"], cached);
  EXPECT_EQ(json["dense_part_bytes"], 2.0 * 128 * 64);  // of the largest layers
  EXPECT_EQ(json["total_bytes"],
            cached + codes + books + json["dense_bytes"].get<double>() + 2.0 * 128 * 64);
  const Outcome outcome = vqgen({"inspect", folder.path("out"), "--context", "1024"});
  expect_success(outcome);
  EXPECT_NE(outcome.out.find("d8b4x2  8 linear layers"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("1 sequences of 1024 tokens, 2 layers of 2 KV heads of 16"),
            std::string::npos)
      << outcome.out;
}

TEST_F(ModelTool, InspectRefusesWhatItCannotSay) {
  TinyModel tiny;
  tiny.write(folder.path("model"));
  expect_failure({"inspect", folder.path("model")}, 2, {"config.json", "not quantized"});
  expect_failure({"inspect", folder.path("none")}, 2, {"config.json: cannot read"});
  for (const char* sizes : {"num_attention_heads", "num_key_value_heads"}) tiny.config.erase(sizes);
  tiny.write(folder.path("model"));
  expect_success(vqgen(quantize("out")));
  const std::string out = folder.path("out");
  expect_success(vqgen({"inspect", out}));
  expect_failure({"inspect", out, "--context", "64"}, 2, {"KV heads are 0", "leave --context out"});
  expect_failure({"inspect", out, "--context", "64", "--key-format", "int8-token"}, 2,
                 {"--key-format goes with --value-format"});
  expect_failure({"inspect", out, "--key-format", "int8-token", "--value-format", "int8-token"}, 2,
                 {"give --context"});
}

}  // namespace
}  // namespace vqgen
