// Faulty tensors given to quantize: inconsistent files, invalid numbers, too little data to train
// on.
#include <algorithm>
#include <limits>

#include "core/files/files.h"
#include "core/format/element.h"
#include "quantizer/safetensors.h"
#include "tests/cli/tiny_bundle.h"
#include "tests/write_safetensors.h"

namespace vqgen {
namespace {

class DataFault : public testing::Test {
 protected:
  // Expects that quantizing `input` fails with the words and writes nothing.
  void refuse(Arguments arguments, std::vector<std::string> words) const {
    const std::vector<std::string> before = folder.names();
    expect_failure(arguments, 2, words);
    EXPECT_EQ(folder.names(), before);
  }
  void refuse_input(const std::string& input, std::vector<std::string> words) const {
    words.push_back(input);
    refuse(quantize_tiny_cache(input, folder.path("out")), std::move(words));
  }

  // A file of the header and so many bytes of data.
  std::string file_of(const std::string& header, std::size_t data_bytes) const {
    const std::uint64_t length = header.size();
    std::string text(reinterpret_cast<const char*>(&length), sizeof length);
    return folder.file("lies", text + header + std::string(data_bytes, '\0'));
  }

  // Keys, values and queries; `spoil` edits the bits of the keys.
  template <class Spoil>
  std::string tensors_with(Spoil spoil, std::int64_t tokens = 128) const {
    std::vector<std::uint16_t> keys(static_cast<std::size_t>(2 * tokens * 64), 0x3c00);
    const std::vector<std::uint16_t> values = keys;
    spoil(keys);
    const std::vector<std::uint16_t> queries(4 * 3 * 64, 0x3c00);
    const TensorType f16 = TensorType::f16;
    write_safetensors(folder.path("spoilt"),
                      {tensor_view("layer0.k", f16, {2, tokens, 64}, keys),
                       tensor_view("layer0.v", f16, {2, tokens, 64}, values),
                       tensor_view("layer0.q", f16, {4, 3, 64}, queries)},
                      {});
    return folder.path("spoilt");
  }

  Folder folder;
};

TEST_F(DataFault, FilesThatAreMissingOrNone) {
  refuse_input(folder.path("none"), {"cannot read", "correct its path"});
  refuse_input(folder.path(""), {"holds no safetensors file", "name a file"});
  refuse_input(folder.file("empty", ""), {"0 bytes are too few for a header", "again"});
  refuse_input(folder.file("text", "not tensors at all"), {"a header of", "does not fit"});
}

TEST_F(DataFault, DevicesThatAreNone) {
  const std::string tensors = write_tiny_tensors(folder);
  const auto on = [&](const std::string& device) {
    Arguments arguments = quantize_tiny_matrix(tensors, folder.path("out"));
    arguments.insert(arguments.end(), {"--device", device});
    return arguments;
  };
  refuse(on("gpu"), {"--device", "'gpu' is no GPU's number, and neither cpu nor auto"});
  refuse(on("-1"), {"--device", "'-1'"});
  expect_failure(on("1000"), 5, {});  // no machine has so many
  const Outcome outcome = vqgen(on("cpu"));
  expect_success(outcome);
  EXPECT_NE(outcome.out.find("trained on cpu"), std::string::npos);
}

TEST_F(DataFault, FilesThatAreCutShort) {
  const std::string whole = read_text(write_tiny_tensors(folder));
  const std::string cut = folder.file("cut", whole.substr(0, whole.size() - 1));
  refuse_input(cut, {"the file is cut short"});
  refuse_input(folder.file("cut", whole.substr(0, 20)), {"does not fit the 20 bytes"});
  refuse_input(folder.file("cut", whole + "x"), {"1 bytes after the last tensor", "again"});
}

TEST_F(DataFault, HeadersThatLie) {
  const auto one = [](const std::string& fields) { return R"({"layer0.k": {)" + fields + "}}"; };
  refuse_input(file_of("{", 0), {"malformed JSON"});
  refuse_input(file_of(one(R"("dtype": "F16", "shape": [4])"), 8), {"'data_offsets' is missing"});
  refuse_input(file_of(one(R"("dtype": "F12", "shape": [4], "data_offsets": [0, 8])"), 8),
               {"'layer0.k': is F12 where F16, BF16 or F32 is wanted"});
  refuse_input(file_of(one(R"("dtype": "F16", "shape": [-4], "data_offsets": [0, 8])"), 8),
               {"/layer0.k/shape/0: ", "whole number"});
  refuse_input(file_of(one(R"("dtype": "F16", "shape": [5], "data_offsets": [0, 8])"), 8),
               {"/layer0.k/data_offsets: ", "0 to 8 is not the 10 bytes of F16 [5]"});
  refuse_input(file_of(one(R"("dtype": "F16", "shape": [4], "data_offsets": [8, 0])"), 8),
               {"/layer0.k/data_offsets: "});
  refuse_input(file_of(one(R"("dtype": "F16", "shape": [4], "data_offsets": [8, 16])"), 8),
               {"ends at byte 16 of 8 bytes"});
  refuse_input(file_of(one(R"("dtype": "F16", "shape": [4294967296, 4294967296, 4],
                             "data_offsets": [0, 8])"),
                       8),
               {"/layer0.k/shape: ", "overflows"});
}

TEST_F(DataFault, TensorsThatAreNotThereOrShapedOtherwise) {
  const std::string tensors = write_tiny_tensors(folder);
  const auto with = [&](const std::string& option, const std::string& value) {
    Arguments arguments = quantize_tiny_cache(tensors, folder.path("out"));
    *(std::find(arguments.begin(), arguments.end(), option) + 1) = value;
    return arguments;
  };
  refuse(with("--keys", "layer9.k"), {tensors, "'layer9.k'", "the file has layer0.k"});
  refuse(with("--keys", "layer9.*"), {tensors, "matches no tensor", "the file has layer0.k"});
  refuse(with("--keys", "w"), {tensors, "tensor 'w'", "[64, 128]", "[kv_heads, tokens, head_dim]"});
  refuse(with("--values", "layer0.q"), {"[4, 3, 64]", "[2, 128, 64]", "must agree"});
  refuse(with("--queries", "x"), {"tensor 'x'", "[2, 128]", "[query_heads, n, head_dim]"});
  refuse(with("--key-format", "cq-9"), {"--key-format", "'cq-9' is unknown", "cq-2c8b"});
  refuse(with("--key-format", R"({"vector_size": 80, "index_bits": 4})"), {"80 does not divide"});
  refuse(with("--value-format", R"({"vector_size": 4})"), {"--value-format", "'index_bits' is"});
  refuse({"quantize", "--input", tensors, "--out", folder.path("out")}, {"--keys", "--weights"});
  for (const char* option : {"--format", "--inputs"}) {
    Arguments arguments = quantize_tiny_cache(tensors, folder.path("out"));
    arguments.insert(arguments.end(), {option, "x"});
    refuse(arguments, {"--format and --inputs go with --weights"});
  }
  for (const char* option :
       {"--key-format", "--split-by", "--values", "--value-format", "--queries"}) {
    Arguments arguments = quantize_tiny_matrix(tensors, folder.path("out"));
    arguments.insert(arguments.end(), {option, "x"});
    refuse(arguments, {option, "go with --keys"});
  }
}

TEST_F(DataFault, CalibrationOfWeights) {
  const std::string tensors = write_tiny_tensors(folder);
  for (const std::string& file : {tensors, folder.path("none")}) {
    Arguments arguments = quantize_tiny_matrix(tensors, folder.path("out"));
    arguments.insert(arguments.end(), {"--calibration", file});
    refuse(arguments, {"--calibration goes with --keys"});
  }
}

// A bundle for other programs is written only on request.
TEST_F(DataFault, FormatsThatNoKernelReads) {
  const std::string tensors = write_tiny_tensors(folder);
  const auto expect_only_asked = [&](Arguments arguments, const std::string& words) {
    expect_failure(arguments, 3, {"no kernel reads it", words, "--any-format"});
    EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
    arguments.emplace_back("--any-format");
    expect_success(vqgen(arguments));
    EXPECT_TRUE(std::filesystem::remove(folder.path("out")));
  };
  const auto with = [](Arguments arguments, const std::string& option, const std::string& value) {
    *(std::find(arguments.begin(), arguments.end(), option) + 1) = value;
    return arguments;
  };
  const std::string wide = R"({"vector_size": 16, "index_bits": 4})";
  const Arguments matrix = quantize_tiny_matrix(tensors, folder.path("out"));
  expect_only_asked(with(matrix, "--format", wide), "weights: vector_size 16");
  const std::vector<std::uint16_t> keys(2 * 128 * 72, 0x3c00);
  const TensorType f16 = TensorType::f16;
  write_safetensors(folder.path("d72"),
                    {tensor_view("layer0.k", f16, {2, 128, 72}, keys),
                     tensor_view("layer0.v", f16, {2, 128, 72}, keys)},
                    {});
  const std::string narrow = R"({"vector_size": 4, "index_bits": 4})";
  expect_only_asked(
      {"quantize", "--input", folder.path("d72"), "--out", folder.path("out"), "--keys", "layer0.k",
       "--key-format", narrow, "--values", "layer0.v", "--value-format", narrow},
      "head_dim 72");
}

TEST_F(DataFault, NumbersThatAreNone) {
  for (const int bits : {0x7e00, 0x7c00, 0xfc00}) {
    const std::string input =
        tensors_with([&](auto& keys) { keys[4711] = static_cast<std::uint16_t>(bits); });
    refuse_input(input,
                 {"'layer0.k'", "element 4711 is", bits == 0x7e00 ? "nan" : "inf", "remove"});
  }
  std::vector<float> weights(64 * 128, 1.0f);
  weights[100] = std::numeric_limits<float>::infinity();
  const std::vector<float> x(2 * 128);
  write_safetensors(folder.path("weights"),
                    {tensor_view("w", TensorType::f32, {64, 128}, weights),
                     tensor_view("x", TensorType::f32, {2, 128}, x)},
                    {});
  refuse(quantize_tiny_matrix(folder.path("weights"), folder.path("out")),
         {"'w'", "element 100 is inf", "remove"});
}

TEST_F(DataFault, TooLittleToTrainOn) {
  const auto nothing = [](auto&) {};
  refuse_input(tensors_with(nothing, 0), {"'layer0.k'", "[2, 0, 64]", "tokens at least 1"});
  Arguments arguments = quantize_tiny_cache(write_tiny_tensors(folder), folder.path("out"));
  const std::string few = tensors_with(nothing, 3);
  arguments.insert(arguments.end(), {"--calibration", few});
  *(std::find(arguments.begin(), arguments.end(), "--key-format") + 1) =
      R"({"vector_size": 4, "index_bits": 7})";
  refuse(arguments, {few, "96 sub-vectors cannot train 128 entries", "calibrate on more tokens"});
}

TEST_F(DataFault, CalibrationOfAnotherShape) {
  Arguments arguments = quantize_tiny_cache(write_tiny_tensors(folder), folder.path("out"));
  arguments.insert(arguments.end(), {"--calibration", sample("tinycode-kv-calibration")});
  refuse(arguments, {"tinycode-kv-calibration", "'layer0.k'", "is not there"});
}

}  // namespace
}  // namespace vqgen
