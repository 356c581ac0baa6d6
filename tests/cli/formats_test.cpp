// Formats as a user may give them: a preset, a preset with changed fields, a file.
#include "core/profiles.h"
#include "quantizer/bundle.h"
#include "tests/cli/tiny_bundle.h"

namespace vqgen {
namespace {

Arguments quantize(const std::string& tensors, const std::string& key_format,
                   const std::string& out) {
  return {"quantize", "--input",        tensors,         "--out",     out,
          "--keys",   "layer0.k",       "--values",      "layer0.v",  "--key-format",
          key_format, "--value-format", "vecinfer-d4b8", "--queries", "layer0.q"};
}

TEST_F(TinyBundle, HoldsTheFormatThatAPresetWasExtendedTo) {
  VqFormat expected = find_format("vecinfer-d4b8", "test");
  expected.hadamard = false;
  expected.index_bits = 5;
  const char* const extended = R"({"preset": "vecinfer-d4b8", "hadamard": false, "index_bits": 5})";
  for (const std::string& format : {std::string(extended), folder.file("mine.json", extended)}) {
    const std::string out = folder.path("bundle");
    expect_success(vqgen(quantize(tensors(), format, out)));
    const Bundle bundle = read_bundle(std::filesystem::path(out));
    EXPECT_EQ(std::get<AttentionData>(bundle.items.at(0).data).keys.format, expected) << format;

    Json config = tiny_attention();
    config["keys"] = "mine.json";
    config["values"] = "vecinfer-d4b8";
    folder.file("mine.json", extended);
    expect_success(vqgen(run_arguments(config, out)));
  }
}

TEST_F(TinyBundle, IsNotMadeOfAFormatThatNothingHas) {
  const std::string out = folder.path("bundle");
  expect_failure(quantize(tensors(), "vecinfer-d4b9", out), 2,
                 {"--key-format: ", "'vecinfer-d4b9' is unknown", "did you mean 'vecinfer-d4b8'?"});
  expect_failure(quantize(tensors(), folder.path("none.json"), out), 2, {"none.json: cannot read"});
  expect_failure(quantize(tensors(), R"({"preset": "vecinfer-d4b8", "hadamrd": false})", out), 2,
                 {"--key-format: /: unknown field 'hadamrd'"});
  const std::string file = folder.file("mine.json", R"({"preset": "cq-4c8b", "num_codebooks": 0})");
  expect_failure(quantize(tensors(), file, out), 2, {file + ": /num_codebooks: ", "1 to 36"});
  EXPECT_EQ(folder.names(), std::vector<std::string>{"mine.json"});
}

TEST(Formats, HadamardIsOfAnyHeadWithAKernelAndMayBeLeftOut) {
  const Folder folder;
  Json config = tiny_attention();
  config["shape"]["head_dim"] = 96;
  config["keys"] = "vecinfer-d4b8";
  const std::string path = folder.file("config.json", config.dump());
  expect_success(vqgen({"explain", path}));
  config["keys"] = {{"preset", "vecinfer-d4b8"}, {"hadamard", false}};
  folder.file("config.json", config.dump());
  const Outcome outcome = vqgen({"explain", path, "--json"});
  expect_success(outcome);
  const Json keys = document_of(outcome)["problem"]["keys"];
  EXPECT_EQ(keys["hadamard"], false);
  EXPECT_EQ(keys["smooth"], true);
  EXPECT_FALSE(keys.contains("preset"));
}

}  // namespace
}  // namespace vqgen
