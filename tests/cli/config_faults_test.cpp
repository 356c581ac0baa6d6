// Faulty configs: one line that names file, place and remedy, the exit code, and nothing written.
#include "tests/cli/tiny_bundle.h"

namespace vqgen {
namespace {

struct Fault {
  const char* name;
  const char* pointer;  // place in the config and its replacement
  const char* value;
  int exit_code;
  std::vector<std::string> words;
};

class ConfigFault : public testing::TestWithParam<Fault> {};

TEST_P(ConfigFault, IsNamedByEverySubcommandThatReadsIt) {
  const Fault& fault = GetParam();
  const Folder folder;
  Json json = tiny_attention();
  json[Json::json_pointer(fault.pointer)] = parse_json(fault.value, "the test's value");
  const std::string config = folder.file("config.json", json.dump());
  std::vector<std::string> words = fault.words;
  if (fault.exit_code == 2) words.push_back(config + ": " + fault.pointer);
  expect_failure({"compile", config, "--out", folder.path("out")}, fault.exit_code, words);
  expect_failure({"export", config, "--out", folder.path("out.cu")}, fault.exit_code, words);
  expect_failure({"run", config, "--backend", "host"}, fault.exit_code, words);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"config.json"});
}

INSTANTIATE_TEST_SUITE_P(
    Values, ConfigFault,
    testing::Values(
        Fault{"wrong_type", "/shape/batch", R"("3")", 2, {"whole number", "a string"}},
        Fault{"fraction", "/shape/batch", "3.7", 2, {"whole number from 1 to 65535", "3.7"}},
        Fault{"zero", "/shape/tokens", "0", 2, {"from 1 to 2147482623", "integer 0"}},
        Fault{"negative", "/shape/kv_heads", "-2", 2, {"from 1 to 65535", "-2"}},
        Fault{"huge", "/shape/tokens", "1e30", 2, {"from 1 to 2147482623", "1e+30"}},
        Fault{"huge_unsigned", "/shape/tokens", "18446744073709551615", 2, {"to 2147482623"}},
        Fault{"index_bits_0", "/keys/index_bits", "0", 2, {"from 2 to 18", "integer 0"}},
        Fault{"index_bits_19", "/keys/index_bits", "19", 2, {"from 2 to 18", "integer 19"}},
        Fault{"vector_size", "/keys/vector_size", "80", 2, {"80 does not divide head_dim 64"}},
        Fault{"vector_size_3", "/keys/vector_size", "3", 2, {"one of 2, 4, 8, 16", "integer 3"}},
        Fault{"vector_size_word", "/keys/vector_size", R"("4")", 2, {"one of 2, 4", "string"}},
        Fault{"residuals_37", "/keys/num_codebooks", "37", 2, {"from 1 to 36", "integer 37"}},
        Fault{"decoder", "/keys/decoder", R"("e8p")", 2, {"8 elements of 16 bits", "table"}},
        Fault{"preset", "/keys", R"("vq-9")", 2, {"'vq-9' is unknown", "vecinfer-d4b8"}},
        Fault{"page_tokens", "/shape/page_tokens", "48", 2, {"48 is none of 16, 32, 64, 128"}},
        Fault{"page_tokens_negative", "/shape/page_tokens", "-16", 2, {"from 0 to 256", "-16"}},
        Fault{"query_tokens_0", "/shape/query_tokens", "0", 2, {"from 1 to 64", "integer 0"}},
        Fault{"query_tokens_17",
              "/shape/query_tokens",
              "17",
              2,
              {"17 are more than the 16", "tree_mask"}},
        Fault{"op", "/op", R"("prefill")", 2, {"'prefill'", "attention_decode, gemv"}},
        Fault{"plan", "/plan/threads", "0", 2, {"from 32 to 1024"}},
        Fault{"plan_array", "/plan", "[]", 2, {"must be an object of the plan's fields"}},
        Fault{"plan_null", "/plan", "null", 2, {"must be an object of the plan's fields"}},
        Fault{"gpu_null", "/gpu", "null", 2, {"must be a string"}},
        Fault{"gpu_empty", "/gpu", R"("")", 2, {"must not be empty", "leave the field out"}},
        Fault{"access_counts_empty", "/access_counts", R"("")", 2, {"must not be empty"}}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Infeasible, ConfigFault,
    testing::Values(
        Fault{
            "head_dim", "/shape/head_dim", "72", 3, {"/shape/head_dim: 72 is not built yet", "96"}},
        Fault{"plan", "/plan/threads", "48", 3, {"/plan: ", "multiple of 32"}}),
    [](const auto& test) { return test.param.name; });

TEST(ConfigFile, MalformedTextIsNamedWithItsPlace) {
  const Folder folder;
  const std::string sound = tiny_attention().dump();
  const auto refuse = [&](const std::string& text, const std::vector<std::string>& words) {
    const std::string config = folder.file("config.json", text);
    std::vector<std::string> all{config + ": "};
    all.insert(all.end(), words.begin(), words.end());
    expect_failure({"compile", config}, 2, all);
  };
  refuse("", {"malformed JSON near byte 1", "correct it"});
  refuse(sound.substr(0, sound.size() - 1), {"malformed JSON near byte", "expected"});
  refuse(R"({"op": "gemv", "op": "gemv"})", {"'op' is there twice", "remove one"});
  refuse(std::string(100, '['), {"nested deeper than 64 levels", "flatten it"});
  refuse("[]", {"/: must be an object"});
}

// A line break in a name cannot make two lines of the message.
TEST(ConfigFile, UnknownFieldsAreNamedOnOneLine) {
  const Folder folder;
  Json json = tiny_attention();
  json["key\nheads"] = 1;
  expect_failure({"compile", folder.file("config.json", json.dump())}, 2,
                 {"unknown field 'key heads'", "the fields here are op, dtype"});
}

TEST(ConfigFile, SizesWhoseProductIsBeyondAnyDevice) {
  const Folder folder;
  Json json = tiny_attention();
  json["shape"].update(
      {{"batch", 65535}, {"kv_heads", 65535}, {"query_heads", 65535}, {"tokens", 2147482623}});
  expect_failure({"run", folder.file("config.json", json.dump()), "--backend", "host"}, 2,
                 {"/shape: ", "beyond any device", "at most"});
  Json gemv = tiny_gemv();
  gemv["shape"].update({{"out_features", 1 << 24}, {"in_features", 1 << 24}});
  expect_failure({"run", folder.file("config.json", gemv.dump()), "--backend", "host"}, 2,
                 {"/shape: ", "beyond any device", "at most"});
}

TEST(ConfigFile, MissingFoldersAndStrangeNames) {
  const Folder folder;
  expect_failure({"compile", folder.path("none.json")}, 2,
                 {folder.path("none.json"), "cannot read: No such file", "; correct its path"});
  expect_failure({"compile", folder.path("")}, 2,
                 {"cannot read: Is a directory", "; name a file in it"});
  expect_failure({"compile", "/dev/null"}, 2, {"/dev/null: cannot read"});
}

// The document is still JSON: such bytes become replacement characters.
TEST(ConfigFile, BytesThatAreNoUtf8) {
  const Folder folder;
  const std::string config = folder.file("config.json", "{\"op\": \"gemv\xff\"}");
  for (const std::string& path : {config, std::string("bad\xffname.json")}) {
    const Outcome outcome = vqgen({"compile", path, "--json"});
    EXPECT_EQ(outcome.exit_code, 2);
    const std::string error = document_of(outcome).value("error", "");
    EXPECT_NE(error.find(path == config ? "malformed JSON near byte 13" : "name.json"),
              std::string::npos)
        << error;
  }
}

}  // namespace
}  // namespace vqgen
