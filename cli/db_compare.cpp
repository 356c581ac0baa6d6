// vqgen db lint and diff.
#include "cli/db_commands.h"
#include "core/plan/plan_name.h"
#include "heuristics/tuned/table.h"
#include "runtime/verify/compare.h"

namespace vqgen::cli {
namespace {

Json rows_json(const std::vector<TunedRow>& rows) {
  Json json = Json::array();
  for (const TunedRow& row : rows) json.push_back(to_json(row));
  return json;
}

Json changes_json(const std::vector<RowChange>& changes) {
  Json json = Json::array();
  for (const RowChange& each : changes) {
    json.push_back({{"before", to_json(each.before)},
                    {"after", to_json(each.after)},
                    {"beyond_noise", each.beyond_noise}});
  }
  return json;
}

void print_changes(const char* what, const std::vector<RowChange>& changes, const Output& output) {
  for (const RowChange& each : changes) {
    output.line("{} ({} the noise)", what, each.beyond_noise ? "beyond" : "within");
    output.line("  before {}", row_text(each.before));
    output.line("  after  {}", row_text(each.after));
  }
}

}  // namespace

void db_lint(const std::vector<std::string>& paths, Output& output) {
  output.document = {{"findings", Json::array()}};
  std::size_t rows = 0;
  for (const NamedTable& each : open_tables(paths)) {
    rows += each.table.rows.size();
    for (const LintFinding& finding : lint(each.table, each.name, tolerance)) {
      output.line("{}: {}", one_line(finding.where), one_line(finding.what));
      output.document["findings"].push_back({{"where", finding.where}, {"what", finding.what}});
    }
  }
  const std::size_t findings = output.document["findings"].size();
  output.document["rows"] = rows;
  output.line("{} rows, {} findings", rows, findings);
  if (findings == 0) return;
  output.exit_code = static_cast<int>(ErrorKind::bad_input);
  output.note("vqgen: {} findings in tuned tables; tune those problems again or remove the rows",
              findings);
}

void db_diff(const std::string& before, const std::string& after, Output& output) {
  const TableDiff found =
      diff(read_table(std::filesystem::path(before)), read_table(std::filesystem::path(after)));
  for (const TunedRow& row : found.only_before) output.line("only before {}", row_text(row));
  for (const TunedRow& row : found.only_after) output.line("only after  {}", row_text(row));
  print_changes("another winner", found.winners, output);
  print_changes("another time", found.times, output);
  output.line("{} rows alike, {} only before, {} only after, {} other winners, {} other times",
              found.same, found.only_before.size(), found.only_after.size(), found.winners.size(),
              found.times.size());
  output.document = {{"same", found.same},
                     {"only_before", rows_json(found.only_before)},
                     {"only_after", rows_json(found.only_after)},
                     {"winners", changes_json(found.winners)},
                     {"times", changes_json(found.times)}};
}

}  // namespace vqgen::cli
