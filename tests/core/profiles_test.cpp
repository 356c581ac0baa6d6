// The shipped facts: every file parses, every number has its source, and the presets match their
// papers.
#include "core/profiles.h"

#include <map>
#include <set>

#include "core/files/embedded.h"
#include "core/files/files.h"
#include "core/gpu/gpu_arch.h"
#include "heuristics/check.h"
#include "heuristics/choose.h"
#include "tests/core/support.h"
#include "tests/thirds.h"

namespace vqgen {
namespace {

TEST(Profiles, TheBinaryHoldsTheFilesOfTheFolder) {
  std::size_t files = 0;
  const std::filesystem::path root = VQGEN_SOURCE_DIR "/profiles";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".json" && extension != ".jsonl") continue;
    ++files;
    const std::string path = entry.path().lexically_relative(root).generic_string();
    const auto held = embedded_profiles();
    const auto found = std::find_if(held.begin(), held.end(),
                                    [&](const EmbeddedFile& file) { return file.path == path; });
    ASSERT_NE(found, held.end()) << path;
    EXPECT_EQ(found->text, read_text(entry.path())) << path;
  }
  EXPECT_EQ(files, embedded_profiles().size());
}

TEST(Profiles, TheDefaultGpuIsTheOneOfTheFile) {
  const Json defaults = parse_json_file(VQGEN_SOURCE_DIR "/profiles/defaults.json");
  EXPECT_EQ(default_gpu(), find_gpu(defaults.at("gpu").get<std::string>()));
  EXPECT_EQ(defaults.size(), 2u) << "something beside gpu and source that nobody reads";
}

TEST(Profiles, EveryGpuIsSoundAndEveryValueHasASource) {
  ASSERT_FALSE(gpu_names().empty());
  for (const std::string& name : gpu_names()) {
    SCOPED_TRACE(name);
    const GpuSpec gpu = find_gpu(name);
    std::set<std::string> values;
    for_each_field<GpuSpec>([&](const auto& field) { values.insert(field.name); });
    values.erase("sources");
    for (const std::string& value : values) {
      const auto source = gpu.sources.find(value);
      ASSERT_NE(source, gpu.sources.end()) << value;
      EXPECT_GT(source->second.size(), 10u) << value;
    }
    EXPECT_EQ(gpu.sources.size(), values.size()) << "a source of something that is no value";
    ASSERT_TRUE(gpu.arch.starts_with("sm_")) << gpu.arch;
    const std::string number = gpu.arch.substr(3, gpu.arch.size() - 3 - gpu.arch.ends_with('a'));
    EXPECT_FALSE(number.empty()) << gpu.arch;
    EXPECT_EQ(number.find_first_not_of("0123456789"), std::string::npos) << gpu.arch;
    EXPECT_NO_THROW(require_facts_of_arch(JsonCursor(to_json(gpu), name), gpu));
    EXPECT_EQ(gpu.warpgroup_products, gpu.arch == "sm_90a");
    EXPECT_EQ(gpu.bf16_products, gpu.arch != "sm_75");
    EXPECT_LT(gpu.l2_bytes, gpu.memory_bytes);
  }
}

TEST(Profiles, AGpuFileIsReadAsGiven) {
  const TempFolder folder;
  const auto path = folder.path() / "mine.json";
  Json json = to_json(find_gpu("h200"));
  json["name"] = "mine";
  json.erase("sources");
  publish_text(path, json.dump());
  EXPECT_EQ(find_gpu(path.string()).name, "mine");
  json["sms"] = 0;
  publish_text(path, json.dump());
  expect_words(message_of([&] { find_gpu(path.string()); }),
               {path.string() + ": /sms: ", "from 1 to 1024"});
  json.erase("sms");
  publish_text(path, json.dump());
  expect_words(message_of([&] { find_gpu(path.string()); }), {path.string(), "'sms' is missing"});
}

// Name and target are in the head of the kernel text, where a line break would end the comment.
TEST(Profiles, AGpusNameAndTargetFitOnALine) {
  const TempFolder folder;
  const auto path = folder.path() / "mine.json";
  const auto with = [&](const char* field, const std::string& value) {
    Json json = to_json(find_gpu("t4"));  // all others have as much of everything
    json[field] = value;
    publish_text(path, json.dump());
    return path.string();
  };
  for (const char* arch : {"sm_75", "sm_90a", "sm_120"}) {
    EXPECT_EQ(find_gpu(with("arch", arch)).arch, arch);
  }
  for (const char* arch : {"", "sm_", "90", "sm_a", "sm_90b", "sm_90aa", "sm_90 ", "sm_9\n0"}) {
    expect_words(message_of([&] { find_gpu(with("arch", arch)); }),
                 {path.string() + ": /arch: must be a compile target such as sm_89"});
  }
  expect_words(message_of([&] { find_gpu(with("name", "a\nb")); }),
               {path.string() + ": /name: must hold no control characters"});
}

// Without the field, the architecture decides.
TEST(Profiles, AGpuFileSaysWhetherItHasProductsInBf16) {
  const TempFolder folder;
  const auto path = folder.path() / "mine.json";
  const auto read = [&](const char* name, const Json& bf16_products) {
    Json json = to_json(find_gpu(name));
    json.erase("bf16_products");
    if (!bf16_products.is_null()) json["bf16_products"] = bf16_products;
    publish_text(path, json.dump());
    return find_gpu(path.string());
  };
  EXPECT_TRUE(read("a100", nullptr).bf16_products);
  EXPECT_TRUE(read("a100", true).bf16_products);
  EXPECT_FALSE(read("a100", false).bf16_products);
  EXPECT_FALSE(read("t4", false).bf16_products);
  EXPECT_FALSE(read("t4", nullptr).bf16_products);
  expect_words(
      message_of([&] { read("t4", true); }),
      {path.string(), "/bf16_products: sm_75 has no mma in bf16", "set false, or correct arch"});
  expect_words(message_of([&] { read("t4", "no"); }), {path.string() + ": /bf16_products: "});
}

// Otherwise the plan would fail only in the compiler or the driver, far from the file.
TEST(Profiles, AGpuFileClaimsNoMoreThanItsArchitectureHas) {
  const TempFolder folder;
  const auto path = folder.path() / "mine.json";
  const auto read = [&](const char* name, const Json& edits) {
    Json json = to_json(find_gpu(name));
    json.update(edits);
    publish_text(path, json.dump());
    return find_gpu(path.string());
  };
  const auto with = [&](const char* name, const Json& edits) {
    return message_of([&] { read(name, edits); });
  };
  for (const char* arch : {"sm_75", "sm_90", "sm_100", "sm_100a", "sm_120", "sm_130"}) {
    expect_words(with("t4", {{"arch", arch}, {"warpgroup_products", true}}),
                 {path.string() + ": /warpgroup_products: " + arch, "which sm_90a alone has",
                  "set false, or correct arch"});
  }
  EXPECT_FALSE(read("h200", {{"warpgroup_products", false}}).warpgroup_products);
  EXPECT_EQ(read("rtx5090", {{"arch", "sm_120a"}, {"max_threads_per_sm", 1024}}).arch, "sm_120a");
  const std::vector<std::pair<const char*, int>> too_much = {{"registers_per_sm", 131072},
                                                             {"max_threads_per_sm", 2048},
                                                             {"max_blocks_per_sm", 32},
                                                             {"shared_bytes_per_sm", 233472},
                                                             {"shared_bytes_per_block", 102400}};
  for (const auto& [field, value] : too_much) {
    expect_words(
        with("rtx5090", {{field, value}}),
        {path.string() + ": /" + field + ": " + std::to_string(value) + " is more than the",
         "of sm_120; lower it, or correct arch"});
  }
  expect_words(
      with("h200",
           {{"arch", "sm_130"}, {"warpgroup_products", false}, {"shared_bytes_per_block", 233472}}),
      {path.string() + ": /shared_bytes_per_block: 233472 and the 1024 of "
                       "shared_bytes_reserved are more than the 233472"});
}

// Virtual GPUs report no clocks, which would make costs infinite.
TEST(Profiles, WhatADriverDoesNotReportIsTakenFromTheLikestProfile) {
  GpuSpec device = find_gpu("rtx5090");
  device.memory_gbps = device.sm_clock_mhz = 0;
  complete_unreported(device);
  EXPECT_EQ(device.memory_gbps, find_gpu("rtx5090").memory_gbps);
  EXPECT_EQ(device.sm_clock_mhz, find_gpu("rtx5090").sm_clock_mhz);
  expect_words(device.sources["memory_gbps"], {"not reported", "GeForce RTX 5090"});

  GpuSpec unknown = find_gpu("h20");
  unknown.name = "NVIDIA H21";
  unknown.memory_gbps = 0;
  unknown.sm_clock_mhz = 1234;
  complete_unreported(unknown);
  EXPECT_EQ(unknown.memory_gbps, find_gpu("h20").memory_gbps);
  EXPECT_EQ(unknown.sm_clock_mhz, 1234);

  GpuSpec newer = find_gpu("b200");
  newer.name = "NVIDIA B300";
  newer.arch = "sm_103";
  newer.memory_gbps = 0;
  complete_unreported(newer);
  EXPECT_EQ(newer.memory_gbps, find_gpu("b200").memory_gbps);
}

// The names as nvidia-smi, tuned tables and vqgen print them.
TEST(Profiles, GpusAreFoundByTheDriversName) {
  for (const std::string& name : gpu_names()) {
    const GpuSpec gpu = find_gpu(name);
    EXPECT_EQ(find_gpu(gpu.name), gpu);
    std::string upper = gpu.name;
    for (char& c : upper) c = static_cast<char>(std::toupper(c));
    EXPECT_EQ(find_gpu(upper), gpu);
  }
  EXPECT_EQ(find_gpu("A100-SXM4-40GB"), find_gpu("a100"));
  EXPECT_EQ(read_config(edited(gemv_json(), {{"/gpu", R"("NVIDIA H200")"}}), "c.json").gpu,
            "NVIDIA H200");
  expect_words(message_of([] { find_gpu("NVIDIA H100 PCIe"); }),
               {"'NVIDIA H100 PCIe' is unknown", "did you mean 'h100'?"});
}

TEST(Profiles, UnknownNamesAreAnsweredWithTheKnown) {
  for (const char* name : {"h300", "", "h200 "}) {
    expect_words(message_of([&] { find_gpu(name); }),
                 {"gpu '" + std::string(name) + "' is unknown", "give a JSON file", "h100",
                  "(vqgen list gpus)"});
  }
  expect_words(message_of([] { find_gpu("h200.json"); }), {"h200.json: cannot read"});
  expect_words(message_of([] { find_gpu("./h200"); }), {"./h200: cannot read"});
  expect_words(message_of([] { find_format("cq", "c.json: /keys"); }),
               {"c.json: /keys: format 'cq' is unknown; give an object", "vecinfer-d4b8i8",
                "cq-2c8b", "(vqgen list formats)"});
  expect_words(message_of([] { find_sweep("llama"); }), {"sweep 'llama' is unknown", "llama-3-8b"});
}

TEST(Profiles, NamesAreTakenInWhateverCase) {
  EXPECT_EQ(find_gpu("H200"), find_gpu("h200"));
  EXPECT_EQ(find_format("VecInfer-D4B8", "test"), find_format("vecinfer-d4b8", "test"));
  EXPECT_EQ(find_sweep("Llama-3-8B").path, "sweeps/llama-3-8b.json");
}

TEST(Profiles, AnUnknownNameIsAnsweredWithTheNearest) {
  expect_words(message_of([] { find_gpu("RTX-4090"); }), {"did you mean 'rtx4090'?"});
  expect_words(message_of([] { find_format("vecinfer-d4b9", "c.json: /keys"); }),
               {"c.json: /keys: format 'vecinfer-d4b9'", "did you mean 'vecinfer-d4b8'?"});
  expect_words(message_of([] { find_sweep("lama-3-8b"); }), {"did you mean 'llama-3-8b'?"});
  EXPECT_EQ(message_of([] { find_gpu("mi300x"); }).find("did you mean"), std::string::npos);
}

TEST(Profiles, AFormatFileHoldsAFormat) {
  const TempFolder folder;
  const std::string path = (folder.path() / "mine.json").string();
  const auto with = [&](const char* text) {
    publish_text(path, text);
    return path;
  };
  const FormatProfile own = find_format_profile(
      with(R"({"vector_size": 4, "index_bits": 6, "source": "a paper"})"), "test");
  EXPECT_EQ(own.format, (VqFormat{.vector_size = 4, .index_bits = 6}));
  EXPECT_EQ(own.source, "a paper");
  VqFormat plain = find_format("vecinfer-d4b8", "test");
  plain.hadamard = false;
  EXPECT_EQ(find_format(with(R"({"preset": "vecinfer-d4b8", "hadamard": false})"), "test"), plain);

  const auto refused = [&](const char* text) {
    return message_of([&] { find_format(with(text), "test"); });
  };
  expect_words(refused(R"({"vector_size": 4})"), {path + ": /: ", "'index_bits' is missing"});
  expect_words(refused(R"({"preset": "cq-4c8b", "bits": 2})"), {path, "unknown field 'bits'"});
  expect_words(refused(R"({"preset": "mine.json"})"), {path + ": /preset: ", "shipped presets"});
  expect_words(refused("[]"), {path, "must be an object"});
  expect_words(message_of([&] { find_format("./none.json", "test"); }), {"none.json: cannot read"});
}

TEST(Profiles, EveryPresetNamesItsSource) {
  for (const std::string& name : format_names()) {
    EXPECT_NE(find_format_profile(name, "test").source, "") << name;
  }
}

// Bits per element of the codes alone, from the papers named in profiles/formats/README.md.
const std::map<std::string, double> kBits = {{"aqlm-1x15", 1.875},
                                             {"aqlm-1x16", 2},
                                             {"aqlm-1x16i8", 2},
                                             {"aqlm-1x8", 1},
                                             {"aqlm-2x8", 2},
                                             {"aqlm-2x8i8", 2},
                                             {"aqlm-3", 3},
                                             {"cq-2c8b", 4},
                                             {"cq-4c8b", 2},
                                             {"cq-8c10b", 1.25},
                                             {"cq-8c8b", 1},
                                             {"fp8-e4m3", 8},
                                             {"gptvq-2", 2},
                                             {"int8-channel", 8},
                                             {"int8-token", 8},
                                             {"int4-kivi-keys", 4},
                                             {"int4-kivi-values", 4},
                                             {"klt-1.5bit-keys", 2},
                                             {"klt-1.5bit-values", 1},
                                             {"klt-1bit-keys", 1.25},
                                             {"klt-1bit-values", 0.75},
                                             {"klt-2bit-keys", 2},
                                             {"klt-2bit-values", 2},
                                             {"klt-3bit-keys", 4},
                                             {"klt-3bit-values", 2},
                                             {"klt-4bit-keys", 4},
                                             {"klt-4bit-values", 4},
                                             {"million-d2b8", 4},
                                             {"million-d4b8", 2},
                                             {"iq2-xxs", 2},
                                             {"iq1-s", 1.5},
                                             {"iq1-m", 1.5},
                                             {"iq2-xs", 2.125},
                                             {"iq2-s", 2.25},
                                             {"iq3-xxs", 3},
                                             {"iq3-s", 3.25},
                                             {"q2-k", 2},
                                             {"quip-2", 2},
                                             {"quip-4", 4},
                                             {"vecinfer-d2b8", 4},
                                             {"vecinfer-d4b10", 2.5},
                                             {"vecinfer-d4b10i8", 2.5},
                                             {"vecinfer-d4b8i8", 2},
                                             {"vecinfer-d8b12i8", 1.5},
                                             {"vecinfer-d8b8i8", 1},
                                             {"vecinfer-d4b12", 3},
                                             {"vecinfer-d4b8", 2},
                                             {"vecinfer-d8b10", 1.25},
                                             {"vecinfer-d8b12", 1.5},
                                             {"vecinfer-d8b8", 1},
                                             {"vqkv-llama-3.1-8b-keys", 4.25},
                                             {"vqkv-llama-3.1-8b-values", 1},
                                             {"vqkv-llama-3.2-3b-keys", 4.25},
                                             {"vqkv-llama-3.2-3b-values", 1.25}};

TEST(Profiles, PresetsHaveTheBitsOfTheirPapers) {
  std::vector<std::string> expected;
  for (const auto& [name, bits] : kBits) {
    expected.push_back(name);
    EXPECT_EQ(find_format(name, "test").bits_per_element(), bits) << name;
  }
  EXPECT_EQ(format_names(), expected);
}

TEST(Profiles, TheReadmeListsEveryGpu) {
  const std::string readme = read_text(VQGEN_SOURCE_DIR "/profiles/gpus/README.md");
  for (const std::string& name : gpu_names()) {
    EXPECT_NE(readme.find("`" + name + ".json`"), std::string::npos) << name;
  }
}

TEST(Profiles, TheReadmeListsEveryPreset) {
  const std::string readme = read_text(VQGEN_SOURCE_DIR "/profiles/formats/README.md");
  for (const std::string& name : format_names()) {
    EXPECT_NE(readme.find("`" + name + "`"), std::string::npos) << name;
  }
}

// A problem that the format can describe, of an ordinary size.
Problem problem_for(const VqFormat& format) {
  const bool weights =
      format.output_scales || format.scope == Scope::tile || format.group_inputs > 0;
  if (weights) return Gemv{DType::f16, {1, 4096, 4096}, format};
  const VqFormat values =
      format.in_parts() ? find_format("vqkv-llama-3.1-8b-values", "test") : for_values(format);
  AttentionDecode op{DType::f16, {1, 32, 8, 128, 4096}, format, values};
  op.shape.recent_tokens = least_window(op.keys, op.values);
  return op;
}

TEST(Profiles, EachPresetHasAKernelOnEveryGpu) {
  std::uint64_t number = 0;
  for (const std::string& name : format_names()) {
    SCOPED_TRACE(name);
    const Problem problem = problem_for(find_format(name, "test"));
    validate(problem, name);
    const Verdict verdict = check(problem);
    EXPECT_TRUE(verdict.ok) << verdict.reason;
    for (const std::string& gpu : test::a_third(gpu_names(), test::third_after(number++))) {
      const Plan plan = choose(problem, find_gpu(gpu));
      const Verdict accepted = check(plan, problem, find_gpu(gpu));
      EXPECT_TRUE(accepted.ok) << gpu << ": " << accepted.reason;
    }
  }
}

}  // namespace
}  // namespace vqgen
