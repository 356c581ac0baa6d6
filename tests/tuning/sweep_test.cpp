// Sweep files: their expansion, refusals, and the shipped files.
#include "runtime/tuning/sweep/sweep.h"

#include <set>

#include "core/profiles.h"
#include "heuristics/check.h"
#include "heuristics/choose.h"
#include "tests/message_of.h"

namespace vqgen {
namespace {

Json small_sweep() {
  return Json::parse(R"({
    "model": {"name": "Small", "source": "made up"},
    "dtype": "bf16",
    "formats": {"weights": ["aqlm-2x8", "quip-2"],
                "kv": [{"keys": "vecinfer-d4b8", "values": "vecinfer-d8b8"},
                       {"keys": "cq-4c8b", "values": "cq-4c8b"}]},
    "ops": [
      {"name": "o", "weight": 4, "source": "made up",
       "shape": {"in_features": 256, "m": [8, 9], "out_features": 512}},
      {"name": "attention",
       "shape": {"batch": [1, 2], "query_heads": 4, "kv_heads": 2, "head_dim": 64,
                 "tokens": [128, 64], "recent_tokens": 16}}
    ]})");
}

std::vector<std::string> labels(const Work& work) {
  std::vector<std::string> all;
  for (const WorkItem& item : work.items) all.push_back(item.label);
  return all;
}

Work read(const Json& json) { return read_work(json, "s.json"); }

// Expects a refusal with the words for a small sweep after `change`.
template <class Change>
std::string refusal(Change&& change, ErrorKind kind = ErrorKind::bad_input) {
  Json json = small_sweep();
  change(json);
  return message_of([&] { read(json); }, kind);
}

TEST(Sweep, IsTheProductOfSizesAndFormatsInAFixedOrder) {
  const Work work = read(small_sweep());
  EXPECT_EQ(work.name, "Small");
  EXPECT_TRUE(work.skipped.empty());
  const std::vector<std::string> expected{
      "o m=8 aqlm-2x8",
      "o m=8 quip-2",
      "o m=9 aqlm-2x8",
      "o m=9 quip-2",
      "attention batch=1 tokens=128 vecinfer-d4b8/vecinfer-d8b8",
      "attention batch=1 tokens=128 cq-4c8b",
      "attention batch=1 tokens=64 vecinfer-d4b8/vecinfer-d8b8",
      "attention batch=1 tokens=64 cq-4c8b",
      "attention batch=2 tokens=128 vecinfer-d4b8/vecinfer-d8b8",
      "attention batch=2 tokens=128 cq-4c8b",
      "attention batch=2 tokens=64 vecinfer-d4b8/vecinfer-d8b8",
      "attention batch=2 tokens=64 cq-4c8b"};
  EXPECT_EQ(labels(work), expected);
  EXPECT_EQ(work.items[0].weight, 4);
  EXPECT_EQ(work.items[4].weight, 1);
}

TEST(Sweep, ProblemsAreThoseThatConfigsWouldGive) {
  const Work work = read(small_sweep());
  const auto config = [](const char* text) {
    return read_config(parse_json(text, "c.json"), "c.json").problem;
  };
  EXPECT_EQ(work.items[1].problem, config(R"({"op": "gemv", "dtype": "bf16", "weights": "quip-2",
      "shape": {"m": 8, "out_features": 512, "in_features": 256}})"));
  EXPECT_EQ(work.items[2].problem, config(R"({"op": "gemm", "dtype": "bf16", "weights": "aqlm-2x8",
      "shape": {"m": 9, "out_features": 512, "in_features": 256}})"));
  EXPECT_EQ(work.items[8].problem, config(R"({"op": "attention_decode", "dtype": "bf16",
      "keys": "vecinfer-d4b8", "values": "vecinfer-d8b8",
      "shape": {"batch": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 64, "tokens": 128,
                "recent_tokens": 16}})"));
}

TEST(Sweep, AnOpThatIsNamedIsTaken) {
  Json json = small_sweep();
  json["ops"][0]["op"] = "gemm";
  json["ops"][0]["shape"]["m"] = {2, 9};
  for (const WorkItem& item : read(json).items) {
    const bool product = as_linear(item.problem) != nullptr;
    EXPECT_EQ(op_name(item.problem), product ? "gemm" : "attention_decode");
  }
  json["ops"][1]["op"] = "kv_append";
  json["ops"][1]["shape"].erase("query_heads");
  const Work appends = read(json);
  ASSERT_EQ(appends.items.size(), 12u);
  EXPECT_EQ(op_name(appends.items.back().problem), "kv_append");
  EXPECT_EQ(std::get<KvAppend>(appends.items.back().problem).shape.tokens, 64);
  json["ops"][0]["op"] = "gemv";
  EXPECT_NE(message_of([&] { read(json); }).find("/ops/0/shape/m: gemv does not take m 9"),
            std::string::npos);
  json["ops"][0]["op"] = "gemm";
  json["ops"][0]["shape"]["m"] = {1, 9};
  EXPECT_NE(message_of([&] { read(json); }).find("/ops/0/shape/m: gemm does not take m 1"),
            std::string::npos);
}

TEST(Sweep, EqualProblemsAreOneWithTheSumOfWeights) {
  Json json = small_sweep();
  Json again = json["ops"][0];
  again["name"] = "again";
  again["weight"] = 0.5;
  again["shape"]["m"] = {9, 10};
  json["ops"].push_back(again);
  const Work work = read(json);
  ASSERT_EQ(work.items.size(), 14u);
  const auto weight = [&](const std::string& label) {
    for (const WorkItem& item : work.items) {
      if (item.label == label) return item.weight;
    }
    return -1.0;
  };
  EXPECT_EQ(weight("o m=8 quip-2"), 4);
  EXPECT_EQ(weight("o m=9 quip-2"), 4.5);
  EXPECT_EQ(weight("again m=9 quip-2"), -1);
  EXPECT_EQ(weight("again m=10 quip-2"), 0.5);
}

TEST(Sweep, WhatNoKernelDoesIsToldAndLeftOut) {
  Json json = small_sweep();
  json["formats"]["weights"] = {"aqlm-2x8", "vecinfer-d4b8"};  // a format of keys
  json["ops"][1]["shape"]["head_dim"] = {64, 72};              // no kernel
  const Work work = read(json);
  EXPECT_EQ(work.items.size(), 2u + 8);
  ASSERT_EQ(work.skipped.size(), 2u + 8);
  EXPECT_EQ(work.skipped[0].label, "o m=8 vecinfer-d4b8");
  EXPECT_NE(work.skipped[0].reason.find("weights have no heads"), std::string::npos);
  for (const SkippedItem& each : work.skipped) EXPECT_FALSE(each.reason.empty()) << each.label;

  json["formats"]["weights"] = {"vecinfer-d4b8"};
  json["ops"].erase(1);
  EXPECT_NE(message_of([&] { read(json); }, ErrorKind::infeasible).find("weights have no heads"),
            std::string::npos);
}

TEST(Sweep, FaultsAreNamedByPlace) {
  const std::vector<std::pair<std::string, std::function<void(Json&)>>> faults{
      {"more", [](Json& j) { j["more"] = 1; }},
      {"the field 'model' is missing", [](Json& j) { j.erase("model"); }},
      {"/model: the field 'source' is missing", [](Json& j) { j["model"].erase("source"); }},
      {"/dtype", [](Json& j) { j["dtype"] = "f32"; }},
      {"the field 'formats' is missing", [](Json& j) { j.erase("formats"); }},
      {"/formats/weights: must be an array with", [](Json& j) { j["formats"]["weights"] = "x"; }},
      {"/formats/weights: must be an array with",
       [](Json& j) { j["formats"]["weights"] = Json::array(); }},
      {"/formats/weights/1: format 'no' is unknown",
       [](Json& j) { j["formats"]["weights"][1] = "no"; }},
      {"/formats/weights/1: equals element 0",
       [](Json& j) { j["formats"]["weights"][1] = "aqlm-2x8"; }},
      {"/formats/kv/0: the field 'values' is missing",
       [](Json& j) { j["formats"]["kv"][0].erase("values"); }},
      {"/formats/kv/1: equals element 0",
       [](Json& j) {
         j["formats"]["kv"] = {{{"keys", "million-d2b8"}, {"values", "million-d2b8"}},
                               {{"keys", "million-d2b8"}, {"values", "million-d2b8"}}};
       }},
      {"/formats/kv/0/values: smooth and hadamard",
       [](Json& j) {
         j["formats"]["kv"][0]["values"] = {
             {"vector_size", 4}, {"index_bits", 8}, {"smooth", true}};
       }},
      {"/ops: must be an array", [](Json& j) { j["ops"] = Json::array(); }},
      {"/ops: must be an array", [](Json& j) { j["ops"] = Json::object(); }},
      {"/ops/0: the field 'name' is missing", [](Json& j) { j["ops"][0].erase("name"); }},
      {"/ops/0/name: is empty", [](Json& j) { j["ops"][0]["name"] = ""; }},
      {"/ops/0/weight: must be above 0", [](Json& j) { j["ops"][0]["weight"] = 0; }},
      {"/ops/0/weight", [](Json& j) { j["ops"][0]["weight"] = -1; }},
      {"/ops/0/weight", [](Json& j) { j["ops"][0]["weight"] = 1e300; }},
      {"/ops/0/source", [](Json& j) { j["ops"][0]["source"] = 1; }},
      {"/ops/0/op", [](Json& j) { j["ops"][0]["op"] = "conv"; }},
      {"/ops/0/shape: the field 'in_features' is missing",
       [](Json& j) { j["ops"][0]["shape"].erase("in_features"); }},
      {"/ops/0/shape/m/1: equals element 0",
       [](Json& j) {
         j["ops"][0]["shape"]["m"] = {8, 8};
       }},
      {"/ops/0/shape/m", [](Json& j) { j["ops"][0]["shape"]["m"] = Json::array(); }},
      {"/ops/0/shape/m/1",
       [](Json& j) {
         j["ops"][0]["shape"]["m"] = {8, 1000};
       }},
      {"/ops/0/shape/m/0", [](Json& j) { j["ops"][0]["shape"]["m"] = {1.5}; }},
      {"/ops/0/shape", [](Json& j) { j["ops"][0]["shape"]["columns"] = 3; }},
      {"/formats/kv", [](Json& j) { j["formats"].erase("kv"); }},
      {"/formats/weights", [](Json& j) { j["formats"].erase("weights"); }},
  };
  for (const auto& [words, change] : faults) {
    const std::string message = refusal(change);
    EXPECT_NE(message.find(words), std::string::npos) << words << "\n" << message;
    EXPECT_NE(message.find("s.json"), std::string::npos) << message;
  }
}

TEST(Sweep, ListsThatGrowOutOfHandAreRefused) {
  const auto many = [](Json& json, std::size_t number) {
    Json list = Json::array();
    for (std::size_t i = 1; i <= number; ++i) list.push_back(i);
    for (const char* size : {"batch", "tokens", "recent_tokens"})
      json["ops"][1]["shape"][size] = list;
  };
  EXPECT_NE(refusal([&](Json& j) { many(j, 1000); }).find("more than 10000"), std::string::npos);
  EXPECT_NE(refusal([&](Json& j) { many(j, 20); }).find("more than 10000"), std::string::npos);
}

TEST(Sweep, AConfigIsASweepOfOne) {
  const Work work = read_work(VQGEN_SOURCE_DIR "/examples/configs/tinycode-layer.json");
  ASSERT_EQ(work.items.size(), 1u);
  EXPECT_EQ(work.items[0].label, "tinycode-layer");
  EXPECT_EQ(work.items[0].weight, 1);
  const Json config =
      Json::parse(R"({"op": "gemv", "weights": "aqlm-2x8", "gpu": "a100", "access_counts": "h.json",
                      "shape": {"m": 1, "out_features": 512, "in_features": 256}})");
  const Work one = read_work(config, "folder/one.json");
  EXPECT_EQ(one.name, "one");
  EXPECT_EQ(one.gpu, "a100");
  EXPECT_EQ(one.access_counts, "folder/h.json");
  Json fixed = config;
  fixed["plan"] = {{"threads", 64}};
  EXPECT_NE(message_of([&] { read_work(fixed, "c.json"); }).find("c.json: /plan"),
            std::string::npos);
  Json none = config;
  none["weights"] = {{"vector_size", 16}, {"index_bits", 8}};
  message_of([&] { read_work(none, "c.json"); }, ErrorKind::infeasible);
  EXPECT_NE(message_of([&] { read_work(Json::array(), "c.json"); }).find("neither a sweep"),
            std::string::npos);
  EXPECT_NE(message_of([&] { read_work("llama-4"); }).find("llama-3-8b"), std::string::npos);
  EXPECT_NE(message_of([&] { read_work("./none"); }).find("none"), std::string::npos);
}

// Each number of the shipped sweeps has its source, and every problem has a kernel.
TEST(Sweep, TheShippedOnesAreWhole) {
  EXPECT_EQ(sweep_names(), (std::vector<std::string>{"llama-3-70b", "llama-3-8b", "qwen2.5-14b"}));
  for (const std::string& name : sweep_names()) {
    const Work work = read_work(name);
    EXPECT_EQ(work.items.size(), 72u) << name;
    for (const SkippedItem& each : work.skipped) ADD_FAILURE() << each.label << each.reason;
    std::set<std::string> seen;
    for (const WorkItem& item : work.items) {
      EXPECT_TRUE(seen.insert(item.label).second) << item.label;
      EXPECT_TRUE(check(item.problem).ok) << item.label;
    }
    for (const char* recommended :
         {"attention batch=16 tokens=32768 vecinfer-d4b8i8", "down_proj m=8 aqlm-2x8i8"}) {
      EXPECT_TRUE(seen.contains(recommended)) << name << recommended;
    }
    const EmbeddedFile& file = find_sweep(name);
    const Json sweep = parse_json(file.text, name);
    for (const Json& op : sweep["ops"]) {
      EXPECT_FALSE(op.value("source", "").empty()) << name << op["name"];
    }
  }
}

// Tuning starts from the default, so there must be one.
TEST(Sweep, TheShippedOnesHaveADefaultOnAnH200) {
  const GpuSpec gpu = find_gpu("h200");
  for (const std::string& name : sweep_names()) {
    for (const WorkItem& item : read_work(name).items) {
      EXPECT_NO_THROW(choose(item.problem, gpu, {.chooser = Chooser::rules})) << item.label;
    }
  }
}

// Taken from config.json: hidden size, intermediate size, query heads. All have 8 KV heads of 128
// channels.
TEST(Sweep, ShapesOfTheShippedOnesAreTheModels) {
  const auto check_model = [](const char* name, int hidden, int intermediate, int heads,
                              int layers) {
    const Work work = read_work(name);
    const auto problem = [&](const std::string& label) {
      for (const WorkItem& item : work.items) {
        EXPECT_EQ(item.weight, layers) << item.label;
        if (item.label == label) return item.problem;
      }
      ADD_FAILURE() << name << ": no " << label;
      return work.items.front().problem;
    };
    const auto matrix = [&](const std::string& label, int outputs, int inputs) {
      const Problem found = problem(label + " m=64 quip-4");
      ASSERT_NE(as_linear(found), nullptr);
      EXPECT_EQ(as_linear(found)->shape, (LinearShape{64, outputs, inputs})) << name << label;
    };
    matrix("qkv_proj", (heads + 2 * 8) * 128, hidden);
    matrix("o_proj", hidden, heads * 128);
    matrix("gate_up_proj", 2 * intermediate, hidden);
    matrix("down_proj", hidden, intermediate);
    EXPECT_EQ(hidden, heads * 128);
    const Problem attention = problem("attention batch=16 tokens=32768 cq-4c8b");
    EXPECT_EQ(std::get<AttentionDecode>(attention).shape,
              (AttentionShape{16, heads, 8, 128, 32768}));
  };
  check_model("llama-3-8b", 4096, 14336, 32, 32);
  check_model("llama-3-70b", 8192, 28672, 64, 80);
  check_model("qwen2.5-14b", 5120, 13824, 40, 48);
}

}  // namespace
}  // namespace vqgen
