// Caches in pages: which row of a tuned table serves them, and what is reported.
#include <fmt/format.h>

#include "heuristics/explain.h"
#include "heuristics/tuned/ladder.h"
#include "tests/core/support.h"
#include "tests/heuristics/tuned_rows.h"

namespace vqgen {
namespace {

TunedRow row_of(const Problem& problem) {
  return test::tuned_row(problem, choose(problem, find_gpu("h200")));
}

// The rung and its reason, for tables of one row each.
std::string found(const std::vector<TunedRow>& rows, const Problem& problem) {
  TunedTables tables(Damage::fail);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    tables.add(fmt::format("t{}", i), table_text({{rows[i]}}));
  }
  const LadderAnswer answer =
      look_up(tables, test::config_of(problem), find_gpu("h200"), {.codes = "uniform"});
  if (!answer.taken) return "none";
  return fmt::format("{} {}", enum_name(answer.taken->rung), source_of(*answer.taken).why);
}

TEST(TunedPages, TakeThePlanOfContiguousRows) {
  const Problem plain = test::attention_problem(4096);
  Problem paged = plain;
  std::get<AttentionDecode>(paged).shape.page_tokens = 64;
  expect_words(found({row_of(plain)}, paged), {"alike", "page_tokens 0 instead of 64"});
  expect_words(found({row_of(paged)}, plain), {"alike", "page_tokens 64 instead of 0"});
  expect_words(found({row_of(plain), row_of(paged)}, paged), {"exact", "t1"});
  Problem longer = paged;
  std::get<AttentionDecode>(longer).shape.tokens = 8192;
  EXPECT_EQ(found({row_of(plain)}, longer), "none");
}

// Tables without the field have no pages.
TEST(TunedPages, ARowThatLacksTheFieldIsOfContiguousRows) {
  const Problem plain = test::attention_problem(4096);
  const std::string text = table_text({{row_of(plain)}});
  EXPECT_EQ(text.find("page_tokens"), std::string::npos);
  expect_words(found({row_of(plain)}, plain), {"exact"});
}

TEST(Pages, AreSaidInTheReportOfEachOp) {
  const GpuSpec gpu = find_gpu("h200");
  for (const Json& like : {attention_json(), append_json(), dequantize_json()}) {
    for (const int page_tokens : {0, 128}) {
      const Problem problem =
          read_config(edited(like, {{"/shape/page_tokens", std::to_string(page_tokens)}}), "c")
              .problem;
      std::string all;
      for (const ReportSection& section : report(choose(problem, gpu), problem, gpu, {})) {
        for (const std::string& line : section.lines) all += line + "\n";
      }
      EXPECT_EQ(all.find("in pages of 128") != std::string::npos, page_tokens > 0) << all;
    }
  }
}

}  // namespace
}  // namespace vqgen
