// The tool on checkpoints of other tools: what it says, and what it refuses.
#include "tests/cli/tool.h"
#include "tests/quantizer/gguf_models.h"
#include "tests/tiny_model.h"

namespace vqgen {
namespace {

TEST(ImportTool, SaysWhatBecomesOfEachType) {
  const Folder folder;
  const std::string model = folder.file("model.gguf", gguf_models::llama().file());
  const Outcome outcome = vqgen({"import", model, "--out", folder.path("out")});
  expect_success(outcome);
  EXPECT_EQ(lines_of(outcome.out), (Arguments{"F16 -> F16  8 tensors  57344 bytes -> 57344 bytes",
                                              "F32 -> F16  3 tensors  768 bytes -> 384 bytes",
                                              "Q8_0 -> F16  1 tensors  6528 bytes -> 12288 bytes",
                                              "wrote " + folder.path("out")}));
  ASSERT_EQ(lines_of(outcome.err).size(), 1u);
  EXPECT_TRUE(outcome.err.starts_with("the tokenizer is not carried over")) << outcome.err;
  const Json json = document_of(
      vqgen({"import", model, "--out", folder.path("again"), "--dtype", "bf16", "--json"}));
  EXPECT_EQ(json["kinds"][2], (Json{{"from", "Q8_0"},
                                    {"to", "BF16"},
                                    {"unit", "tensors"},
                                    {"count", 1},
                                    {"bytes_before", 6528},
                                    {"bytes_after", 12288}}));
  EXPECT_EQ(json["notes"].size(), 1u);
}

TEST(ImportTool, RefusesWhatIsNoCheckpoint) {
  const Folder folder;
  TinyModel().write(folder.path("model"));
  const Arguments import{"import", folder.path("model"), "--out", folder.path("out")};
  expect_failure(import, 2, {"config.json", "the model is not quantized", "vqgen quantize"});
  for (const char* option : {"--like", "--dtype"}) {
    Arguments given = import;
    given.insert(given.end(), {option, "f16"});
    expect_failure(given, 2, {option, "goes with a GGUF file", "leave it out"});
  }
  expect_failure({"import", folder.path("model/tokenizer.json"), "--out", folder.path("out")}, 2,
                 {"tokenizer.json", "is no GGUF file"});
  expect_failure({"import", folder.path("model"), "--out", folder.path("model/in")}, 2,
                 {"is in the folder of the model"});
  EXPECT_FALSE(std::filesystem::exists(folder.path("out.partial")));
}

}  // namespace
}  // namespace vqgen
