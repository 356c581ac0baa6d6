// vqgen dev regret on files of vqgen measure: figures by hand, and what it refuses.
#include "tests/cli/tool.h"

namespace vqgen {
namespace {

// Two plans of a small GEMM: the second is twice as fast.
Json measured() {
  const auto plan = [](int threads, double us) {
    return Json{{"outcome", "timed"},
                {"time_us", us},
                {"plan",
                 {{"dataflow", "simt"},
                  {"threads", threads},
                  {"chunk_columns", 512},
                  {"codebook", {{"shared", 256}}}}}};
  };
  const Json gpu = parse_json_file(VQGEN_SOURCE_DIR "/profiles/gpus/h200.json");
  return {{"gpu_spec", gpu},
          {"configs",
           {{{"config", "a/small.json"},
             {"problem",
              {{"op", "gemv"},
               {"shape", {{"m", 1}, {"out_features", 256}, {"in_features", 1024}}},
               {"weights", "aqlm-1x8"}}},
             {"measurements",
              {plan(256, 8.0), plan(128, 4.0), {{"outcome", "compile_failed"}, {"why", "x"}}}}}}}};
}

class Regret : public testing::Test {
 protected:
  Outcome of(const Json& document, bool json = true) {
    const std::string file = folder.file("m.json", document.dump());
    return json ? vqgen({"dev", "regret", file, "--json"}) : vqgen({"dev", "regret", file});
  }
  Folder folder;
};

TEST_F(Regret, SetsEachPlanAgainstTheBest) {
  const Outcome outcome = of(measured());
  expect_success(outcome);
  const Json config = document_of(outcome)["configs"].at(0);
  EXPECT_EQ(config["config"], "small");
  EXPECT_EQ(config["best_us"], 4.0);
  ASSERT_EQ(config["timed"].size(), 2u);
  for (const Json& each : config["timed"]) {
    EXPECT_EQ(each["dataflow"], "linear_simt");
    EXPECT_GT(each["expected_us"].get<double>(), 0);
    EXPECT_EQ(each["ideal_us"]["launch"], 1.0);
  }
  // The model decides which of the two it expects to be faster; the cost of that choice is fixed.
  const double first = config["timed"][0]["expected_us"].get<double>();
  const double second = config["timed"][1]["expected_us"].get<double>();
  EXPECT_EQ(config["regret"]["measured"], first <= second ? 2.0 : 1.0);
  EXPECT_TRUE(config["regret"]["rules"].is_null());  // its plan was not timed
}

TEST_F(Regret, KnowsTheChosenPlanWhereItWasTimed) {
  Json document = measured();
  const Json chosen = document_of(of(document))["configs"].at(0);
  Json& measurements = document["configs"][0]["measurements"];
  measurements.push_back({{"outcome", "timed"}, {"time_us", 5.0}, {"plan", chosen["rules"]}});
  const Json config = document_of(of(document))["configs"].at(0);
  EXPECT_EQ(config["regret"]["rules"], 1.25);
  const Outcome text = of(document, false);
  expect_success(text);
  EXPECT_NE(text.out.find("rules: 1.250 times the best by geometric mean of 1"), std::string::npos)
      << text.out;
}

TEST_F(Regret, RefusesWhatIsNoMeasurement) {
  const auto refused = [&](const char* pointer, const Json& value,
                           const std::vector<std::string>& words) {
    Json document = measured();
    const Json::json_pointer at(pointer);
    if (value.is_discarded()) {
      document[at.parent_pointer()].erase(at.back());
    } else {
      document[at] = value;
    }
    expect_failure({"dev", "regret", folder.file("bad.json", document.dump())}, 2, words);
  };
  const Json gone(Json::value_t::discarded);
  const std::string first = "/configs/0/measurements/0";
  refused("/gpu_spec", gone, {"gpu_spec", "missing"});
  refused("/configs", gone, {"configs", "missing"});
  refused("/configs", 3, {"/configs", "array"});
  refused("/configs/0/measurements", Json::array(), {"no plan that was timed"});
  refused("/configs/0/measurements/0/time_us", 0.0, {first + "/time_us"});
  refused("/configs/0/measurements/0/time_us", -1.0, {first + "/time_us"});
  refused("/configs/0/measurements/0/time_us", "x", {first + "/time_us"});
  refused("/configs/0/measurements/0/plan", gone, {"plan", "missing"});
  refused("/configs/0/measurements/0/plan/threadz", 1, {first + "/plan", "threadz"});
  refused("/configs/0/problem/op", "spmv", {"op"});
}

}  // namespace
}  // namespace vqgen
