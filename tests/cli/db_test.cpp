// vqgen db, and plans that compile, explain and export take from tuned tables.
#include "core/files/files.h"
#include "core/plan/plan_name.h"
#include "tests/cli/tool.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

constexpr const char* kH200 = "NVIDIA H200";

Json small_gemv() {
  return {{"op", "gemv"},
          {"shape", {{"m", 1}, {"out_features", 1024}, {"in_features", 1024}}},
          {"weights", "aqlm-2x8"}};
}

// Plans of small_gemv() that an H200 can run.
LinearSimt plan_of(int threads) {
  return {.threads = threads, .chunk_columns = 512, .codebook = all_shared(256)};
}

std::string row_line(const std::string& codes, const Plan& plan, double us,
                     const Json& config = small_gemv()) {
  const std::string name = plan_name(plan);
  return Json{{"problem", to_json(read_config(config, "c").problem)},
              {"gpu", kH200},
              {"policy",
               {{"codes", codes}, {"l2", "cold"}, {"timer", "graph"}, {"rounds", 21}, {"seed", 1}}},
              {"environment",
               {{"device", kH200}, {"driver", "1"}, {"compiler", "2"}, {"vqgen", "3"}}},
              {"plan", name},
              {"time_us", us},
              {"low_us", us},
              {"high_us", us},
              {"default_plan", name},
              {"default_us", us * 2},
              {"runner_up", name},
              {"runner_up_us", us},
              {"noise", 0.01},
              {"rel_err", 0.0002},
              {"candidates", 9}}
             .dump() +
         '\n';
}

class Db : public testing::Test {
 protected:
  std::string table(const std::string& name, const std::string& rows) const {
    return folder.file(name, "{\"vqgen_tuned\":1}\n" + rows);
  }
  Variables using_table(const std::string& path) const { return {{"VQGEN_TUNED_PATH", path}}; }
  Json run(const Arguments& arguments, const Variables& variables = {}) const {
    Arguments all = arguments;
    all.emplace_back("--json");
    const Outcome outcome = vqgen(all, variables);
    expect_success(outcome);
    return document_of(outcome);
  }

  Folder folder;
  std::string config = folder.file("c.json", small_gemv().dump());
};

TEST_F(Db, MergeKeepsTheBestAndItsBytesDoNotDependOnTheOrder) {
  const std::string a = table("a.jsonl", row_line("uniform", plan_of(128), 5.0));
  const std::string b = table(
      "b.jsonl", row_line("zipf:1", plan_of(64), 4.0) + row_line("uniform", plan_of(64), 4.5));
  const Json merged = run({"db", "merge", a, b, "--out", folder.path("m.jsonl")});
  EXPECT_EQ(merged["rows"], 2);
  EXPECT_EQ(merged["rows_read"], 3);
  run({"db", "merge", b, a, b, "--out", folder.path("n.jsonl")});
  EXPECT_EQ(read_text(folder.path("m.jsonl")), read_text(folder.path("n.jsonl")));
  const Json listed = run({"db", "ls", folder.path("m.jsonl")});
  ASSERT_EQ(listed["tables"].at(0)["rows"].size(), 2u);
  for (const Json& row : listed["tables"].at(0)["rows"]) {
    EXPECT_EQ(row["plan"], plan_name(plan_of(64)));
  }
  const Outcome text = vqgen({"db", "ls", folder.path("m.jsonl")});
  expect_words(text.out, {"4.50 us", "2.00x", "gemv f16 rows 1 of 1024x1024", kH200, "2 rows"});
  EXPECT_EQ(run({"db", "ls"}, using_table(a))["tables"].at(0)["name"], a);
  expect_failure({"db", "merge", a, "--out", folder.path("no/m.jsonl")}, 2,
                 {"--out", "the folder " + folder.path("no") + " is not there"});
  expect_failure({"db", "merge", a}, 2, {"--out is required"});
  expect_failure({"db"}, 2, {"subcommand is required"});
}

// Earlier rows of the output table are kept, as are rows that others add meanwhile.
TEST_F(Db, MergeKeepsTheRowsOfTheTableThatItWrites) {
  const std::string a = table("a.jsonl", row_line("uniform", plan_of(128), 5.0));
  const std::string out = table("out.jsonl", row_line("zipf:1", plan_of(64), 4.0));
  const std::string before = read_text(out);
  expect_failure({"db", "merge", a, "--out", out}, 2,
                 {"--out " + out + " holds 1 rows", "name it among the tables"});
  EXPECT_EQ(read_text(out), before);
  EXPECT_EQ(run({"db", "merge", a, out, "--out", out})["rows"], 2);
  EXPECT_EQ(run({"db", "merge", out, "--out", out})["rows"], 2);
}

TEST_F(Db, LintAndDiffSayWhatTheyFind) {
  const std::string a = table("a.jsonl", row_line("uniform", plan_of(128), 5.0));
  const std::string b = table("h100.jsonl", row_line("uniform", plan_of(128), 6.0));
  EXPECT_EQ(run({"db", "lint", a})["findings"].size(), 0u);
  const Outcome found = vqgen({"db", "lint", a, b, "--json"});
  EXPECT_EQ(found.exit_code, 2);
  EXPECT_EQ(document_of(found)["rows"], 2);
  ASSERT_EQ(document_of(found)["findings"].size(), 1u);
  EXPECT_EQ(document_of(found)["findings"][0]["where"], b + ":2");
  expect_words(found.err, {"vqgen: 1 findings"});
  const Json changes = run({"db", "diff", a, b});
  EXPECT_EQ(changes["times"].size(), 1u);
  EXPECT_EQ(changes["same"], 0);
  EXPECT_EQ(run({"db", "diff", a, a})["same"], 1);
  expect_words(vqgen({"db", "diff", a, b}).out, {"another time (beyond the noise)", "6.00 us"});
}

TEST_F(Db, ListingsSayThePages) {
  const std::pair<Json, Plan> each_op[] = {{attention_json(), AttentionSimt{}},
                                           {append_json(), AppendSimt{}},
                                           {dequantize_json(), DequantizeSimt{}}};
  for (const auto& [like, plan] : each_op) {
    const Json paged = edited(like, {{"/shape/page_tokens", "64"}});
    const std::string path = table("a.jsonl", row_line("uniform", plan, 5.0, paged));
    expect_words(vqgen({"db", "ls", path}).out, {"tokens 1000 pages of 64 "});
    const std::string plain = table("b.jsonl", row_line("uniform", plan, 5.0, like));
    expect_words(vqgen({"db", "ls", plain}).out, {"tokens 1000 "});
    EXPECT_EQ(vqgen({"db", "ls", plain}).out.find("pages"), std::string::npos);
  }
}

TEST_F(Db, BrokenTablesAreErrorsThatNameTheirLine) {
  const std::string row = row_line("uniform", plan_of(128), 5.0);
  const std::string twice = table("twice.jsonl", row + row);
  expect_failure({"db", "ls", twice}, 2, {"twice.jsonl:3", "remove one of them"});
  const std::string cut = folder.file("cut.jsonl", "{\"vqgen_tuned\":1}\n" + row.substr(0, 99));
  expect_failure({"db", "lint", cut}, 2, {"cut.jsonl:2", "cut off"});
  expect_failure({"db", "merge", cut, "--out", folder.path("m.jsonl")}, 2, {"cut.jsonl:2"});
  EXPECT_FALSE(std::filesystem::exists(folder.path("m.jsonl")));
  expect_failure({"db", "diff", cut, cut}, 2, {"cut.jsonl:2"});
  expect_failure({"db", "ls", folder.path("none.jsonl")}, 2, {"none.jsonl"});
  // Commands that look up plans fail too, unless --planner names the chooser.
  expect_failure({"explain", config}, 2, {"cut.jsonl:2"}, using_table(cut));
  expect_failure({"db", "query", config}, 2, {"none.jsonl"},
                 using_table(folder.path("none.jsonl")));
  expect_success(vqgen({"explain", config, "--planner", "model"}, using_table(cut)));
}

TEST_F(Db, QuerySaysTheRungAndWhatWasNotTaken) {
  const std::string all = table("t.jsonl", row_line("uniform", plan_of(48), 5.0) +
                                               row_line("zipf:1", plan_of(128), 5.0) +
                                               row_line("zipf:3", plan_of(64), 5.0));
  const Json answer = run({"db", "query", config, "--gpu", "h200"}, using_table(all));
  EXPECT_EQ(answer["codes"], "uniform");
  EXPECT_EQ(answer["taken"]["rung"], "codes");
  EXPECT_EQ(answer["taken"]["where"], all + ":3");
  EXPECT_EQ(answer["taken"]["differs"], "codes zipf:1 instead of uniform");
  ASSERT_EQ(answer["passed"].size(), 2u);
  EXPECT_EQ(answer["passed"][0]["rung"], "exact");
  expect_words(answer["passed"][0]["refused"].get<std::string>(), {"cannot run here"});
  EXPECT_EQ(answer["passed"][1]["refused"], "an earlier row was taken");
  const Json other = run({"db", "query", config, "--gpu", "h200", "--code-distribution", "zipf:3"},
                         using_table(all));
  EXPECT_EQ(other["taken"]["rung"], "exact");
  // The name may be spelled as tune takes it, not only as rows spell it.
  EXPECT_EQ(run({"db", "query", config, "--gpu", "h200", "--code-distribution", "zipf:3.0"},
                using_table(all))["taken"]["rung"],
            "exact");
  for (const char* codes : {"../../x", "zipf:nan", "zipf:1e999", "profile:x"}) {
    expect_failure({"db", "query", config, "--code-distribution", codes}, 2, {codes, "zipf:S"});
  }
  const Outcome text = vqgen({"db", "query", config, "--gpu", "a100"}, using_table(all));
  expect_success(text);
  expect_words(text.out, {"no row serves"});
}

// jq and editors write rows with spaces and in another order of keys.
TEST_F(Db, RowsAreFoundHoweverTheyAreWritten) {
  std::string row = row_line("uniform", plan_of(128), 5.0);
  for (const char* mark : {",\"", ":{"}) {
    for (std::size_t at = row.find(mark); at != row.npos; at = row.find(mark, at + 3)) {
      row.insert(at + 1, " ");
    }
  }
  const std::string spaced = table("spaced.jsonl", row);
  const Json answer = run({"db", "query", config, "--gpu", "h200"}, using_table(spaced));
  EXPECT_EQ(answer["taken"]["rung"], "exact");
  EXPECT_EQ(answer["taken"]["where"], spaced + ":2");
  run({"db", "merge", spaced, "--out", folder.path("m.jsonl")});
  EXPECT_EQ(read_text(folder.path("m.jsonl")),
            "{\"vqgen_tuned\":1}\n" + row_line("uniform", plan_of(128), 5.0));
}

TEST_F(Db, PlansComeFromTheTableUnlessAChooserIsNamed) {
  const LinearSimt plan = plan_of(128);
  const Variables tuned = using_table(table("t.jsonl", row_line("uniform", plan, 5.0)));
  const Json explained = run({"explain", config, "--gpu", "h200"}, tuned);
  EXPECT_EQ(explained["plan_from"]["rung"], "exact");
  EXPECT_EQ(explained["plan"], to_json(Plan(plan)));
  const Json chosen = run({"explain", config, "--gpu", "h200", "--planner", "model"}, tuned);
  EXPECT_EQ(chosen["plan_from"]["rung"], "model");
  EXPECT_NE(chosen["plan"], explained["plan"]);
  const Json other = run({"explain", config, "--gpu", "a100"}, tuned);
  EXPECT_EQ(other["plan_from"]["rung"], "model");
  const Json exported =
      run({"export", config, "--gpu", "h200", "--out", folder.path("k.cu")}, tuned);
  EXPECT_EQ(exported["plan_from"]["rung"], "exact");
  const Outcome text = vqgen({"explain", config, "--gpu", "h200"}, tuned);
  expect_words(text.out, {"plan from exact: ", "t.jsonl:2", "5.00 us"});
  if (!has("NVRTC")) GTEST_SKIP() << "this machine has no NVRTC";
  const Json compiled = run({"compile", config, "--gpu", "h200"}, tuned);
  EXPECT_EQ(compiled["plan_from"]["rung"], "exact");
  EXPECT_EQ(compiled["kernels"][0]["plan"], explained["plan"]);
  EXPECT_EQ(run({"cache", "explain", config, "--gpu", "h200"}, tuned)["kernels"][0]["cache"],
            "hit");
}

}  // namespace
}  // namespace vqgen
