// The values of --codes: canonical names, files that are matched to a problem, and refusals.
#include "runtime/code_distribution.h"

#include <gtest/gtest.h>

#include "core/files/digest.h"
#include "core/files/files.h"
#include "core/problem/config.h"
#include "quantizer/access_counts.h"
#include "quantizer/bundle.h"
#include "runtime/ops/linear/reference.h"
#include "tests/core/access_counts_samples.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

TEST(CodeDistribution, NamesAreCanonical) {
  EXPECT_EQ(read_codes("uniform").name, "uniform");
  EXPECT_EQ(read_codes("uniform").pattern, CodePattern::uniform);
  EXPECT_EQ(read_codes("zipf").name, "zipf:1");
  EXPECT_EQ(read_codes("zipf:1.0").name, "zipf:1");
  EXPECT_EQ(read_codes("zipf:1.20").name, "zipf:1.2");
  EXPECT_EQ(read_codes("zipf:0.75").skew, 0.75);
  EXPECT_EQ(read_codes("zipf:10").pattern, CodePattern::zipf);
}

TEST(CodeDistribution, OthersAreRefused) {
  for (const char* text : {"", "zipf:", "zipf:0", "zipf:-1", "zipf:nan", "zipf:inf", "zipf:1x",
                           "zipf:1e3", "zipf: 1", "zipf:10.5", "Uniform", "nowhere.json", "hot"}) {
    expect_words(message_of([&] { read_codes(text); }), {"codes '" + std::string(text) + "'"});
  }
}

// Two of 16 codes are frequent; the format is that of the problem below.
AccessCounts skewed_profile() {
  std::vector<std::int64_t> counts(16, 1);
  counts[3] = counts[12] = 400;
  AccessCounts profile = profile_of({{counts}}, 1);
  profile.operand = Operand::weights;
  profile.format.scope = Scope::tensor;
  return profile;
}

Problem problem_of_profile() {
  return read_config(edited(gemv_json(), {{"/weights", R"({"vector_size": 4, "index_bits": 4})"}}),
                     "c")
      .problem;
}

TEST(CodeDistribution, AProfileIsMatchedAndDrawn) {
  const TempFolder folder;
  const std::string file = (folder.path() / "p.json").string();
  const std::string text = access_counts_text({skewed_profile()});
  publish_text(file, text);
  const CodeDistribution codes = read_codes(file);
  EXPECT_EQ(codes.name, "profile:" + sha256_hex(std::as_bytes(std::span(text))).substr(0, 12));
  const HardInput input = hard_input(codes, 5, problem_of_profile());
  EXPECT_EQ(input.seed, 5u);
  ASSERT_EQ(input.captured.size(), 1u);
  const LinearData data = make_linear_data(*as_linear(problem_of_profile()), input);
  std::int64_t hot = 0;
  for (const std::uint32_t word : data.weights.codes) {
    for (int i = 0; i < 8; ++i) hot += (word >> (4 * i) & 15) % 9 == 3;  // 3 and 12
  }
  const double share =
      static_cast<double>(hot) / (8.0 * static_cast<double>(data.weights.codes.size()));
  EXPECT_NEAR(share, 800.0 / 814, 0.005);

  const Problem other = read_config(gemv_json(), "c").problem;
  expect_words(message_of([&] { hard_input(codes, 5, other); }), {file, "format"});
  const Problem attention = read_config(attention_json(), "c").problem;
  expect_words(message_of([&] { hard_input(codes, 5, attention); }), {file, "keys"});
  publish_text(file, text.substr(0, text.size() / 2));
  expect_words(message_of([&] { read_codes(file); }), {file});
}

// A bundle's name and codes equal those of the profile that vqgen count-accesses writes.
TEST(CodeDistribution, ABundleIsItsProfile) {
  const TempFolder folder;
  const Problem problem = problem_of_profile();
  Bundle bundle;
  bundle.items.push_back(
      {"layer0", make_linear_data(*as_linear(problem), {.seed = 2, .codes = CodePattern::zipf})});
  const std::string file = (folder.path() / "b.safetensors").string();
  write_bundle(file, bundle);
  const std::string profile = (folder.path() / "p.json").string();
  publish_text(profile, access_counts_text(profile_bundle(bundle)));
  const CodeDistribution of_bundle = read_codes(file), of_profile = read_codes(profile);
  EXPECT_EQ(of_bundle.name, of_profile.name);
  const auto drawn = [&](const CodeDistribution& codes) {
    return make_linear_data(*as_linear(problem), hard_input(codes, 3, problem)).weights.codes;
  };
  EXPECT_EQ(drawn(of_bundle), drawn(of_profile));
}

}  // namespace
}  // namespace vqgen
