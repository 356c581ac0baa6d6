// Keys in parts through the C interface, on the host backend: results by the double-precision
// reference, and the op's description of its codebooks.
#include "tests/library/host_runtime.h"
#include "tests/library/trials.h"

namespace vqgen::library::test {
namespace {

// Splits keys of 64 channels in two parts; the second has every third channel of the first 48.
Json with_parts(Json config) {
  Json first = {{"vector_size", 8}, {"index_bits", 7}, {"num_codebooks", 2}};
  Json second = {{"vector_size", 4}, {"index_bits", 5}, {"scope", "head"}};
  for (int channel = 0; channel < 64; ++channel) {
    (channel % 3 == 1 && channel < 48 ? second : first)["channels"].push_back(channel);
  }
  config["keys"] = {{"parts", {first, second}}};
  config["shape"]["head_dim"] = 64;
  return config;
}

TEST(KeysInParts, AreReadByAttention) {
  const Json config = with_parts(small_attention());
  const OwnedOp prepared(config);
  ASSERT_NE(prepared.op, nullptr) << vqgen_last_error();
  const auto op = std::get<AttentionDecode>(read_config(config, "test").problem);
  for (const std::int64_t tokens : {1, 977, 1500}) {
    AttentionTrial trial(host(), op, tokens);
    ASSERT_EQ(trial.launch(prepared.op), VQGEN_OK) << vqgen_last_error();
    trial.expect_right();
  }
}

TEST(KeysInParts, AreAppendedAndDecoded) {
  for (const int page_tokens : {0, 16}) {
    Json append = with_parts(small_append());
    Json decode = with_parts(small_dequantize());
    append["shape"]["page_tokens"] = decode["shape"]["page_tokens"] = page_tokens;
    const OwnedOp appending(append);
    const OwnedOp decoding(decode);
    ASSERT_NE(appending.op, nullptr) << vqgen_last_error();
    ASSERT_NE(decoding.op, nullptr) << vqgen_last_error();
    const auto of_append = std::get<KvAppend>(read_config(append, "test").problem);
    AppendTrial written(of_append, host(), of_append.shape.tokens);
    ASSERT_EQ(written.launch(appending.op), VQGEN_OK) << vqgen_last_error();
    written.expect_right();
    const auto of_dequantize = std::get<KvDequantize>(read_config(decode, "test").problem);
    DequantizeTrial read(of_dequantize, host(), of_dequantize.shape.tokens);
    ASSERT_EQ(read.launch(decoding.op), VQGEN_OK) << vqgen_last_error();
    read.expect_right();
  }
}

TEST(KeysInParts, AnOpSaysHowManyElementsTheirCodebooksHave) {
  const OwnedOp prepared(with_parts(small_attention()));
  ASSERT_NE(prepared.op, nullptr) << vqgen_last_error();
  const Json said = parse_json(vqgen_op_description(prepared.op), "description");
  int found = 0;
  for (const Json& each : said.at("arguments")) {
    if (each.at("name") == "keys.codes") {
      // 48 channels in 12 codes of 7 bits, 16 in 4 of 5.
      EXPECT_EQ(each.at("shape").back(), 3 + 1);
      ++found;
    }
    if (each.at("name") == "keys.codebooks") {
      EXPECT_EQ(each.at("shape"), Json({2 * 128 * 8 + 2 * 32 * 4}));
      ++found;
    }
  }
  EXPECT_EQ(found, 2);
}

TEST(KeysInParts, AreTrainedPartByPart) {
  const std::string format = with_parts(small_attention()).at("keys").dump();
  const std::vector<float> vectors(64 * 64, 1.0f);
  std::vector<std::uint16_t> codebooks(1 << 16);
  vqgen_training_args args{};
  args.struct_bytes = sizeof(args);
  args.format = format.c_str();
  args.vectors = vectors.data();
  args.codebooks = codebooks.data();
  args.units = 1;
  args.rows = 64;
  args.columns = 64;
  EXPECT_EQ(vqgen_train_codebooks(nullptr, &args), VQGEN_BAD_INPUT);
  expect_words(vqgen_last_error(), {"training", "part by part"});
}

}  // namespace
}  // namespace vqgen::library::test
