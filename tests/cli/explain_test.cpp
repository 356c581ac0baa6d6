// explain, and compile and run with access counts: what they say, and what they refuse.

#include "core/access/access_counts.h"
#include "core/files/files.h"
#include "tests/cli/tiny_bundle.h"

namespace vqgen {
namespace {

std::string text_of(const Json& document) {
  std::string text;
  for (const Json& section : document["report"]) {
    for (const std::string line : section["lines"]) text += line + "\n";
  }
  return text;
}

void expect_in(const std::string& text, const std::string& words) {
  EXPECT_NE(text.find(words), std::string::npos) << "'" << words << "' is missing in: " << text;
}

TEST(Explain, SaysTheSameInTextAndJson) {
  for (const char* name : {"llama3-8b-attention-2bit", "tinycode-projection"}) {
    const Outcome text = vqgen({"explain", example(name), "--gpu", "a100"});
    expect_success(text);
    const Outcome json = vqgen({"explain", example(name), "--gpu", "a100", "--json"});
    expect_success(json);
    const Json document = document_of(json);
    EXPECT_EQ(document["gpu_reason"], "named by --gpu");
    EXPECT_EQ(document["placement"], Json::array());
    EXPECT_TRUE(document["registers"].is_null());
    EXPECT_EQ(document["traffic"].size(), std::string(name).starts_with("llama") ? 2u : 1u);
    for (const Json& operand : document["traffic"]) EXPECT_FALSE(operand["profiled"].get<bool>());
    for (const Json& section : document["report"]) {
      expect_in(text.out, "\n" + section["title"].get<std::string>() + "\n");
      for (const std::string line : section["lines"]) expect_in(text.out, "\n  " + line + "\n");
    }
    expect_in(text.out, "assumed until it is compiled");
    if (document["expected_us"].is_null()) {
      expect_in(text.out, "is not modelled yet");
    } else {
      expect_in(text.out, "us expected of one call");
    }
  }
}

// Scalar codes have no entries, and their scales take bits too.
TEST(Explain, OfScalarFormatsSaysNothingOfEntries) {
  const Folder folder;
  Json json = tiny_attention();
  json["shape"]["recent_tokens"] = 64;
  json["shape"]["head_dim"] = 128;
  for (const auto& [keys, values, key_bits, value_bits] :
       {std::tuple("int4-kivi-keys", "int4-kivi-values", "5 bits", "5 bits"),
        std::tuple("int8-channel", "int8-token", "8 bits", "8.25 bits")}) {
    json["keys"] = keys;
    json["values"] = values;
    const Outcome outcome = vqgen({"explain", folder.file("c.json", json.dump()), "--gpu", "h200"});
    expect_success(outcome);
    for (const auto& [operand, bits] :
         {std::pair("keys", key_bits), std::pair("values", value_bits)}) {
      const std::size_t at = outcome.out.find("\n  " + std::string(operand) + ": ");
      ASSERT_NE(at, std::string::npos) << outcome.out;
      expect_in(outcome.out.substr(at, outcome.out.find('\n', at + 1) - at),
                std::string(" of codes, ") + bits + " per number");
    }
    expect_in(outcome.out, "codes are the numbers, nothing is looked up but their scales");
    for (const char* words : {"one of 1 entries", "lookups 0.0 % find", "look up at once"}) {
      EXPECT_EQ(outcome.out.find(words), std::string::npos) << words << " in: " << outcome.out;
    }
  }
}

TEST(Explain, NamesAFasterFormatOfAsManyBits) {
  const Folder folder;
  for (const auto& [weights, words] :
       {std::pair{"quip-2", " us expected of weights aqlm-2x8i8, "},
        std::pair{"aqlm-2x8i8", "none is expected to be more than 20 % faster"}}) {
    Json json = tiny_gemv();
    json["weights"] = weights;
    json["shape"] = {{"m", 8}, {"out_features", 28672}, {"in_features", 8192}};
    json["plan"] = Json::object();
    const std::string config = folder.file("c.json", json.dump());
    const Outcome outcome = vqgen({"explain", config, "--gpu", "h200"});
    expect_success(outcome);
    const std::string::size_type at = outcome.out.find("\nother formats of as many bits\n");
    ASSERT_NE(at, std::string::npos);
    expect_in(outcome.out.substr(at), words);
  }
}

TEST(Explain, CompilesForTheRegistersThatAreTaken) {
  if (!has("NVRTC")) GTEST_SKIP() << "this machine has no NVRTC";
  const Arguments arguments{
      "explain", example("tinycode-projection"), "--compile", "--json", "--gpu", "h200"};
  const Outcome outcome = vqgen(arguments);
  expect_success(outcome);
  const Json document = document_of(outcome);
  const int registers = document["registers"].get<int>();
  EXPECT_GT(registers, 15);
  expect_in(text_of(document), std::to_string(registers) + " per thread, as compiled");
}

std::string scalar_report(const std::string& keys, const std::string& values, int recent_tokens) {
  const Folder folder;
  const Json config{{"op", "attention_decode"},
                    {"shape",
                     {{"batch", 2},
                      {"query_heads", 8},
                      {"kv_heads", 2},
                      {"head_dim", 128},
                      {"tokens", 1024},
                      {"recent_tokens", recent_tokens}}},
                    {"keys", keys},
                    {"values", values}};
  const Outcome outcome =
      vqgen({"explain", folder.file("c.json", config.dump()), "--gpu", "h200", "--json"});
  expect_success(outcome);
  return text_of(document_of(outcome));
}

// Scalar codes name no entries, and their scales are stored bits too.
TEST(Explain, SaysWhatScalarCodesAreAndAllTheirBits) {
  struct Case {
    const char *keys, *values, *bits, *code;
    int recent_tokens;
  };
  for (const Case& each :
       {Case{"int8-channel", "int8-channel", "8 bits per number", "numbers of 8 bits", 0},
        Case{"int8-token", "int8-token", "8.25 bits per number", "numbers of 8 bits", 0},
        Case{"int4-kivi-keys", "int4-kivi-values", "5 bits per number", "numbers of 4 bits", 32},
        Case{"fp8-e4m3", "fp8-e4m3", "8 bits per number", "numbers of 8 bits", 0}}) {
    const std::string text = scalar_report(each.keys, each.values, each.recent_tokens);
    for (const char* operand : {"keys: ", "values: "}) {
      const std::string line = text.substr(text.find(std::string(operand)));
      expect_in(line.substr(0, line.find('\n')), each.bits);
      expect_in(line.substr(0, line.find('\n')), each.code);
    }
    expect_in(text, "keys: codes are the numbers");
    EXPECT_EQ(text.find(" lookups 0.0 %"), std::string::npos) << text;
    EXPECT_EQ(text.find("names one of 1 entries"), std::string::npos) << text;
  }
}

// The formats that docs/formats.md recommends all have a time.
TEST(Explain, HasATimeForWhatIsRecommended) {
  std::vector<Json> configs{parse_json_file(example("llama3-8b-attention-2bit"))};
  Json attention = configs.front();
  attention["shape"].update(Json{{"batch", 16}, {"tokens", 16384}});
  for (const char* values : {"vecinfer-d4b8i8", "vecinfer-d4b8"}) {
    for (const int recent_tokens : {0, 128}) {
      attention["values"] = values;
      attention["shape"]["recent_tokens"] = recent_tokens;
      configs.push_back(attention);
    }
  }
  for (const int rows : {1, 8, 64, 200}) {
    configs.push_back({{"op", rows > 8 ? "gemm" : "gemv"},
                       {"shape", {{"m", rows}, {"out_features", 11008}, {"in_features", 4096}}},
                       {"weights", "aqlm-2x8i8"}});
  }
  const Folder folder;
  for (const Json& config : configs) {
    const Outcome outcome =
        vqgen({"explain", folder.file("c.json", config.dump()), "--gpu", "h200", "--json"});
    expect_success(outcome);
    const Json document = document_of(outcome);
    EXPECT_TRUE(document["expected_us"].is_number()) << config;
    EXPECT_EQ(text_of(document).find("not modelled"), std::string::npos) << config;
    const bool batch = config["shape"].value("batch", 1) > 1;
    EXPECT_EQ(text_of(document).find("with schedule balanced") != std::string::npos, batch)
        << config;
  }
}

class ByAccessCounts : public TinyBundle {
 protected:
  // Writes the config beside its profile, in a folder of its own, after `edit` has changed the
  // profiles.
  std::string config_with(Json config, const std::string& bundle,
                          const std::function<void(std::vector<AccessCounts>&)>& edit = {}) {
    const std::string profile = folder.path("p.json");
    expect_success(vqgen({"count-accesses", "--data", bundle, "--out", profile}));
    if (edit) {
      auto profiles = read_access_counts(std::filesystem::path(profile));
      edit(profiles);
      publish_text(profile, access_counts_text(profiles));
    }
    config["access_counts"] = "p.json";
    return folder.file("placed.json", config.dump());
  }

  // The first `hot` entries of each codebook are read 1000 times, the others once.
  static void heat(std::vector<AccessCounts>& profiles, int hot) {
    for (AccessCounts& each : profiles) {
      std::vector<std::int64_t> accesses(each.codebooks(), 0);
      for (std::size_t i = 0; i < each.counts.size(); ++i) {
        const auto entry = static_cast<int>(i % static_cast<std::size_t>(each.entries));
        each.counts[i] = entry < hot ? 1000 : 1;
        accesses[i / static_cast<std::size_t>(each.entries)] += each.counts[i];
      }
      const std::size_t books = each.codebooks();
      each.parts = {1, 1, accesses, std::vector<std::int64_t>(books, 1000),
                    std::vector<int>(books, 1)};
    }
  }
};

TEST_F(ByAccessCounts, RunsToTheSameBits) {
  for (const std::string& bundle : {cache_bundle(), matrix_bundle()}) {
    const Json config = bundle == cache_bundle() ? tiny_attention() : tiny_gemv();
    const std::string placed = config_with(config, bundle);
    const Outcome plain = vqgen(run_arguments(config, bundle));
    const Outcome by_access_counts = vqgen({"run", placed, "--data", bundle, "--backend", "host"});
    expect_success(plain);
    expect_success(by_access_counts);
    EXPECT_EQ(by_access_counts.out, plain.out);
  }
}

TEST_F(ByAccessCounts, ExplainAndCompileGiveTheReasons) {
  const std::string config = config_with(tiny_gemv(), matrix_bundle());
  const Outcome outcome = vqgen({"explain", config, "--gpu", "h200", "--json"});
  expect_success(outcome);
  const Json document = document_of(outcome);
  ASSERT_EQ(document["placement"].size(), 1u);
  EXPECT_EQ(document["placement"][0]["operand"], "weights");
  EXPECT_EQ(document["placement"][0]["placement"], document["plan"]["codebook"]);
  const std::string text = text_of(document);
  expect_in(text, "by the access counts");
  for (const std::string reason : document["placement"][0]["reasons"]) expect_in(text, reason);
  const Outcome paper =
      vqgen({"explain", config, "--gpu", "h200", "--placement", "vq-llm", "--json"});
  expect_success(paper);
  expect_in(text_of(document_of(paper)), "known once the kernel is compiled");
  if (!has("NVRTC")) GTEST_SKIP() << "this machine has no NVRTC";
  const Outcome compiled = vqgen({"compile", config, "--gpu", "h200"});
  expect_success(compiled);
  expect_in(compiled.out, "\nweights: shared: ");
  EXPECT_EQ(compiled.out.find("\nweights: registers: "), std::string::npos) << compiled.out;
}

TEST_F(ByAccessCounts, HotEntriesStandInRegistersOnceTheKernelIsCompiled) {
  if (!has("NVRTC")) GTEST_SKIP() << "this machine has no NVRTC";
  Json lanes = tiny_attention();  // whose kernel leaves registers
  lanes["plan"] = {{"dataflow", "simt"}};
  const std::string config =
      config_with(lanes, cache_bundle(), [](auto& profiles) { heat(profiles, 1); });
  const Outcome outcome =
      vqgen({"compile", config, "--gpu", "h200", "--placement", "vq-llm", "--json"});
  expect_success(outcome);
  const Json document = document_of(outcome);
  EXPECT_EQ(document["placement"][0]["placement"]["registers"], 1) << document.dump(2);
  EXPECT_EQ(document["kernels"][0]["plan"]["key_codebook"]["registers"], 1);
}

TEST_F(ByAccessCounts, TheFlagGoesOverTheConfigAndThePlanOverBoth) {
  Json config = tiny_gemv();
  config["plan"] = {{"codebook", {{"shared", 3}, {"replicated", 0}}}};
  const std::string placed = config_with(config, matrix_bundle());
  const Outcome outcome = vqgen({"explain", placed, "--gpu", "h200", "--json"});
  expect_success(outcome);
  EXPECT_EQ(document_of(outcome)["plan"]["codebook"]["shared"], 3);
  expect_in(text_of(document_of(outcome)), "the config's own plan fixes boundaries");
  expect_failure({"explain", placed, "--access-counts", folder.path("none.json")}, 2,
                 {"none.json"});
  expect_failure({"compile", placed, "--access-counts", folder.path("none.json")}, 2,
                 {"none.json"});
  // The path is relative to where the tool runs, not to the config's folder.
  const std::string plain = folder.file("plain.json", tiny_gemv().dump());
  expect_success(vqgen({"explain", plain, "--access-counts", folder.path("p.json")}));
}

TEST_F(ByAccessCounts, WhatDoesNotFitIsRefused) {
  const std::string config = config_with(tiny_gemv(), matrix_bundle());
  Json other = tiny_gemv();
  other["weights"]["index_bits"] = 6;
  other["access_counts"] = "p.json";
  const std::vector<std::string> words{"p.json: the profile of w.weights is of format"};
  const std::string wrong = folder.file("wrong.json", other.dump());
  for (const char* command : {"explain", "compile"}) {
    expect_failure({command, wrong}, 2, words);
    expect_failure({command, config, "--placement", "fastest"}, 2, {"--placement"});
    expect_failure(
        {command, folder.file("plain.json", tiny_gemv().dump()), "--placement", "vq-llm"}, 2,
        {"--placement places entries by access counts", "--access-counts"});
  }
  expect_failure({"run", wrong, "--backend", "host"}, 2, words);
  expect_failure({"export", wrong, "--out", folder.path("out.cu")}, 2, words);
  Json cache = tiny_attention();
  cache["access_counts"] = "p.json";
  expect_failure({"explain", folder.file("cache.json", cache.dump())}, 2,
                 {"p.json: holds no profile of keys"});
  folder.file("p.json", "{}");
  expect_failure({"explain", config}, 2, {"p.json", "'profiles' is missing"});
  folder.file("p.json", read_text(matrix_bundle()));
  expect_failure({"explain", config}, 2, {"p.json", "malformed JSON"});
}

}  // namespace
}  // namespace vqgen
