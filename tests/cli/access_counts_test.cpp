// Access counts at the command line: profiles of bundles, reordering, and the skew of the sample
// data.
#include "quantizer/access_counts.h"
#include "core/access/access_counts_summary.h"
#include "core/files/files.h"
#include "quantizer/encode.h"
#include "tests/cli/tiny_bundle.h"

namespace vqgen {
namespace {

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class CountAccesses : public TinyBundle {
 protected:
  Json profile(const std::string& bundle, const Arguments& more = {}) const {
    Arguments arguments{"count-accesses", "--json", "--data",
                        bundle,           "--out",  folder.path("p.json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = vqgen(arguments);
    expect_success(outcome);
    EXPECT_EQ(outcome.err, "");
    return document_of(outcome);
  }

  // Expects exit code 2, the words, and that nothing is written.
  void refuse(const Arguments& arguments, const std::vector<std::string>& words) const {
    const std::vector<std::string> before = folder.names();
    expect_failure(arguments, 2, words);
    EXPECT_EQ(folder.names(), before);
  }
};

TEST_F(CountAccesses, ProfileWritesWhatTheQuantizerCounts) {
  const Json document = profile(cache_bundle(), {"--parts", "5"});
  const std::vector<AccessCounts> profiles =
      read_access_counts(std::filesystem::path(folder.path("p.json")));
  EXPECT_EQ(profiles, profile_bundle(read_bundle(std::filesystem::path(cache_bundle())), 5));
  ASSERT_EQ(document["tensors"].size(), 2u);
  EXPECT_EQ(document["tensors"][1]["item"], "layer0");
  EXPECT_EQ(document["tensors"][1]["operand"], "values");
  EXPECT_EQ(document["tensors"][1]["format"], "d8b4");
  EXPECT_EQ(document["tensors"][1]["codebooks"], 2);
  EXPECT_EQ(document["tensors"][1]["accesses"], 2 * 128 * 64 / 8);
  EXPECT_EQ(document["tensors"][1]["mean"], 2 * 128 * 64 / 8 / 2 / 16);
  const AccessCountsFigures keys = summarise(profiles[0]);
  EXPECT_EQ(document["tensors"][0]["top_share"].get<std::vector<double>>(), keys.top_share);
  EXPECT_EQ(document["tensors"][0]["parts"]["share"][0].size(), 5u);
  EXPECT_EQ(profile(matrix_bundle())["tensors"][0]["operand"], "weights");
}

TEST_F(CountAccesses, ProfilePrintsALineATensor) {
  const Outcome outcome =
      vqgen({"count-accesses", "--data", cache_bundle(), "--out", folder.path("p.json")});
  expect_success(outcome);
  EXPECT_EQ(occurrences(outcome.out, "\nlayer0."), 2u) << outcome.out;
  EXPECT_NE(outcome.out.find("wrote " + folder.path("p.json")), std::string::npos);
  // With 16 entries, half of them are followed, and no figure is invented for the top 16, 32 and
  // 64.
  const std::size_t values = outcome.out.find("\nlayer0.values");
  const std::string line =
      outcome.out.substr(values + 1, outcome.out.find('\n', values + 1) - values);
  EXPECT_NE(line.find("top 8 take "), std::string::npos) << line;
  EXPECT_EQ(occurrences(line, "  -"), 3u) << line;
}

TEST_F(CountAccesses, ReorderedBundlesRunToTheSameBits) {
  for (const std::string& bundle : {cache_bundle(), matrix_bundle()}) {
    const Outcome outcome =
        vqgen({"reorder", "--data", bundle, "--out", folder.path("hot"), "--json"});
    expect_success(outcome);
    const Json document = document_of(outcome);
    for (const Json& tensor : document["tensors"]) {
      EXPECT_GT(tensor["share_below_after"], tensor["share_below_before"]);
      EXPECT_GT(tensor["share_below_after"], 0.25);
    }
    const Json config = bundle == cache_bundle() ? tiny_attention() : tiny_gemv();
    const auto run = [&](const std::string& data) {
      Arguments arguments = run_arguments(config, data);
      arguments.emplace_back("--json");
      const Outcome ran = vqgen(arguments);
      expect_success(ran);
      return document_of(ran);
    };
    EXPECT_EQ(run(folder.path("hot")), run(bundle));
    for (const AccessCounts& each :
         profile_bundle(read_bundle(std::filesystem::path(folder.path("hot"))))) {
      EXPECT_EQ(share_below(each, each.entries / 4, Numbering::current),
                share_below(each, each.entries / 4, Numbering::hot_first));
    }
  }
}

// Codes of either operand's scalar format are numbers without entries; the other operand is not
// written either.
TEST_F(CountAccesses, ScalarFormatsAreRefused) {
  const std::string out = folder.path("scalar");
  const char* const table = R"({"vector_size": 8, "index_bits": 4, "scope": "head"})";
  for (const auto& [keys, values, operand] :
       {std::tuple("int8-channel", table, "keys"), std::tuple(table, "int8-token", "values")}) {
    expect_success(vqgen({"quantize", "--input", tensors(), "--out", out, "--keys", "layer0.k",
                          "--key-format", keys, "--values", "layer0.v", "--value-format", values}));
    const std::string item = "layer0." + std::string(operand) + ": ";
    for (const Arguments& arguments :
         {Arguments{"count-accesses", "--data", out, "--out", folder.path("p.json")},
          Arguments{"reorder", "--data", out, "--out", folder.path("hot")}}) {
      expect_failure(arguments, 3, {item, "codes of format int8", "no accesses can be counted"});
    }
    EXPECT_EQ(folder.names(), std::vector<std::string>{"scalar"});
  }
}

TEST_F(CountAccesses, QuantizeReordersToTheSameBundle) {
  Arguments arguments = quantize_tiny_cache(tensors(), folder.path("one"));
  arguments.emplace_back("--reorder");
  expect_success(vqgen(arguments));
  expect_success(vqgen({"reorder", "--data", cache_bundle(), "--out", folder.path("two")}));
  EXPECT_EQ(read_text(folder.path("one")), read_text(folder.path("two")));
  EXPECT_NE(read_text(folder.path("one")), read_text(cache_bundle()));
  // A second reordering in place has nothing left to change.
  const std::string two = folder.path("two");
  expect_success(vqgen({"reorder", "--data", two, "--out", two}));
  EXPECT_EQ(read_text(folder.path("one")), read_text(two));
}

TEST_F(CountAccesses, ReorderTakesTheProfileOfOtherData) {
  const std::string by_own = folder.path("own"), by_profile = folder.path("profile");
  profile(cache_bundle());
  expect_success(vqgen({"reorder", "--data", cache_bundle(), "--out", by_own}));
  const Arguments arguments{"reorder",  "--data",          cache_bundle(),       "--out",
                            by_profile, "--access-counts", folder.path("p.json")};
  expect_success(vqgen(arguments));
  EXPECT_EQ(read_text(by_own), read_text(by_profile));

  // These counts differ in that the coldest entry of the first codebook is the hottest.
  const auto keys_of = [](const std::string& path) {
    return std::get<AttentionData>(read_bundle(std::filesystem::path(path)).items[0].data).keys;
  };
  auto profiles = read_access_counts(std::filesystem::path(folder.path("p.json")));
  const std::uint32_t coldest = hot_first(profiles[0].codebook(0)).back();
  const std::int64_t most = 1'000'000;
  profiles[0].counts[coldest] = most;
  profiles[0].parts = {1, 1, {summarise(profiles[0]).accesses}, {most}, {1}};
  publish_text(folder.path("p.json"), access_counts_text(profiles));
  expect_success(vqgen(arguments));
  const QuantizedTensor keys = keys_of(by_profile);
  EXPECT_TRUE(std::equal(keys.codebooks.begin(), keys.codebooks.begin() + 4,
                         keys_of(cache_bundle()).codebooks.begin() + 4 * coldest));
  EXPECT_EQ(decode(keys).data, decode(keys_of(by_own)).data);

  Arguments wrong = arguments;
  wrong[2] = matrix_bundle();
  expect_failure(wrong, 2, {"reorder: no profile of the weights of 'w'"});
  wrong.back() = matrix_bundle();
  expect_failure(wrong, 2, {matrix_bundle(), "malformed JSON"});
}

TEST_F(CountAccesses, BadInputIsRefused) {
  const std::string out = folder.path("out");
  for (const char* command : {"count-accesses", "reorder"}) {
    refuse({command, "--data", folder.path("none"), "--out", out}, {"cannot read", "none"});
    refuse({command, "--data", tensors(), "--out", out}, {tensors(), "not a bundle"});
    const std::string cut = folder.file("cut", read_text(matrix_bundle()).substr(0, 5000));
    refuse({command, "--data", cut, "--out", out}, {cut});
    refuse({command, "--data", matrix_bundle(), "--out", folder.path("")},
           {command, "--out", "is a folder; name a file"});
    refuse({command, "--data", matrix_bundle(), "--out", folder.path("no/file")},
           {command, "--out", folder.path("no") + " is not there; make it"});
    refuse({command, "--data", matrix_bundle(), "--out", cut + "/file"},
           {command, "--out", cut + " is no folder that can be written"});
    refuse({command, "--data", matrix_bundle()}, {"--out is required"});
    refuse({command, "--out", out}, {"--data is required"});
  }
  for (const char* parts : {"0", "1025", "-1", "2.5", "many"}) {
    refuse({"count-accesses", "--data", matrix_bundle(), "--out", out, "--parts", parts},
           {"--parts"});
  }
  const std::string own = folder.file("own", read_text(matrix_bundle()));
  refuse({"count-accesses", "--data", own, "--out", own},
         {"--data", "name one file; name another"});
  EXPECT_EQ(read_text(own), read_text(matrix_bundle()));
}

// Layer 2 of the sample model as VQ-LLM figs 8 and 9 look at it. The bounds are wide, since k-means
// on a GPU may give other codebooks.
TEST_F(CountAccesses, OfTheSampleDataIsSkewedAndFlatterAfterHadamard) {
  const auto figures_of = [&](const std::string& key_format) {
    expect_success(
        vqgen({"quantize", "--input", sample("tinycode-kv-heldout"), "--calibration",
               sample("tinycode-kv-calibration"), "--out", folder.path("b"), "--keys", "layer2.k",
               "--key-format", key_format, "--values", "layer2.v", "--value-format", key_format}));
    return profile(folder.path("b"))["tensors"];
  };
  const Json plain = figures_of(R"({"vector_size": 4, "index_bits": 8, "scope": "head"})");
  for (const Json& tensor : plain) {
    EXPECT_EQ(tensor["accesses"], 2 * 2048 * 128 / 4);
    EXPECT_EQ(tensor["mean"], 256);
    EXPECT_GT(tensor["below_mean"], 0.5);
    EXPECT_GT(tensor["top_share"][6], 0.38);  // 64 of 256
    EXPECT_LT(tensor["top_share"][6], 0.55);
    EXPECT_GT(tensor["parts"]["overlap"][6], 0.35);  // at random 0.14
    for (const Json& share : tensor["parts"]["share"][6]) EXPECT_GT(share, 0.3);
  }
  const Json rotated = figures_of("vecinfer-d4b8");
  EXPECT_LT(rotated[0]["top_share"][6], plain[0]["top_share"][6]);
  EXPECT_LT(rotated[0]["sigma"], 0.85 * plain[0]["sigma"].get<double>());
  EXPECT_EQ(rotated[1], plain[1]);  // values are not transformed
}

}  // namespace
}  // namespace vqgen
