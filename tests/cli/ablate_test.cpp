// ablate: its table, its JSON, and what it refuses. tests/runtime/ablate_test.cpp tests the search
// itself without processes; host kernels take seconds to compile, so these tests have few.
#include <cmath>

#include "tests/cli/tool.h"

namespace vqgen {
namespace {

constexpr const char* kGemv =
    R"({"op": "gemv", "shape": {"m": 1, "out_features": 16, "in_features": 64},
        "weights": {"vector_size": 8, "index_bits": 4}})";

TEST(Ablate, ReportsRowsRatiosAndMeansOfConfigs) {
  const Folder folder;
  const std::string a = folder.file("a.json", kGemv);
  const Outcome outcome = vqgen({"dev", "ablate", a, a, "--backend", "host", "--gpu", "h200",
                                 "--budget", "2", "--json", "--counters"});
  expect_success(outcome);
  const Json document = document_of(outcome);
  EXPECT_EQ(document["backend"], "host");
  EXPECT_EQ(document["budget"], 2);
  ASSERT_EQ(document["configs"].size(), 2u);
  double gc = 1;
  int have = 0;
  for (const Json& config : document["configs"]) {
    EXPECT_EQ(config["plans"], 2);
    EXPECT_EQ(config["measurements"].size(), 2u);
    const Json& rows = config["rows"];
    ASSERT_EQ(rows.size(), 11u);
    EXPECT_EQ(rows.front()["name"], "GC");
    EXPECT_EQ(rows.back()["name"], "best");
    std::size_t missing = 0;
    for (const Json& row : rows) {
      if (!row.contains("measurement")) {
        ++missing;
        EXPECT_FALSE(row["why"].get<std::string>().empty()) << row;
        continue;
      }
      EXPECT_EQ(row["measurement"]["outcome"], "timed");
      EXPECT_GT(row["measurement"]["time_us"].get<double>(), 0);
      EXPECT_GT(row["plans"].get<int>(), 0);
      EXPECT_EQ(row["traffic"].size(), 1u);
    }
    EXPECT_GT(missing, 0u);  // two plans do not serve all rows
    const Json& best = rows.back();
    EXPECT_NE(best["counters"]["why"].get<std::string>().find("host backend"), std::string::npos);
    for (const Json& row : rows) {
      if (row["name"] != "GC*" || !row.contains("measurement")) continue;
      EXPECT_NEAR(config["best_over_gc"].get<double>(),
                  best["measurement"]["time_us"].get<double>() /
                      row["measurement"]["time_us"].get<double>(),
                  1e-12);
    }
    if (!config["best_over_gc"].is_null()) {
      gc *= config["best_over_gc"].get<double>();
      ++have;
    }
  }
  ASSERT_EQ(have, 2);
  EXPECT_NEAR(document["geometric_mean"]["best_over_gc"].get<double>(), std::sqrt(gc), 1e-12);
}

TEST(Ablate, PrintsATableForPeople) {
  const Folder folder;
  const Outcome outcome = vqgen({"dev", "ablate", folder.file("a.json", kGemv), "--backend", "host",
                                 "--gpu", "h200", "--budget", "1"});
  expect_success(outcome);
  for (const char* words : {"1 plans measured", "/above", "GC ", "codebook g", "+ copies",
                            "none: not measured: the budget was spent", "best/GC* 1.00"}) {
    EXPECT_NE(outcome.out.find(words), std::string::npos) << words << outcome.out;
  }
}

TEST(Ablate, RefusesWhatItCannotAblate) {
  const Folder folder;
  Json fixed = parse_json(kGemv, "test");
  fixed["plan"] = {{"threads", 128}};
  expect_failure({"dev", "ablate", folder.file("p.json", fixed.dump()), "--backend", "host"}, 2,
                 {"p.json", "/plan", "leave the field out"});
  expect_failure({"dev", "ablate", folder.file("a.json", kGemv), "--budget", "0"}, 2, {"--budget"});
  Json odd = parse_json(kGemv, "test");
  odd["weights"]["vector_size"] = 16;
  expect_failure({"dev", "ablate", folder.file("o.json", odd.dump()), "--backend", "host"}, 3,
                 {"o.json", "vector_size 16"});
  expect_failure({"dev", "ablate", folder.file("a.json", kGemv), "--backend", "host",
                  "--access-counts", folder.path("none.json")},
                 2, {"none.json"});
}

}  // namespace
}  // namespace vqgen
