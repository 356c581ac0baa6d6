#include <algorithm>

#include "cli/svg.h"
#include "cli/tune_report.h"
#include "core/files/files.h"
#include "core/plan/plan_name.h"
#include "heuristics/space.h"

namespace vqgen::cli {
namespace {

constexpr std::size_t kMostReasons = 20;  // of failures that are shown

constexpr const char* kStyle = R"(
:root { --paper: #ffffff; --ink: #222222; --grid: #dddddd; --mark: #d62728; --faint: #f4f4f4;
  --flow-0: #4c78a8; --flow-1: #f58518; --flow-2: #54a24b; --flow-3: #b279a2; --flow-4: #9d7660; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181c; --ink: #dddddd; --grid: #3a3d42; --mark: #ff6b6b; --faint: #22252b;
    --flow-0: #7fb0e0; --flow-1: #ffa94d; --flow-2: #7fd07a; --flow-3: #d6a5c9; --flow-4: #d7b5a6; } }
body { background: var(--paper); color: var(--ink); font-family: sans-serif; font-size: 14px;
  max-width: 1100px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 0.5em 0 1em; }
th, td { padding: 2px 10px; text-align: right; border-bottom: 1px solid var(--grid); }
th { background: var(--faint); }
.text { text-align: left; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
svg { max-width: 100%; height: auto; }
a { color: inherit; }
h2 { margin-top: 2.5em; border-top: 2px solid var(--grid); padding-top: 0.5em; }
)";

using Cells = std::vector<std::string>;

// Cells are text; the columns whose heading starts with '<' read from the left.
std::string html_table(const Cells& headings, const std::vector<Cells>& rows) {
  const auto cell = [&](const char* tag, std::size_t column, const std::string& inside) {
    const bool left = headings[column].starts_with('<');
    return fmt::format("<{0}{1}>{2}</{0}>", tag, left ? " class=\"text\"" : "", inside);
  };
  std::string html = "<div class=\"scroll\"><table>\n<tr>";
  for (std::size_t i = 0; i < headings.size(); ++i) {
    html += cell("th", i, markup_text(headings[i].substr(headings[i].starts_with('<') ? 1 : 0)));
  }
  html += "</tr>\n";
  for (const Cells& row : rows) {
    html += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) html += cell("td", i, markup_text(row[i]));
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string html_paragraph(const std::string& text) { return "<p>" + markup_text(text) + "</p>\n"; }

std::string us_cell(double us) { return fmt::format("{:.2f}", us); }

std::string rank_cell(const TuneResult& result) {
  return result.winner_rank ? fmt::format("{} of {}", *result.winner_rank + 1, result.space) : "-";
}

std::string html_overview(const TunedSweep& sweep) {
  std::vector<Cells> rows;
  for (std::size_t i = 0; i < sweep.problems.size(); ++i) {
    const TunedProblem& problem = sweep.problems[i];
    const TuneResult& result = problem.result;
    const bool tuned = problem.why.empty();
    rows.push_back({fmt::format("{}", i + 1), problem.item.label,
                    fmt::format("{:g}", problem.item.weight),
                    tuned ? us_cell(result.row.default_us) : "-",
                    tuned ? us_cell(result.row.time_us) : "-", ratio_text(gain_of(problem), 3),
                    tuned ? fmt::format("{:.1f} %", 100 * result.row.noise) : "-",
                    tuned ? rank_cell(result) : "-",
                    fmt::format("{} of {}", timed_of(result), result.trials.size()),
                    fmt::format("{:.0f}", result.spent_s),
                    tuned ? kind_of(result.row.plan, problem.item.problem) : problem.why});
  }
  return html_table({"", "<problem", "weight", "default us", "tuned us", "ratio", "noise",
                     "winner's rank by the model", "timed", "seconds", "<winner"},
                    rows);
}

std::string totals_text(const TunedSweep& sweep) {
  const TuneTotals totals = totals_of(sweep);
  std::string html = html_paragraph(fmt::format(
      "{} of {} problems tuned on {}, {} skipped; {} candidates in {:.0f} s.", totals.tuned,
      totals.problems, sweep.gpu, sweep.skipped.size(), totals.candidates, totals.spent_s));
  if (totals.tuned == 0) return html;
  return html +
         html_paragraph(fmt::format(
             "Default over tuned: {:.3f} by geometric mean, {:.3f} by weight; least {:.3f} ({}), "
             "most {:.3f} ({}). All calls, as often as their weights say: {:.1f} us by default, "
             "{:.1f} us tuned.",
             totals.mean_gain, totals.weighted_gain, totals.least_gain, totals.least_label,
             totals.most_gain, totals.most_label, totals.default_us, totals.tuned_us));
}

std::string html_finalists(const TuneResult& result) {
  const std::vector<const Trial*> trials = finalists_of(result);
  if (trials.empty()) return "";
  std::vector<Cells> rows;
  for (const Trial* trial : trials) {
    const Measurement& m = trial->measurement;
    rows.push_back({trial->final_us > 0 ? us_cell(trial->final_us) : "-", us_cell(m.time_us),
                    fmt::format("{:.2f} to {:.2f}", m.low_us, m.high_us),
                    ratio_text(trial->expected_us), fmt::format("{}", m.registers),
                    fmt::format("{}", m.spill_bytes), fmt::format("{}", m.shared_bytes),
                    fmt::format("{:.1e}", m.rel_err), plan_name(m.plan)});
  }
  return "<h3>Finalists</h3>\n" +
         html_table({"us in the finals", "us as screened", "quartiles", "expected us", "registers",
                     "spilled bytes", "shared bytes", "error", "<plan"},
                    rows);
}

std::string html_failures(const TuneResult& result) {
  const std::vector<FailureCount> all = failures_of(result);
  if (all.empty()) return "";
  std::vector<Cells> rows;
  for (std::size_t i = 0; i < std::min(all.size(), kMostReasons); ++i) {
    rows.push_back(
        {fmt::format("{}", all[i].count), std::string(enum_name(all[i].outcome)), all[i].why});
  }
  std::string html = "<h3>Candidates that were not timed</h3>\n" +
                     html_table({"how many", "<outcome", "<why"}, rows);
  if (all.size() > kMostReasons) {
    html += html_paragraph(fmt::format("And {} more reasons.", all.size() - kMostReasons));
  }
  return html;
}

std::string html_verdict(const TunedProblem& problem) {
  if (!problem.why.empty()) return html_paragraph("Not tuned: " + problem.why);
  const TunedRow& row = problem.result.row;
  return html_table({"", "us", "<plan"},
                    {{"winner", us_cell(row.time_us), plan_name(row.plan)},
                     {"default", us_cell(row.default_us), plan_name(row.default_plan)},
                     {"runner-up", us_cell(row.runner_up_us), plan_name(row.runner_up)}}) +
         html_paragraph(fmt::format(
             "Medians of {} rounds of the finals; winner's quartiles {:.2f} to {:.2f} us, noise "
             "{:.2f} %, error against the reference {:.1e}. Codes {}, L2 {}, timer {}.",
             row.policy.rounds, row.low_us, row.high_us, 100 * row.noise, row.rel_err,
             row.policy.codes, row.policy.l2, row.policy.timer));
}

std::string model_text(const TunedProblem& problem) {
  const ModelFigures model = model_figures(problem.result);
  if (model.count == 0) return html_paragraph("The cost model has no time for what was measured.");
  return html_paragraph(fmt::format(
      "Expected times are off by a factor of {:.2f} by geometric mean of {} candidates, {:.2f} at "
      "worst; the winner's rank by the model is {}.",
      model.factor, model.count, model.worst,
      problem.why.empty() ? rank_cell(problem.result) : "-"));
}

std::string html_section(std::size_t number, const TunedProblem& problem) {
  const std::string landscape = landscape_svg(problem);
  const std::string convergence = convergence_svg(problem);
  return fmt::format("<h2 id=\"p{0}\">{0}. {1}</h2>\n", number, markup_text(problem.item.label)) +
         html_verdict(problem) +
         (landscape.empty() ? "" : "<h3>Model against measurement</h3>\n" + landscape) +
         model_text(problem) + (convergence.empty() ? "" : "<h3>Convergence</h3>\n" + convergence) +
         html_finalists(problem.result) + html_failures(problem.result);
}

}  // namespace

std::string tune_html(const TunedSweep& sweep) {
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n"
      "<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<title>{0}, tuned</title>\n<style>{1}</style>\n</head>\n<body>\n<h1>{0}, tuned</h1>\n",
      markup_text(sweep.name), kStyle);
  html += totals_text(sweep) + html_overview(sweep);
  if (!sweep.skipped.empty()) {
    std::vector<Cells> rows;
    for (const SkippedItem& each : sweep.skipped) rows.push_back({each.label, each.reason});
    html += "<h3>Skipped</h3>\n" + html_table({"<problem", "<why"}, rows);
  }
  for (std::size_t i = 0; i < sweep.problems.size(); ++i)
    html += html_section(i + 1, sweep.problems[i]);
  return html + "</body>\n</html>\n";
}

void write_html(const std::filesystem::path& path, const TunedSweep& sweep) {
  publish_text(path, tune_html(sweep));
}

}  // namespace vqgen::cli
