// The generated text: the same bytes each time, self-contained, and with a head that describes it.
#include "generator/generate.h"

#include <map>
#include <set>
#include <sstream>

#include "core/profiles.h"
#include "heuristics/choose.h"
#include "heuristics/explain.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

struct Case {
  Problem problem;
  Plan plan;
  GpuSpec gpu;
  std::vector<std::string> reasons;

  KernelSource generate(Machine machine = Machine::cuda) const {
    return vqgen::generate(problem, plan, gpu, machine, reasons);
  }
};

Case example(const std::filesystem::path& path) {
  Case made;
  made.problem = read_config(path).problem;
  made.gpu = find_gpu("h200");
  made.plan = choose(made.problem, made.gpu, {.chooser = Chooser::rules});
  made.reasons = explain(made.plan, made.problem, made.gpu);
  return made;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The leading comment lines.
std::string head_of(const std::string& text) {
  std::string head;
  for (const std::string& line : lines_of(text)) {
    if (!line.starts_with("//")) break;
    head += line + "\n";
  }
  return head;
}

class Generate : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(Generate, TheSameArgumentsGiveTheSameBytes) {
  const Case made = example(GetParam());
  const KernelSource first = made.generate();
  const KernelSource second = example(GetParam()).generate();
  EXPECT_EQ(first.text, second.text);
  EXPECT_EQ(first.arch, "sm_90a");
  EXPECT_EQ(first.op, op_name(made.problem));
  EXPECT_GT(first.args_bytes, 0);
  EXPECT_EQ(made.generate(Machine::host).arch, "host");
  EXPECT_NE(made.generate(Machine::host).text, first.text);
}

TEST_P(Generate, TheHeadNamesProblemPlanAndReasons) {
  const Case made = example(GetParam());
  const KernelSource source = made.generate();
  const std::string head = head_of(source.text);
  expect_words(head, {source.entries.front().name, "// Problem  " + source.op, "// Plan",
                      made.gpu.name, "nvcc -std=c++17 -arch=sm_90a"});
  const Json problem = to_json(made.problem);
  for (const Json& json : {problem["shape"], to_json(made.plan)}) {
    for (const auto& [field, value] : json.items()) {
      expect_words(head, {" " + field + "=" +
                          (value.is_string() ? value.get<std::string>() : value.dump())});
    }
  }
  ASSERT_FALSE(made.reasons.empty());
  for (const std::string& reason : made.reasons) expect_words(head, {"//   " + reason + "\n"});
}

// The text between VQ_KERNEL and the name and launch shape of the entry; "none" if they are absent.
std::string head_in(const std::string& text, const KernelEntry& entry) {
  const std::string shape = "(" + entry.name + ", " + std::to_string(entry.threads) + ", ";
  const std::string macro = "VQ_KERNEL";
  const std::size_t at = text.find(shape);
  const std::size_t begin = text.rfind(macro, at);
  if (at == text.npos || begin == text.npos) return "none";
  return text.substr(begin + macro.size(), at - begin - macro.size());
}

TEST_P(Generate, EntriesStandInTheTextWithTheirLaunchShape) {
  const KernelSource source = example(GetParam()).generate();
  ASSERT_FALSE(source.entries.empty());
  std::set<std::string> names;
  for (const KernelEntry& entry : source.entries) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    EXPECT_NE(head_in(source.text, entry), "none");
    EXPECT_GE(entry.threads, 32u);
    EXPECT_LE(entry.threads, 1024u);
    EXPECT_GE(entry.grid.x * entry.grid.y * entry.grid.z, 1u);
  }
}

// The resident blocks at their start decide which launches overlap:
// docs/lab/attention-histogram.md.
TEST(GenerateBins, NoLaunchOverlapsTablesScoresAndBins) {
  AttentionDecode op;
  op.shape = {.batch = 8, .query_heads = 32, .kv_heads = 8, .head_dim = 128, .tokens = 65536};
  op.keys = find_format("vqkv-llama-3.1-8b-keys", "test");
  op.values = find_format("vqkv-llama-3.1-8b-values", "test");
  const GpuSpec gpu = find_gpu("h200");
  const Plan plan = choose(op, gpu, {.chooser = Chooser::rules});
  const KernelSource source = generate(op, plan, gpu, Machine::cuda, {});
  ASSERT_EQ(source.entries.size(), 5u);
  const char* heads[] = {"_ENDS_FIRST", "_ENDS_FIRST", "_ENDS_FIRST", "_AHEAD_RESIDENT",
                         "_AHEAD_RESIDENT"};
  for (std::size_t i = 0; i < std::size(heads); ++i) {
    EXPECT_EQ(head_in(source.text, source.entries[i]), heads[i]);
  }
}

// Which launches begin before the previous one ends, by example: each entry's head in order.
TEST(GenerateHeads, AreThoseOfTheExamples) {
  const struct {
    const char* config;
    std::vector<std::string> heads;
  } expected[] = {
      {"llama3-8b-attention-2bit", {"_AHEAD", "_AHEAD_RESIDENT"}},
      {"llama3-8b-attention-int8", {"_AHEAD", "_AHEAD_RESIDENT"}},
      {"llama3-8b-kv-append-2bit", {""}},
      {"llama3-8b-kv-decode-2bit", {"_AHEAD"}},
      {"llama3-8b-merge", {""}},
      {"llama3-8b-up-aqlm-2x8", {"_AHEAD"}},
      {"llama3-8b-up-quip-4", {"_AHEAD"}},
      {"llama3-8b-up-dequantize", {"_AHEAD"}},
      {"mixtral-8x7b-up-aqlm-2x8i8", {"_AHEAD"}},
      {"tinycode-layer", {"_AHEAD", "_AHEAD_RESIDENT"}},
      {"tinycode-projection", {"_AHEAD"}},
  };
  for (const auto& [config, heads] : expected) {
    const KernelSource source =
        example(std::string(VQGEN_SOURCE_DIR "/examples/configs/") + config + ".json").generate();
    std::vector<std::string> found;
    for (const KernelEntry& entry : source.entries) found.push_back(head_in(source.text, entry));
    EXPECT_EQ(found, heads) << config;
  }
}

// Lines by the template that they came from, according to the #line marks.
std::map<std::string, std::vector<std::string>> lines_by_file(const std::string& text) {
  std::map<std::string, std::vector<std::string>> files;
  std::string file = "head";
  for (const std::string& line : lines_of(text)) {
    if (line.starts_with("#line ")) {
      const std::size_t begin = line.find('"') + 1;
      file = line.substr(begin, line.rfind('"') - begin);
    } else {
      files[file].push_back(line);
    }
  }
  return files;
}

std::string_view template_text(const std::string& path) {
  std::string_view found;
  for (const EmbeddedFile& file : embedded_templates()) {
    if (file.path == "machine/cuda/" + path) return file.text;
    if (file.path == path) found = file.text;
  }
  return found;
}

TEST_P(Generate, EachTemplateStandsThereOnceAndWhole) {
  const Case made = example(GetParam());
  const KernelSource source = made.generate();
  const auto files = lines_by_file(source.text);
  EXPECT_TRUE(files.contains("vq/machine.cuh"));
  EXPECT_TRUE(files.contains(source.op == "attention_decode"  ? "vq/ops/attention_work.cuh"
                             : source.op == "kv_append"       ? "vq/ops/append_rows.cuh"
                             : source.op == "kv_dequantize"   ? "vq/ops/cache_rows.cuh"
                             : source.op == "attention_merge" ? "vq/codebook/entry.cuh"
                             : source.op == "int8_quantize"   ? "vq/loads.cuh"
                                                              : "vq/ops/linear_work.cuh"));
  const std::string kernel = "vq/kernels/" + std::string(kernel_name(made.plan));
  EXPECT_TRUE(files.contains(kernel + "/kernel.cuh")) << kernel;
  EXPECT_TRUE(files.contains(kernel + "/plan.h")) << kernel;
  EXPECT_TRUE(files.contains("plan"));
  for (const auto& [file, lines] : files) {
    if (file == "head" || file == "plan") continue;
    SCOPED_TRACE(file);
    std::vector<std::string> expected;
    for (const std::string& line : lines_of(std::string(template_text(file)))) {
      if (line.starts_with("#include <vq/")) continue;
      expected.push_back(line == "#pragma once" ? "" : line);
    }
    EXPECT_FALSE(expected.empty());
    EXPECT_EQ(lines, expected);
  }
}

// A mark is right if the line after it is that line of the file.
TEST_P(Generate, LineMarksPointAtTheirLines) {
  const std::vector<std::string> lines = lines_of(example(GetParam()).generate().text);
  int marks = 0;
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    if (!lines[i].starts_with("#line ") || lines[i + 1].starts_with("#line ")) continue;
    const std::size_t number = std::stoul(lines[i].substr(6));
    const std::size_t begin = lines[i].find('"') + 1;
    const std::string file = lines[i].substr(begin, lines[i].rfind('"') - begin);
    if (file == "plan") continue;
    const auto original = lines_of(std::string(template_text(file)));
    ASSERT_LE(number, original.size()) << lines[i];
    const std::string& line = original[number - 1];
    EXPECT_EQ(lines[i + 1], line == "#pragma once" ? "" : line) << lines[i];
    ++marks;
  }
  EXPECT_GT(marks, 5);
}

TEST_P(Generate, NothingIsLeftToIncludeAndNothingVaries) {
  for (const auto& [file, lines] : lines_by_file(example(GetParam()).generate().text)) {
    const bool machine =
        file == "vq/machine.cuh" || file == "vq/annotations.h" || file.starts_with("vq/cuda_");
    for (const std::string& line : lines) {
      EXPECT_EQ(line.find("#include <vq/"), std::string::npos) << file << ": " << line;
      EXPECT_EQ(line.find("#include"), std::string::npos) << file << ": " << line;
      EXPECT_TRUE(machine || !line.starts_with("#")) << file << ": " << line;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Examples, Generate, testing::ValuesIn(example_configs()),
                         [](const auto& test) {
                           std::string name = test.param.stem().string();
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(GenerateEntries, SplitsBringTheCombiningKernel) {
  Case made = example(VQGEN_SOURCE_DIR "/examples/configs/tinycode-layer.json");
  auto& plan = std::get<AttentionMma>(made.plan);
  plan.splits = 1;
  EXPECT_EQ(made.generate().entries.size(), 1u);
  EXPECT_EQ(made.generate().text.find("vq::attention_combine<Plan>("), std::string::npos);
  plan.splits = 2;
  const KernelSource source = made.generate();
  ASSERT_EQ(source.entries.size(), 2u);
  EXPECT_NE(source.text.find("vq::attention_combine<Plan>("), std::string::npos);
  EXPECT_TRUE(source.entries[1].name.starts_with("attention_decode_combine_"));
  EXPECT_EQ(source.entries[0].grid.x, 2u);

  plan.combine = Combine::last_block;
  const KernelSource merging = made.generate();
  ASSERT_EQ(merging.entries.size(), 1u);
  EXPECT_EQ(merging.text.find("vq::attention_combine<Plan>("), std::string::npos);
  EXPECT_NE(merging.entries[0].name, source.entries[0].name);
  EXPECT_EQ(merging.entries[0].grid.x, 2u);
  EXPECT_EQ(merging.entries[0].shared_bytes, source.entries[0].shared_bytes);
}

TEST(GenerateEntries, AProductsLastBlockBringsNone) {
  Case made = example(VQGEN_SOURCE_DIR "/examples/configs/llama3-8b-up-aqlm-2x8.json");
  auto& plan = made.plan.emplace<LinearSimt>(LinearSimt{.splits = 2});
  EXPECT_EQ(made.generate().entries.size(), 2u);
  EXPECT_NE(made.generate().text.find("vq::linear_combine<Plan>("), std::string::npos);
  plan.combine = Combine::last_block;
  EXPECT_EQ(made.generate().entries.size(), 1u);
  EXPECT_EQ(made.generate().text.find("vq::linear_combine<Plan>("), std::string::npos);
}

// The kernel itself says that its blocks form clusters, for every kind of launch. If there are more
// blocks than clusters fit at once, they may share an SM.
TEST(GenerateEntries, ClustersAreTheKernelsOwn) {
  Case made = example(VQGEN_SOURCE_DIR "/examples/configs/llama3-8b-up-aqlm-2x8.json");
  Gemm op{std::get<Gemv>(made.problem)};
  op.shape = {.rows = 16, .out_features = 28 * 128, .in_features = 4096};
  made.problem = op;
  auto& plan = made.plan.emplace<LinearWgmma>(LinearWgmma{.splits = 4});
  plan.rows_per_block = 16;
  plan.combine = Combine::cluster;
  const KernelSource source = made.generate();
  ASSERT_EQ(source.entries.size(), 1u);
  EXPECT_NE(source.text.find("VQ_KERNEL_AHEAD_CLUSTERS(" + source.entries[0].name + ", 256, 4, "),
            std::string::npos);
  EXPECT_NE(source.text.find("clusters of (1, 1, 4) by themselves"), std::string::npos);
  EXPECT_EQ(source.entries[0].grid.z, 4u);
  EXPECT_GT(source.entries[0].shared_bytes, 233472 / 2);  // 112 blocks
  op.shape.out_features = 33 * 128;
  made.problem = op;
  EXPECT_LT(made.generate().entries[0].shared_bytes, 233472 / 2);
  plan.combine = Combine::kernel;
  EXPECT_GT(made.generate().entries[0].shared_bytes, 233472 / 2);
}

// At most three blocks share an SM, unless lookups need its L1 or rows are few.
TEST(GenerateEntries, BlocksOfAKernelBeforeDoNotCrowd) {
  Case made = example(VQGEN_SOURCE_DIR "/examples/configs/llama3-8b-up-aqlm-2x8.json");
  Gemm op{std::get<Gemv>(made.problem)};
  op.shape = {.rows = 16, .out_features = 4096, .in_features = 4096};
  made.problem = op;
  auto& rows = made.plan.emplace<LinearWgmmaLargeM>();
  rows.codebook = all_shared(256);
  EXPECT_GT(made.generate().entries[0].shared_bytes, 233472 / 4);
  EXPECT_LT(made.generate().entries[0].shared_bytes, 233472 / 3 - 1024);
  rows.codebook = all_global();
  EXPECT_EQ(made.generate().entries[0].shared_bytes, 0);

  op.weights = find_format("aqlm-2x8i8", "test");
  for (const auto& [call_rows, more] : {std::pair{64, false}, std::pair{65, true}}) {
    op.shape.rows = call_rows;
    made.problem = op;
    auto& bytes = made.plan.emplace<LinearInt8Wgmma>(LinearInt8Wgmma{.rows_per_block = 32});
    bytes.codebook = all_shared(256);
    EXPECT_EQ(made.generate().entries[0].shared_bytes > 233472 / 4, more) << call_rows << " rows";
  }
}

// The blocks that may share an SM are as many as an SM has if all are spread evenly.
TEST(GenerateEntries, BlocksOfAttentionAreDealtOutEvenly) {
  Case made = example(VQGEN_SOURCE_DIR "/examples/configs/llama3-8b-attention-2bit.json");
  auto& op = std::get<AttentionDecode>(made.problem);
  op.shape = {.batch = 1, .query_heads = 32, .kv_heads = 8, .head_dim = 128, .tokens = 8192};
  made.plan = AttentionMma{.threads = 128, .splits = 16, .heads_per_block = 4};
  const auto asked = [&](int splits) {
    std::get<AttentionMma>(made.plan).splits = splits;
    return made.generate().entries[0].shared_bytes;
  };
  EXPECT_GT(asked(16), 233472 / 2);  // 128 blocks for 132 SMs
  EXPECT_LT(asked(17), 233472 / 2 - 1024);
  EXPECT_GT(asked(17), 233472 / 3);
  EXPECT_LT(asked(34), 233472 / 3 - 1024);
  const std::int64_t own = call_shape(made.plan, made.problem).launches[0].shared_bytes;
  EXPECT_EQ(asked(1024), own);
}

TEST(GenerateEntries, ThePlanDecidesTheText) {
  Case made = example(VQGEN_SOURCE_DIR "/examples/configs/tinycode-projection.json");
  const std::string before = made.generate().text;
  *placement_of(made.plan, Operand::weights) = all_global();
  EXPECT_NE(made.generate().text, before);
}

}  // namespace
}  // namespace vqgen
