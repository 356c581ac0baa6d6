#include "tests/cli/tiny_bundle.h"

#include <random>

#include "core/format/element.h"
#include "quantizer/safetensors.h"
#include "tests/write_safetensors.h"

namespace vqgen {
namespace {

std::vector<float> normal(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0.0f, 1.0f);
  std::vector<float> values(count);
  for (float& value : values) value = draw(random);
  return values;
}

std::vector<std::uint16_t> halves(std::size_t count, unsigned seed) {
  std::vector<std::uint16_t> bits;
  for (const float value : normal(count, seed)) bits.push_back(f16_from_float(value));
  return bits;
}

const char* const kKeys = R"({"vector_size": 4, "index_bits": 5, "smooth": true})";
const char* const kValues = R"({"vector_size": 8, "index_bits": 4, "scope": "head"})";
const char* const kWeights = R"({"vector_size": 4, "index_bits": 5, "num_codebooks": 2,
                                 "output_scales": true})";

}  // namespace

Json tiny_attention() {
  Json json = {
      {"op", "attention_decode"},
      {"shape",
       {{"batch", 3}, {"query_heads", 4}, {"kv_heads", 2}, {"head_dim", 64}, {"tokens", 128}}}};
  json["keys"] = parse_json(kKeys, "keys");
  json["values"] = parse_json(kValues, "values");
  return json;
}

Json tiny_gemv() {
  Json json = {{"op", "gemv"}, {"shape", {{"m", 2}, {"out_features", 64}, {"in_features", 128}}}};
  json["weights"] = parse_json(kWeights, "weights");
  return json;
}

std::string write_tiny_tensors(const Folder& folder) {
  const auto keys = halves(2 * 128 * 64, 1);
  const auto values = halves(2 * 128 * 64, 2);
  const auto queries = halves(4 * 3 * 64, 3);
  const auto weights = normal(64 * 128, 4);
  const auto x = normal(2 * 128, 5);
  write_safetensors(folder.path("tensors"),
                    {tensor_view("layer0.k", TensorType::f16, {2, 128, 64}, keys),
                     tensor_view("layer0.v", TensorType::f16, {2, 128, 64}, values),
                     tensor_view("layer0.q", TensorType::f16, {4, 3, 64}, queries),
                     tensor_view("w", TensorType::f32, {64, 128}, weights),
                     tensor_view("x", TensorType::f32, {2, 128}, x)},
                    {});
  return folder.path("tensors");
}

Arguments quantize_tiny_cache(const std::string& input, const std::string& out) {
  return {"quantize", "--input",      input,      "--out",          out,        "--keys",
          "layer0.k", "--key-format", kKeys,      "--values",       "layer0.v", "--value-format",
          kValues,    "--queries",    "layer0.q", "--keep-original"};
}

Arguments quantize_tiny_matrix(const std::string& input, const std::string& out) {
  return {"quantize", "--input",  input,    "--out",    out, "--weights",
          "w",        "--format", kWeights, "--inputs", "x", "--keep-original"};
}

TinyBundle::Files* TinyBundle::files_ = nullptr;

void TinyBundle::SetUpTestSuite() {
  files_ = new Files;
  if (!has("host compiler")) files_->why_not = "no host compiler";
  if (!files_->why_not.empty()) return;
  files_->tensors = write_tiny_tensors(files_->folder);
  files_->cache = files_->folder.path("cache");
  files_->matrix = files_->folder.path("matrix");
  expect_success(vqgen(quantize_tiny_cache(files_->tensors, files_->cache)));
  expect_success(vqgen(quantize_tiny_matrix(files_->tensors, files_->matrix)));
}

void TinyBundle::TearDownTestSuite() {
  delete files_;
  files_ = nullptr;
}

void TinyBundle::SetUp() {
  if (!files_->why_not.empty()) GTEST_SKIP() << files_->why_not;
}

Arguments TinyBundle::run_arguments(const Json& config, const std::string& bundle) const {
  return {"run", folder.file("config.json", config.dump()), "--data", bundle, "--backend", "host"};
}

}  // namespace vqgen
