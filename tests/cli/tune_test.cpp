// vqgen tune on recordings: rows in tables, journals that resume, and what it refuses, with nothing
// half-written.
#include <algorithm>

#include "core/access/access_counts.h"
#include "core/files/files.h"
#include "core/plan/plan_name.h"
#include "core/problem/config.h"
#include "core/profiles.h"
#include "tests/cli/tool.h"
#include "tests/core/access_counts_samples.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

Json product() {
  return {{"op", "gemv"},
          {"shape", {{"m", 1}, {"out_features", 256}, {"in_features", 1024}}},
          {"weights", "aqlm-1x8"}};
}

class Tune : public testing::Test {
 protected:
  Tune() {
    // Names from a tuning without answers: its journal holds what it asked.
    const Outcome outcome =
        vqgen({"tune", config, "--gpu", "h200", "--replay",
               recording("none", {{"linear_simt/threads=992", 1.0}}), "--journal",
               folder.path("asked"), "--max-candidates", "40", "--search", "exhaustive"});
    EXPECT_EQ(outcome.exit_code, 5) << outcome.err;
    EXPECT_NE(outcome.err.find("none of 40 candidates could be timed"), std::string::npos);
    EXPECT_NE(outcome.err.find("not recorded"), std::string::npos) << outcome.err;
    for (const std::string& line : lines_of(read_text(folder.path("asked")))) {
      const Json json = parse_json(line, "journal");
      if (json.contains("screen")) names.push_back(json["screen"]["plan"]);
    }
    EXPECT_EQ(names.size(), 40u);
    std::map<std::string, double> times;
    for (std::size_t i = 0; i < names.size(); ++i)
      times[names[i]] = 9.0 - 0.1 * static_cast<double>(i % 37);
    replay = recording("replay", times);
  }

  // Its first problem is the config's.
  std::string sweep() {
    return folder.file("sweep.json",
                       R"({"model": {"name": "tiny", "source": "a test"},
                           "formats": {"weights": ["aqlm-1x8"]},
                           "ops": [{"name": "up", "weight": 2, "shape":
                             {"m": 1, "out_features": [256, 512], "in_features": 1024}}]})");
  }

  std::string recording(const std::string& name, const std::map<std::string, double>& times) {
    Json all = Json::array();
    for (const auto& [plan, us] : times) all.push_back({{"plan", plan}, {"time_us", us}});
    return folder.file(name + ".json", all.dump());
  }
  Arguments arguments(const Arguments& more = {}) const {
    Arguments all{"tune", config,     "--gpu",     "h200", "--replay", replay, "--max-candidates",
                  "40",   "--search", "exhaustive"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Json tuned(const Arguments& more) const {
    Arguments all = arguments(more);
    all.emplace_back("--json");
    const Outcome outcome = vqgen(all);
    expect_success(outcome);
    return document_of(outcome)["problems"].at(0);
  }

  Folder folder;
  const std::string config = folder.file("config.json", product().dump());
  std::vector<std::string> names;
  std::string replay;
};

TEST_F(Tune, FindsTheFastestAndShowsIt) {
  const Json tuning = tuned({});
  EXPECT_EQ(tuning["row"]["plan"], names[36]);
  EXPECT_EQ(tuning["row"]["default_plan"], names[0]);
  EXPECT_DOUBLE_EQ(tuning["row"]["time_us"].get<double>(), 9.0 - 0.1 * 36);
  EXPECT_EQ(tuning["row"]["default_us"], 9.0);
  EXPECT_EQ(tuning["row"]["candidates"], 40);
  ASSERT_EQ(tuning["trials"].size(), 40u);
  EXPECT_EQ(tuning["trials"][0]["plan"], names[0]);
  EXPECT_EQ(tuning["trials"][0]["finalist"], true);
  EXPECT_TRUE(tuning["journal"].is_null());
  const Outcome text = vqgen(arguments());
  expect_success(text);
  EXPECT_NE(text.out.find(names[36] + "  <- winner"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find(names[0] + "  <- default"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("1.667 times as fast as the default"), std::string::npos) << text.out;
}

TEST_F(Tune, KeepsOneRowAKeyInItsTable) {
  const std::string table = folder.path("table.jsonl");
  tuned({"--out", table});
  const std::string first = read_text(table);
  ASSERT_EQ(lines_of(first).size(), 2u);
  EXPECT_EQ(lines_of(first)[0], R"({"vqgen_tuned":1})");
  EXPECT_EQ(parse_json(lines_of(first)[1], "row")["plan"], names[36]);
  tuned({"--out", table});
  EXPECT_EQ(read_text(table), first);
  tuned({"--out", table, "--code-distribution", "zipf"});  // another key
  EXPECT_EQ(lines_of(read_text(table)).size(), 3u);
}

TEST_F(Tune, TheTablesRowIsTheIncumbent) {
  const std::string table = folder.path("table.jsonl");
  tuned({"--out", table});
  // Another plan is faster now, by less than the noise: the table stays as it is.
  std::map<std::string, double> times;
  for (const std::string& name : names) times[name] = 9;
  times[names[36]] = 5.4;
  times[names[5]] = 5.39;
  replay = recording("next", times);
  EXPECT_EQ(tuned({"--out", table, "--restart"})["row"]["plan"], names[36]);
  times[names[5]] = 5.0;
  replay = recording("next", times);
  EXPECT_EQ(tuned({"--out", table, "--restart"})["row"]["plan"], names[5]);
}

TEST_F(Tune, GoesOnFromItsJournal) {
  const std::string table = folder.path("table.jsonl");
  const std::string journal = folder.path("journal");
  const Json whole = tuned({"--journal", journal});
  EXPECT_EQ(whole["journal"]["resumed"], 0);
  const std::string text = read_text(journal);
  folder.file("journal", text.substr(0, text.size() / 2));
  const Json resumed = tuned({"--journal", journal});
  EXPECT_GT(resumed["journal"]["resumed"], 10);
  EXPECT_EQ(resumed["row"], whole["row"]);
  EXPECT_EQ(read_text(journal), text);
  EXPECT_EQ(tuned({"--journal", journal})["journal"]["resumed"], lines_of(text).size() - 2);
  EXPECT_EQ(tuned({"--journal", journal, "--restart"})["journal"]["resumed"], 0);
  expect_failure(arguments({"--journal", journal, "--code-distribution", "zipf"}), 2,
                 {journal, "another problem", "--restart"});
  folder.file("journal", lines_of(text)[0] + "\n{}\n" + text);
  expect_failure(arguments({"--journal", journal}), 2, {journal + ":2", "--restart"});
  const std::string notes = folder.file("notes", "of\nmine");
  expect_failure(arguments({"--journal", notes}), 2, {notes, "no journal"});
  expect_failure(arguments({"--journal", notes, "--restart"}), 2, {notes, "no journal"});
  EXPECT_EQ(read_text(notes), "of\nmine");
  tuned({"--out", table});
  EXPECT_EQ(tuned({"--out", table})["journal"]["resumed"], lines_of(text).size() - 2);
}

// The recording answers for both problems; each has its row, whichever shard it is in.
TEST_F(Tune, TunesASweepByShards) {
  const std::string whole = folder.path("whole.jsonl");
  const Arguments common{
      "tune", sweep(),  "--gpu",    "h200",      "--replay", replay, "--max-candidates",
      "40",   "--json", "--search", "exhaustive"};
  const auto run = [&](const Arguments& more) {
    Arguments all = common;
    all.insert(all.end(), more.begin(), more.end());
    return vqgen(all);
  };
  const Outcome outcome = run({"--out", whole});
  expect_success(outcome);
  const Json document = document_of(outcome);
  ASSERT_EQ(document["problems"].size(), 2u);
  EXPECT_EQ(document["problems"][0]["row"]["plan"], names[36]);
  EXPECT_EQ(document["totals"]["tuned"], 2);
  ASSERT_EQ(lines_of(read_text(whole)).size(), 3u);
  std::size_t rows = 0;
  for (const char* shard : {"0", "1", "2"}) {
    const std::string part = folder.path("shard-" + std::string(shard) + ".jsonl");
    run({"--out", part, "--shard", std::string(shard) + "/3"});
    rows += lines_of(read_text(part)).size() - 1;  // an empty one has its header
  }
  EXPECT_EQ(rows, 2u);
  const std::string merged = folder.path("merged.jsonl");
  expect_success(vqgen({"db", "merge", folder.path("shard-0.jsonl"), folder.path("shard-1.jsonl"),
                        folder.path("shard-2.jsonl"), "--out", merged}));
  EXPECT_EQ(read_text(merged), read_text(whole));
}

// Later compilations take the tuned plan.
TEST_F(Tune, TheRowIsTakenByCompile) {
  const std::string table = folder.path("tables/table.jsonl");
  std::filesystem::create_directories(folder.path("tables"));
  tuned({"--out", table});
  const auto plan_from = [&] {
    const Outcome outcome = vqgen({"explain", config, "--gpu", "h200", "--json"},
                                  {{"VQGEN_TUNED_PATH", folder.path("tables")}});
    expect_success(outcome);
    return document_of(outcome)["plan_from"];
  };
  EXPECT_EQ(plan_from()["rung"], "exact");
}

// A config's lookup finds rows that were tuned with its codes.
TEST_F(Tune, TheConfigsAccessCountsIsTheCodes) {
  std::vector<std::int64_t> counts(256, 1);
  counts[3] = 900;
  AccessCounts profile = profile_of({{counts}}, 1);
  profile.operand = Operand::weights;
  profile.format = find_format("aqlm-1x8", "test");
  const std::string access_counts = folder.file("hot.json", access_counts_text({profile}));
  Json hot = product();
  hot["access_counts"] = access_counts;
  const std::string hot_config = folder.file("hot-config.json", hot.dump());
  const std::string table = folder.path("table.jsonl");
  const auto codes = [&](const Arguments& more) {
    Arguments all{"tune", hot_config, "--gpu",      "h200",  "--replay", replay, "--max-candidates",
                  "40",   "--search", "exhaustive", "--json"};
    all.insert(all.end(), more.begin(), more.end());
    const Outcome outcome = vqgen(all);
    expect_success(outcome);
    return document_of(outcome)["problems"][0]["row"]["policy"]["codes"].get<std::string>();
  };
  EXPECT_EQ(codes({"--code-distribution", "uniform"}), "uniform");
  EXPECT_TRUE(codes({"--out", table}).starts_with("profile:"));
  const Outcome outcome =
      vqgen({"explain", hot_config, "--gpu", "h200", "--json"}, {{"VQGEN_TUNED_PATH", table}});
  expect_success(outcome);
  EXPECT_EQ(document_of(outcome)["plan_from"]["rung"], "exact");
}

TEST_F(Tune, ACpusTimesDoNotReplaceAGpus) {
  if (!has("host compiler")) GTEST_SKIP() << "no host compiler";
  const std::string table = folder.path("table.jsonl");
  tuned({"--out", table});
  const std::string text = read_text(table);
  expect_failure({"tune", config, "--gpu", "h200", "--backend", "host", "--max-candidates", "1",
                  "--out", table},
                 2, {table, "CPU", "--out"});
  EXPECT_EQ(read_text(table), text);
}

// The host backend measures one call, whatever a GPU's cache would need.
TEST_F(Tune, OnTheHostASmallBudgetGivesARow) {
  if (!has("host compiler")) GTEST_SKIP() << "no host compiler";
  const std::string table = folder.path("host.jsonl");
  const Outcome outcome = vqgen({"tune", config, "--gpu", "h200", "--backend", "host", "--budget",
                                 "3s", "--max-candidates", "3", "--out", table, "--json"});
  expect_success(outcome);
  expect_words(outcome.err, {"on this CPU", "one call"});
  const Json row = document_of(outcome)["problems"].at(0)["row"];
  EXPECT_EQ(row["policy"]["timer"], "cpu");
  EXPECT_EQ(row["policy"]["l2"], "warm");
  EXPECT_GE(row["policy"]["rounds"], 1);
  EXPECT_LE(row["policy"]["rounds"], 21);
  EXPECT_GE(row["candidates"], 1);
  EXPECT_EQ(lines_of(read_text(table)).size(), 2u);
}

// Times with warm codebooks are shorter but not comparable. The recording does not say how its
// codebooks were cached.
TEST_F(Tune, TimesWithCodebooksWarmDoNotReplaceThoseWithCodebooksCold) {
  const std::string table = folder.path("table.jsonl");
  EXPECT_EQ(tuned({"--out", table})["row"]["policy"]["l2"], "cold");
  std::string text = read_text(table);
  const std::string l2 = R"("l2":"cold")";
  ASSERT_NE(text.find(l2), std::string::npos);
  text.replace(text.find(l2), l2.size(), R"("l2":"all_cold")");
  folder.file("table.jsonl", text);
  expect_failure(arguments({"--out", table}), 2,
                 {"which times of shared codebooks do not replace"});
  EXPECT_EQ(read_text(table), text);
  Json measured = Json::array();
  for (const std::string& name : names) {
    const Json json = name;
    measured.push_back({{"plan", to_json(read_plan_name(JsonCursor(json, "test")))},
                        {"outcome", "timed"},
                        {"time_us", 9.0}});
  }
  Json whole = {{"codebooks", "rotated"}};
  whole["configs"].push_back({{"problem", to_json(read_config(product(), "product").problem)},
                              {"measurements", measured}});
  replay = folder.file("whole.json", whole.dump());
  EXPECT_EQ(tuned({"--out", table, "--restart"})["row"]["policy"]["l2"], "all_cold");
}

// A sweep reports a problem that no kernel of the GPU serves, and tunes the others without failing.
TEST_F(Tune, GoesOnWhereTheGpuCannotDoOne) {
  Json gpu = parse_json_file(VQGEN_SOURCE_DIR "/profiles/gpus/h200.json");
  gpu["shared_bytes_per_block"] = 2048;
  const std::string small = folder.file("small.json", gpu.dump());
  const std::string two = folder.file("two.json", R"({"model": {"name": "two", "source": "a test"},
                      "formats": {"weights": ["aqlm-1x8"]},
                      "ops": [{"name": "big", "shape": {"m": 64, "out_features": 256,
                               "in_features": 1024}},
                              {"name": "up", "shape": {"m": 1, "out_features": 256,
                               "in_features": 1024}}]})");
  const std::string table = folder.path("table.jsonl");
  const Arguments all{
      "tune", two,        "--gpu",      small,   "--replay", replay,  "--max-candidates",
      "40",   "--search", "exhaustive", "--out", table,      "--json"};
  const Outcome outcome = vqgen(all);
  expect_success(outcome);
  const Json problems = document_of(outcome)["problems"];
  EXPECT_TRUE(problems[0].contains("why")) << problems[0].dump();
  EXPECT_FALSE(problems[1].contains("why"));
  EXPECT_EQ(lines_of(read_text(table)).size(), 2u);
  // Alone such a problem is an error; a shard of a sweep that has only it is not.
  Arguments shard = all;
  shard.insert(shard.end(), {"--shard", "0/2"});
  expect_success(vqgen(shard));
}

// Runs without a GPU, on which no test may depend.
TEST_F(Tune, AStartThatFailsLeavesNothing) {
  const std::vector<std::string> before = folder.names();
  const Variables none{{"CUDA_VISIBLE_DEVICES", ""}, {"HOME", folder.path("")}};
  for (const Arguments& more : {Arguments{}, Arguments{"--out", folder.path("table.jsonl")},
                                Arguments{"--journal", folder.path("own.journal")}}) {
    Arguments all{"tune", config, "--gpu", "h200", "--budget", "1s"};
    all.insert(all.end(), more.begin(), more.end());
    const Outcome outcome = vqgen(all, none);
    EXPECT_EQ(outcome.exit_code, 5) << outcome.err;
    EXPECT_EQ(folder.names(), before);
  }
  // The earlier contents stay, to the byte.
  const std::string table = folder.path("table.jsonl");
  tuned({"--out", table, "--journal", folder.path("own.journal")});
  const std::string rows = read_text(table), answers = read_text(folder.path("own.journal"));
  const Outcome outcome = vqgen({"tune", config, "--gpu", "h200", "--out", table, "--journal",
                                 folder.path("own.journal"), "--restart"},
                                none);
  EXPECT_EQ(outcome.exit_code, 5) << outcome.err;
  EXPECT_EQ(read_text(table), rows);
  EXPECT_EQ(read_text(folder.path("own.journal")), answers);
}

TEST_F(Tune, RefusesBadInputBeforeItMeasures) {
  const std::size_t before = folder.names().size();
  expect_failure({"tune"}, 2, {"work"});
  expect_failure(arguments({"--budget", "soon"}), 2, {"--budget", "soon"});
  expect_failure(arguments({"--budget", "0s"}), 2, {"--budget", "above 0"});
  expect_failure(arguments({"--search", "luck"}), 2, {"--search"});
  expect_failure(arguments({"--rounds", "0"}), 2, {"--rounds"});
  expect_failure(arguments({"--max-candidates", "-1"}), 2, {"--max-candidates"});
  expect_failure(arguments({"--restart"}), 2, {"--restart", "--out"});
  expect_failure(arguments({"--out", folder.path("none/t")}), 2, {"--out", "none"});
  expect_failure(arguments({"--journal", folder.path("none/t")}), 2, {"--journal", "none"});
  EXPECT_EQ(folder.names().size(), before);
  expect_failure(arguments({"--shard", "1/1"}), 2, {"--shard"});
  expect_failure({"tune", sweep(), "--replay", replay, "--journal", folder.path("j")}, 2,
                 {"--journal", "one", "2"});
  const std::string bad = folder.file("bad.json", "[{\"plan\": \"linear_simt/\", \"time_us\": 0}]");
  expect_failure({"tune", config, "--replay", bad}, 2, {"bad.json: /0/time_us"});
  expect_failure({"tune", config, "--replay", folder.path("none")}, 2, {"none", "cannot read"});
  Json fixed = product();
  fixed["plan"] = {{"threads", 64}};
  expect_failure({"tune", folder.file("fixed.json", fixed.dump()), "--replay", replay}, 2,
                 {"fixed.json", "/plan", "remove"});
}

TEST_F(Tune, KeepsATableThatItCannotRead) {
  for (const char* text : {"notes\n", "{}\n", "{\"vqgen_tuned\":2}\n", "{\"vqgen_tuned\":1}\n{}\n",
                           "{\"vqgen_tuned\":1}\n{\"problem\""}) {
    const std::string table = folder.file("table.jsonl", text);
    const std::size_t before = folder.names().size();
    expect_failure(arguments({"--out", table}), 2, {table});
    EXPECT_EQ(read_text(table), text);
    EXPECT_EQ(folder.names().size(), before);
  }
}

}  // namespace
}  // namespace vqgen
