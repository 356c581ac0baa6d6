// The input of quantize: given layouts, configs that must fit, omitted tensors, shards; and runs of
// bundles that do not fit, refused before anything is compiled.
#include <algorithm>

#include "core/files/files.h"
#include "quantizer/safetensors.h"
#include "tests/cli/tiny_bundle.h"
#include "tests/write_safetensors.h"

namespace vqgen {
namespace {

class QuantizeTool : public testing::Test {
 protected:
  Arguments with(Arguments arguments, const Arguments& more) const {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::string config(const Json& json) const { return folder.file("config.json", json.dump()); }

  // A file of matrices of ones, 64 x 128.
  void matrices(const std::string& name, const std::vector<std::string>& tensors) const {
    std::vector<std::uint16_t> ones(64 * 128, 0x3c00);
    for (std::size_t i = 0; i < ones.size(); ++i) ones[i] += static_cast<std::uint16_t>(i % 97);
    std::vector<TensorView> views;
    for (const std::string& each : tensors) {
      views.push_back(tensor_view(each, TensorType::f16, {64, 128}, ones));
    }
    write_safetensors(folder.path(name), views, {});
  }
  Arguments quantize_matrices(const std::string& input) const {
    return {"quantize", "--input",          input,
            "--out",    folder.path("out"), "--weights",
            "*.weight", "--format",         R"({"vector_size": 8, "index_bits": 4})"};
  }

  Folder folder;
};

TEST_F(QuantizeTool, SaysHeadsTokensAndDimBeforeItTrains) {
  const std::string tensors = write_tiny_tensors(folder);
  const Arguments cache = quantize_tiny_cache(tensors, folder.path("cache"));
  const Outcome outcome = vqgen(cache);
  expect_success(outcome);
  EXPECT_EQ(lines_of(outcome.out).front(),
            "layer0: 2 KV heads, 128 tokens, head_dim 64; 3 queries of 4 heads");
  EXPECT_EQ(outcome.err.find("transpose"), std::string::npos) << outcome.err;
  const Json items = document_of(vqgen(with(cache, {"--json"})))["items"];
  EXPECT_EQ(items, Json({{{"name", "layer0"},
                          {"sequences", 1},
                          {"kv_heads", 2},
                          {"tokens", 128},
                          {"head_dim", 64}}}));
  const Outcome matrix = vqgen(quantize_tiny_matrix(tensors, folder.path("matrix")));
  EXPECT_EQ(lines_of(matrix.out).front(), "w: 64 output features, 128 input features");
}

TEST_F(QuantizeTool, KeysAloneHaveAGainThatCanBeLeftOut) {
  const std::string tensors = write_tiny_tensors(folder);
  expect_success(vqgen(quantize_tiny_cache(tensors, folder.path("with"))));
  expect_success(
      vqgen(with(quantize_tiny_cache(tensors, folder.path("without")), {"--no-key-gain"})));
  const SafetensorsFile one(std::filesystem::path(folder.path("with")));
  const SafetensorsFile other(std::filesystem::path(folder.path("without")));
  EXPECT_GT(one.read_floats("layer0.keys.gain").front(), 1.0f);
  EXPECT_EQ(one.find("layer0.values.gain"), nullptr);
  EXPECT_EQ(other.find("layer0.keys.gain"), nullptr);
  EXPECT_EQ(one.read_bits16("layer0.keys.codebooks"), other.read_bits16("layer0.keys.codebooks"));
  EXPECT_EQ(one.read_bits16("layer0.values.codebooks"),
            other.read_bits16("layer0.values.codebooks"));
  expect_failure(with(quantize_tiny_matrix(tensors, folder.path("matrix")), {"--no-key-gain"}), 2,
                 {"--no-key-gain goes with --keys"});
}

TEST_F(QuantizeTool, FormatsInABasisAreTrainedInPython) {
  Arguments arguments = quantize_tiny_cache(write_tiny_tensors(folder), folder.path("out"));
  for (const char* basis : {"center", "klt"}) {
    Json format = {{"vector_size", 4}, {"index_bits", 4}, {"scope", "head"}};
    format[basis] = true;
    *(std::find(arguments.begin(), arguments.end(), "--value-format") + 1) = format.dump();
    expect_failure(arguments, 2, {"layer0.v", "vqgen.hf.calibrate()", "leave both out"});
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
}

// [tokens, heads, head_dim] looks like [kv_heads, tokens, head_dim] without further knowledge.
TEST_F(QuantizeTool, HeadsThatAreTokensAreToldAndRefusedWhereAConfigKnows) {
  const std::vector<std::uint16_t> ones(128 * 4 * 64, 0x3c00);
  write_safetensors(folder.path("turned"),
                    {tensor_view("layer0.k", TensorType::f16, {128, 4, 64}, ones),
                     tensor_view("layer0.v", TensorType::f16, {128, 4, 64}, ones)},
                    {});
  Arguments arguments = quantize_tiny_cache(folder.path("turned"), folder.path("out"));
  arguments.resize(arguments.size() - 3);  // without queries
  const Outcome outcome = vqgen(arguments);
  EXPECT_NE(outcome.err.find("128 heads of 4 tokens were read; transpose them"), std::string::npos)
      << outcome.err;
  std::filesystem::remove(folder.path("out"));
  const std::string path = config(tiny_attention());
  expect_failure(with(arguments, {"--config", path}), 2,
                 {path, "item 'layer0'", "kv_heads is 128 in the bundle and 2 in the config"});
  EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
  const std::string tensors = write_tiny_tensors(folder);
  const auto fitting = quantize_tiny_cache(tensors, folder.path("out"));
  expect_success(vqgen(with(fitting, {"--config", path})));
  Json other = tiny_attention();
  other["keys"]["common_scale"] = true;
  other["keys"].update({{"entry_type", "int8"}, {"stage_scales", true}, {"num_codebooks", 2}});
  expect_failure(with(fitting, {"--config", config(other)}), 2,
                 {R"("common_scale":false)", "make them agree"});
  expect_failure(with(fitting, {"--config", config(tiny_gemv())}), 2, {"holds a KV cache"});
}

TEST_F(QuantizeTool, LeavesOutWhatIsExcluded) {
  matrices("m", {"a.weight", "b.weight", "lm_head.weight", "norm.weight"});
  const Arguments arguments = quantize_matrices(folder.path("m"));
  const Outcome outcome = vqgen(with(
      arguments, {"--exclude", "lm_head.*", "--exclude", "norm*", "--exclude", "x", "--json"}));
  expect_success(outcome);
  const Json items = document_of(outcome)["items"];
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[1]["name"], "b");
  EXPECT_NE(outcome.err.find("--exclude 'x' leaves out nothing"), std::string::npos);
  expect_failure(with(arguments, {"--exclude", "*"}), 2, {"--exclude leaves out every tensor"});
}

TEST_F(QuantizeTool, RefusesBeforeItTrainsWhatFailsBehindTheTraining) {
  const std::string tensors = write_tiny_tensors(folder);
  const auto refused = [&](Arguments arguments, const Arguments& more,
                           const std::vector<std::string>& words) {
    expect_failure(with(std::move(arguments), more), 2, words);
  };
  Arguments cache = quantize_tiny_cache(tensors, folder.path("out"));
  *(std::find(cache.begin(), cache.end(), "--value-format") + 1) = "int8-channel";
  refused(cache, {"--reorder"}, {"--reorder: codes of --value-format (decoder scalar)"});
  Arguments matrix = quantize_tiny_matrix(tensors, folder.path("out"));
  *(std::find(matrix.begin(), matrix.end(), "--format") + 1) = "quip-2";
  refused(matrix, {"--reorder"}, {"--reorder: codes of --format (decoder e8p)"});
  refused(quantize_tiny_matrix(tensors, "/dev/null"), {}, {"/dev/null is no regular file"});
  refused(quantize_tiny_cache(tensors, folder.path("out")),
          {"--split-by", "cq-2c8b", "--config", config(tiny_attention())},
          {"--config goes without --split-by"});
  EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
}

TEST_F(QuantizeTool, ReadsShardsByTheirIndexOrFolder) {
  matrices("m-1.safetensors", {"a.weight", "b.weight"});
  matrices("m-2.safetensors", {"c.weight"});
  const Json index = {{"weight_map",
                       {{"a.weight", "m-1.safetensors"},
                        {"b.weight", "m-1.safetensors"},
                        {"c.weight", "m-2.safetensors"}}}};
  folder.file("model.safetensors.index.json", index.dump());
  std::string first;
  for (const std::string input : {"model.safetensors.index.json", ""}) {
    const Outcome outcome = vqgen(quantize_matrices(folder.path(input)));
    expect_success(outcome);
    if (first.empty()) first = read_text(folder.path("out"));
    EXPECT_EQ(read_text(folder.path("out")), first);
  }
  matrices("whole", {"a.weight", "b.weight", "c.weight"});
  expect_success(vqgen(quantize_matrices(folder.path("whole"))));
  EXPECT_EQ(read_text(folder.path("out")), first);
  folder.file("pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  expect_failure(quantize_matrices(folder.path("pointer")), 2,
                 {folder.path("pointer"), "Git LFS", "git lfs pull"});
}

// No compiler is asked: the named one does not exist.
TEST_F(TinyBundle, ThatDoesNotFitIsRefusedBeforeACompilation) {
  const Variables none{{"VQGEN_CXX", "/nowhere/g++"}, {"VQGEN_CACHE_DIR", folder.path("empty")}};
  Json other = tiny_gemv();
  other["weights"].update({{"entry_type", "int8"}, {"stage_scales", true}, {"common_scale", true}});
  expect_failure(run_arguments(other, matrix_bundle()), 2,
                 {"the format of weights is", R"("common_scale":false)", R"("common_scale":true)",
                  "make them agree"},
                 none);
  expect_failure(run_arguments(tiny_gemv(), cache_bundle()), 2, {"holds a KV cache"}, none);
  expect_failure(run_arguments(tiny_gemv(), matrix_bundle()), 5, {"/nowhere/g++"}, none);
}

TEST(GpuName, OfTheDriverIsTaken) {
  const Outcome by_driver =
      vqgen({"explain", example("tinycode-projection"), "--gpu", "NVIDIA H200"});
  expect_success(by_driver);
  EXPECT_EQ(by_driver.out, vqgen({"explain", example("tinycode-projection"), "--gpu", "h200"}).out);
}

// Hardened hosts mount their temporary folder noexec: files there cannot be mapped to run.
TEST(NoexecTemporaryFolder, HostKernelsRunAllTheSame) {
  if (!has("host compiler")) GTEST_SKIP() << "this machine has no host compiler";
  const Folder folder;
  std::filesystem::create_directory(folder.path("tmp"));
  const std::string mount = "mount -t tmpfs -o noexec,size=64m tmpfs " + folder.path("tmp");
  if (run_program("unshare", {"-m", "bash", "-c", mount}).exit_code != 0) {
    GTEST_SKIP() << "this user cannot mount a file system";
  }
  const std::string config = folder.file("config.json", tiny_gemv().dump());
  const Outcome outcome = run_program(
      "unshare", {"-m", "bash", "-c",
                  mount + " && exec env TMPDIR=" + folder.path("tmp") + " VQGEN_CACHE_DIR=" +
                      folder.path("cache") + " " VQGEN_TOOL " run " + config + " --backend host"});
  expect_success(outcome);
}

}  // namespace
}  // namespace vqgen
