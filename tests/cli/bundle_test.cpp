// Bundles given to run: fitting ones, those of another problem, and damaged ones.
#include <random>

#include "core/files/files.h"
#include "quantizer/safetensors.h"
#include "tests/cli/tiny_bundle.h"
#include "tests/write_safetensors.h"

namespace vqgen {
namespace {

void expect_verified(const Arguments& arguments) {
  Arguments all = arguments;
  all.emplace_back("--json");
  const Outcome outcome = vqgen(all);
  expect_success(outcome);
  const Json document = document_of(outcome);
  EXPECT_EQ(document.value("ok", false), true) << document;
  EXPECT_LT(document.value("rel_err", 1.0), 1e-3);
  EXPECT_GT(document.value("rel_err_unquantized", 0.0), document.value("rel_err", 1.0));
  EXPECT_EQ(document["backend"], "host");
  EXPECT_EQ(document["items"].size(), 1u);
}

Json tiny_dequantize() {
  Json json = tiny_attention();
  json["op"] = "kv_dequantize";
  json["shape"] = {{"batch", 1}, {"kv_heads", 2}, {"head_dim", 64}, {"tokens", 128}};
  return json;
}

TEST_F(TinyBundle, ThatFitIsRunAndVerified) {
  expect_verified(run_arguments(tiny_attention(), cache_bundle()));
  Json paged = tiny_attention();
  paged["shape"]["page_tokens"] = 16;
  expect_verified(run_arguments(paged, cache_bundle()));
  expect_verified(run_arguments(tiny_gemv(), matrix_bundle()));
  Json decoded = tiny_dequantize();
  expect_verified(run_arguments(decoded, cache_bundle()));
  decoded["shape"]["page_tokens"] = 32;
  expect_verified(run_arguments(decoded, cache_bundle()));
  Json several = tiny_attention();
  several["shape"].update({{"query_tokens", 3}, {"recent_tokens", 16}});
  expect_verified(run_arguments(several, cache_bundle()));
}

TEST_F(TinyBundle, KeysInPartsAreQuantizedAndRun) {
  Json low = {{"vector_size", 16}, {"index_bits", 5}, {"num_codebooks", 3}};
  Json high = {{"vector_size", 4}, {"index_bits", 4}};
  for (int channel = 0; channel < 64; ++channel) {
    (channel % 4 == 1 ? high : low)["channels"].push_back(channel);
  }
  const Json keys = {{"parts", {low, high}}};
  Arguments arguments = quantize_tiny_cache(tensors(), folder.path("parts"));
  *(std::find(arguments.begin(), arguments.end(), "--key-format") + 1) = keys.dump();
  expect_success(vqgen(arguments));
  for (Json config : {tiny_attention(), tiny_dequantize()}) {
    config["keys"] = keys;
    expect_verified(run_arguments(config, folder.path("parts")));
  }
  arguments.insert(arguments.end(), {"--split-by", R"({"vector_size": 64, "index_bits": 5})"});
  expect_failure(
      [&] {
        Arguments reordered = arguments;
        reordered.emplace_back("--reorder");
        return reordered;
      }(),
      2, {"--reorder", "--key-format is in parts"});
  *(std::find(arguments.begin(), arguments.end(), "--out") + 1) = folder.path("split");
  arguments.emplace_back("--json");
  const Outcome split = vqgen(arguments);
  expect_success(split);
  Json found = tiny_attention();
  found["keys"] = document_of(split).at("key_format");
  EXPECT_EQ(found["keys"]["parts"][1]["channels"].size(), 16u);
  expect_verified(run_arguments(found, folder.path("split")));

  Json other = tiny_attention();
  other["keys"] = keys;
  std::swap(other["keys"]["parts"][0]["channels"][0], other["keys"]["parts"][0]["channels"][1]);
  expect_failure(run_arguments(other, folder.path("parts")), 2, {folder.path("parts"), "keys"});
  expect_failure({"count-accesses", "--data", folder.path("parts"), "--out", folder.path("p.json")},
                 2, {".keys: is in parts"});
  expect_failure(
      {"repack", folder.path("parts"), "--layout", "2x2", "--out", folder.path("grouped")}, 2,
      {"repack", "rows in parts", "runs of 1 word", "--operand"});
  expect_success(
      vqgen({"repack", folder.path("parts"), "--layout", "4x1", "--out", folder.path("grouped")}));
  Json grouped = tiny_attention();
  grouped["keys"] = keys;
  const Json layout = {{"rows", 4}, {"words", 1}};
  for (Json& each : grouped["keys"]["parts"]) each["layout"] = layout;
  grouped["values"]["layout"] = layout;
  expect_verified(run_arguments(grouped, folder.path("grouped")));
}

TEST_F(TinyBundle, QuantizingTwiceGivesTheSameBytes) {
  expect_success(vqgen(quantize_tiny_cache(tensors(), folder.path("again"))));
  EXPECT_EQ(read_text(folder.path("again")), read_text(cache_bundle()));
}

TEST_F(TinyBundle, OfAnotherOpIsRefused) {
  expect_failure(run_arguments(tiny_attention(), matrix_bundle()), 2,
                 {matrix_bundle(), "holds weights, but the config's op is attention_decode"});
  expect_failure(run_arguments(tiny_gemv(), cache_bundle()), 2,
                 {cache_bundle() + ": item 'layer0'", "holds a KV cache", "op is gemv"});
  const Json merge = {{"op", "attention_merge"},
                      {"shape", {{"rows", 4}, {"heads", 2}, {"head_dim", 64}, {"parts", 2}}}};
  expect_failure(run_arguments(merge, cache_bundle()), 2,
                 {cache_bundle() + ": item 'layer0'", "attention_merge", "without --data"});
}

TEST_F(TinyBundle, OfAnotherProblemIsRefused) {
  struct Difference {
    const char* pointer;
    Json value;
    std::vector<std::string> words;
  };
  const std::vector<Difference> differences{
      {"/dtype", "bf16", {"dtype is f16 in the bundle and bf16 in the config"}},
      {"/keys/index_bits", 6, {"the format of keys", R"("index_bits":5)", R"("index_bits":6)"}},
      {"/keys/smooth", false, {"the format of keys", R"("smooth":true)"}},
      {"/values/scope", "tensor", {"the format of values", R"("scope":"head")"}},
      {"/shape/tokens", 127, {"tokens is 128 in the bundle and 127 in the config"}},
      {"/shape/batch", 2, {"batch is 3 in the bundle and 2 in the config"}},
      {"/shape/query_heads", 2, {"query_heads is 4 in the bundle and 2"}},
      {"/shape/kv_heads", 4, {"kv_heads is 2 in the bundle and 4"}},
      {"/shape/head_dim", 128, {"head_dim is 64 in the bundle and 128"}}};
  for (const Difference& difference : differences) {
    Json json = tiny_attention();
    json[Json::json_pointer(difference.pointer)] = difference.value;
    std::vector<std::string> words = difference.words;
    words.insert(words.end(), {cache_bundle() + ": item 'layer0': ", "make them agree"});
    expect_failure(run_arguments(json, cache_bundle()), 2, words);
  }
  Json gemv = tiny_gemv();
  gemv["shape"]["out_features"] = 72;
  expect_failure(run_arguments(gemv, matrix_bundle()), 2, {"out_features is 64", "and 72"});
  gemv = tiny_gemv();
  gemv["shape"]["m"] = 3;
  expect_failure(run_arguments(gemv, matrix_bundle()), 2, {"holds 2 rows of x", "lower its rows"});
  gemv["shape"]["m"] = 1;
  expect_verified(run_arguments(gemv, matrix_bundle()));
}

TEST_F(TinyBundle, WithoutQueriesOrOriginalsIsRefusedWhereTheyAreNeeded) {
  Arguments arguments = quantize_tiny_cache(tensors(), folder.path("bare"));
  arguments.resize(arguments.size() - 3);  // --queries Q --keep-original
  expect_success(vqgen(arguments));
  expect_failure(run_arguments(tiny_attention(), folder.path("bare")), 2,
                 {"holds no queries; quantize with --queries"});
  expect_success(vqgen(run_arguments(tiny_dequantize(), folder.path("bare"))));
  arguments.insert(arguments.end(), {"--queries", "layer0.q"});
  expect_success(vqgen(arguments));
  Json windowed = tiny_attention();
  windowed["shape"]["recent_tokens"] = 16;
  expect_failure(run_arguments(windowed, folder.path("bare")), 2,
                 {"holds no originals", "quantize with --keep-original"});
  expect_verified(run_arguments(windowed, cache_bundle()));
}

TEST_F(TinyBundle, ThatIsNoneIsRefused) {
  expect_failure(run_arguments(tiny_gemv(), folder.path("none")), 2, {"cannot read"});
  expect_failure(run_arguments(tiny_gemv(), tensors()), 2,
                 {tensors(), "not a bundle", "make one with vqgen quantize"});
  write_safetensors(folder.path("hollow"), {}, {{"vqgen.bundle", R"({"schema":1,"items":[]})"}});
  expect_failure(run_arguments(tiny_gemv(), folder.path("hollow")), 2,
                 {folder.path("hollow") + ": holds no items; quantize again"});
}

TEST_F(TinyBundle, ThatIsCutShortIsRefused) {
  const std::string whole = read_text(matrix_bundle());
  for (const std::size_t size : {std::size_t{0}, std::size_t{100}, whole.size() - 1}) {
    const std::string cut = folder.file("cut", whole.substr(0, size));
    expect_failure(run_arguments(tiny_gemv(), cut), 2, {cut});
  }
}

TEST_F(TinyBundle, ThatIsRepackedRunsToTheSameBits) {
  const auto run = [&](const Json& config, const std::string& bundle) {
    Arguments arguments = run_arguments(config, bundle);
    arguments.emplace_back("--json");
    const Outcome outcome = vqgen(arguments);
    expect_success(outcome);
    Json document = document_of(outcome);
    EXPECT_EQ(document.value("ok", false), true) << document;
    return document["items"];
  };
  const std::string matrix = folder.path("matrix"), cache = folder.path("cache");
  const Outcome outcome =
      vqgen({"repack", matrix_bundle(), "--layout", "4x1", "--out", matrix, "--json"});
  expect_success(outcome);
  EXPECT_EQ(document_of(outcome)["tensors"][0]["layout"], Json({{"rows", 4}, {"words", 1}}));
  Json gemv = tiny_gemv();
  const Json plain = run(gemv, matrix_bundle());
  gemv["weights"]["layout"] = {{"rows", 4}, {"words", 1}};
  EXPECT_EQ(run(gemv, matrix)[0]["rel_err"], plain[0]["rel_err"]);
  gemv["weights"]["layout"] = {{"rows", 2}, {"words", 2}};
  expect_failure(run_arguments(gemv, matrix), 2,
                 {matrix, "weights are stored in groups of 4 rows and runs of 1 words",
                  "the config has 2 and 2", "vqgen repack"});

  expect_success(
      vqgen({"repack", cache_bundle(), "--layout", "2x2", "--operand", "keys", "--out", cache}));
  expect_success(
      vqgen({"repack", cache, "--layout", "4x1", "--operand", "values", "--out", cache}));
  Json attention = tiny_attention();
  attention["keys"]["layout"] = {{"rows", 2}, {"words", 2}};
  attention["values"]["layout"] = {{"rows", 4}, {"words", 1}};
  run(attention, cache);

  for (const std::string& bundle : {matrix, cache}) {  // and back
    expect_success(vqgen({"repack", bundle, "--layout", "1x1", "--out", bundle}));
  }
  EXPECT_EQ(read_text(matrix), read_text(matrix_bundle()));
  EXPECT_EQ(read_text(cache), read_text(cache_bundle()));
}

// The change that the tool reports is the loss of the run against the old reference.
TEST_F(TinyBundle, OfElementsBecomesOneOfIntegers) {
  const std::string out = folder.path("integers");
  const Outcome outcome =
      vqgen({"repack", matrix_bundle(), "--entries", "int8", "--out", out, "--json"});
  expect_success(outcome);
  const Json tensor = document_of(outcome)["tensors"][0];
  EXPECT_GT(tensor["relative_change"], 1e-4);
  EXPECT_LT(tensor["relative_change"], 0.05);
  Json gemv = tiny_gemv();
  gemv["weights"]["entry_type"] = "int8";
  gemv["weights"]["stage_scales"] = true;
  if (gemv["weights"].value("num_codebooks", 1) > 1) gemv["weights"]["common_scale"] = true;
  expect_success(vqgen(run_arguments(gemv, out)));
  expect_failure({"repack", out, "--entries", "int8", "--out", out}, 3,
                 {"weights: the entries are integers already"});
  expect_failure({"repack", matrix_bundle(), "--entries", "int4", "--out", out}, 2,
                 {"--entries 'int4' is not int8"});
  expect_failure({"repack", matrix_bundle(), "--out", out}, 2, {"--layout, --entries int8"});
}

TEST_F(TinyBundle, IsNotRepackedWhereNothingWouldReadIt) {
  const std::string out = folder.path("out");
  const auto refused = [&](const std::string& layout, const std::vector<std::string>& words) {
    expect_failure({"repack", matrix_bundle(), "--layout", layout, "--out", out}, 2, words);
    EXPECT_FALSE(std::filesystem::exists(out));
  };
  for (const char* text :
       {"4", "x", "4x", "x1", "4x1x1", "4 x 1", "4x1 ", "-x1", "0x10x1", "99999999999x1"}) {
    refused(text, {"repack: --layout", "is not ROWSxWORDS"});
  }
  for (const char* text : {"3x1", "4x2", "0x1", "-4x1", "8x1", "1x8"}) {
    refused(text, {"repack: --layout " + std::string(text), "no kernel reads groups of"});
  }
  expect_failure({"repack", matrix_bundle(), "--layout", "4x1", "--operand", "keys", "--out", out},
                 2, {matrix_bundle() + ": holds no keys"});
  expect_failure({"repack", matrix_bundle(), "--layout", "4x1", "--operand", "rows", "--out", out},
                 2, {"repack: --operand: 'rows' is none of"});
  expect_failure({"repack", tensors(), "--layout", "4x1", "--out", out}, 2, {"not a bundle"});
}

// The header gives an invalid number as the start of a tensor's data.
TEST_F(TinyBundle, WithNanInACodebookIsRefused) {
  std::string text = read_text(matrix_bundle());
  const SafetensorsFile file{std::filesystem::path(matrix_bundle())};
  const TensorInfo& info = file.at("w.weights.codebooks");
  std::uint64_t header = 0;
  std::copy_n(text.begin(), sizeof header, reinterpret_cast<char*>(&header));
  const std::size_t begin = sizeof header + header + info.begin;
  text.replace(begin, 2, "\x01\x7e");
  expect_failure(run_arguments(tiny_gemv(), folder.file("nan", text)), 2,
                 {"tensor 'w.weights.codebooks'", "element 0 is nan"});
}

// Whatever byte of the header is hit, the tool answers in time and does not crash. (A name may be
// hit, too.)
TEST_F(TinyBundle, WithADamagedHeaderIsAnswered) {
  const std::string whole = read_text(matrix_bundle());
  std::uint64_t header = 0;
  std::copy_n(whole.begin(), sizeof header, reinterpret_cast<char*>(&header));
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 24; ++i) {
    std::string text = whole;
    text[random() % (sizeof header + header)] ^= static_cast<char>(1u << random() % 8);
    Arguments arguments = run_arguments(tiny_gemv(), folder.file("damaged", text));
    arguments.emplace_back("--json");
    const Outcome outcome = vqgen(arguments);
    EXPECT_TRUE(outcome.exit_code == 0 || outcome.exit_code == 2)
        << outcome.exit_code << " " << outcome.err;
    EXPECT_TRUE(document_of(outcome).is_object());
    refused += outcome.exit_code == 2 ? 1 : 0;
  }
  EXPECT_GT(refused, 12);
}

}  // namespace
}  // namespace vqgen
