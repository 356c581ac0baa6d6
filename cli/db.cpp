// vqgen db: what is in tuned tables, what a config is answered from them, and tables made one.
#include "cli/shared_options.h"
#include "core/plan/plan_name.h"
#include "heuristics/shape_line.h"
#include "heuristics/tuned/ladder.h"
#include "heuristics/tuned/table.h"
#include "runtime/tuning/sweep/sweep.h"
#include "runtime/verify/compare.h"

namespace vqgen::cli {
namespace {

struct DbArguments {
  std::vector<std::string> tables;
  std::string config, gpu, codes, out, before, after;
};

Json neighbour_json(const Neighbour& neighbour) {
  Json json{{"rung", enum_name(neighbour.rung)},
            {"where", neighbour.found.where},
            {"differs", neighbour.differs},
            {"row", to_json(neighbour.row)}};
  if (!neighbour.refused.empty()) json["refused"] = neighbour.refused;
  return json;
}

// Codes as rows spell them: zipf:1.0 is zipf:1.
std::string row_codes(const std::string& flag) {
  if (flag == "zipf" || zipf_skew(flag)) return read_codes(flag).name;
  if (names_codes(flag)) return flag;
  throw Error(
      ErrorKind::bad_input,
      fmt::format(
          "db query: --code-distribution '{}' is none of uniform, zipf:S and profile: with 12 "
          "hex digits, as db ls shows them",
          flag));
}

std::string pages_text(int page_tokens) {
  return page_tokens > 0 ? fmt::format(" pages of {}", page_tokens) : "";
}

// "128", or of values of another size "192/128".
template <class Shape>
std::string channels_text(const Shape& shape) {
  if (shape.value_dim() == shape.head_dim) return std::to_string(shape.head_dim);
  return fmt::format("{}/{}", shape.head_dim, shape.value_dim());
}

std::string tuned_problem_text(const Problem& problem) {
  if (const auto* op = std::get_if<AttentionDecode>(&problem)) {
    const AttentionShape& s = op->shape;
    return fmt::format("attention_decode {} batch {} heads {}/{} of {} tokens {}{} {}/{}{}{}",
                       enum_name(op->dtype), s.batch, s.query_heads, s.kv_heads, channels_text(s),
                       s.tokens, pages_text(s.page_tokens), short_name(op->keys),
                       short_name(op->values),
                       s.query_tokens > 1 ? fmt::format(" query tokens {}", s.query_tokens) : "",
                       s.batch_invariant ? " batch_invariant" : "");
  }
  if (const auto* op = std::get_if<KvAppend>(&problem)) {
    const AppendShape& s = op->shape;
    return fmt::format("kv_append {} batch {} heads {} of {} tokens {}{} new {} {}/{}",
                       enum_name(op->dtype), s.batch, s.kv_heads, channels_text(s), s.tokens,
                       pages_text(s.page_tokens), s.new_tokens, short_name(op->keys),
                       short_name(op->values));
  }
  if (const auto* op = std::get_if<KvDequantize>(&problem)) {
    const DequantizeShape& s = op->shape;
    return fmt::format("kv_dequantize {} batch {} heads {} of {} tokens {}{} {}/{}",
                       enum_name(op->dtype), s.batch, s.kv_heads, channels_text(s), s.tokens,
                       pages_text(s.page_tokens), short_name(op->keys), short_name(op->values));
  }
  if (const auto* op = std::get_if<AttentionMerge>(&problem)) {
    const MergeShape& s = op->shape;
    return fmt::format("attention_merge {} rows {} heads {} of {} parts {}", enum_name(op->dtype),
                       s.rows, s.heads, s.head_dim, s.parts);
  }
  if (const ScalarMatrix* op = as_scalar(problem)) {
    return fmt::format("{} {} tokens {} channels {} scales {}", op_name(problem),
                       enum_name(op->dtype), op->shape.tokens, op->shape.channels,
                       enum_name(op->shape.scales));
  }
  if (const auto* op = std::get_if<WeightDequantize>(&problem)) {
    const WeightRowsShape& s = op->shape;
    return fmt::format("weight_dequantize {} rows {} of {}x{} {}", enum_name(op->dtype), s.rows,
                       s.out_features, s.in_features, short_name(op->weights));
  }
  const Linear& op = *as_linear(problem);
  return fmt::format("{} {} rows {} of {}x{} {}{}", op_name(problem), enum_name(op.dtype),
                     op.shape.rows, op.shape.out_features, op.shape.in_features,
                     short_name(op.weights), epilogue_text(op.shape));
}

// A table that was read whole.
struct NamedTable {
  std::string name;
  TunedTable table;
};

// Tables at the paths, or by default those that lookups go through, in their order.
std::vector<NamedTable> open_tables(const std::vector<std::string>& paths) {
  std::vector<NamedTable> tables;
  for (const std::string& path : paths) {
    tables.push_back({path, read_table(std::filesystem::path(path))});
  }
  if (!paths.empty()) return tables;
  for (const std::filesystem::path& path : table_files(read_environment().tuned)) {
    tables.push_back({path.string(), read_table(path)});
  }
  for (const ShippedTable& each : shipped_tables()) {
    tables.push_back({each.name, read_table(each.text, each.name)});
  }
  return tables;
}

// A row as a line: "12.34 us  1.21x  gemv f16 rows 1 of 4096x4096 d8b8x2  NVIDIA H200  uniform
// linear/...".
std::string row_text(const TunedRow& row) {
  return one_line(fmt::format("{:>9.2f} us  {:>5.2f}x  {}  {}  {}  {}  {}", row.time_us,
                              row.default_us / row.time_us, tuned_problem_text(row.problem),
                              row.gpu, row.policy.codes, row.policy.l2, plan_name(row.plan)));
}

void db_ls(const DbArguments& arguments, Output& output) {
  output.document = {{"tables", Json::array()}};
  for (const NamedTable& each : open_tables(arguments.tables)) {
    Json rows = Json::array();
    if (!each.table.rows.empty()) {
      output.line("{:>12}  {:>6}  problem  GPU  codes  codebooks  plan", "time", "gain");
    }
    for (const TunedRow& row : each.table.rows) {
      output.line("{}", row_text(row));
      rows.push_back(to_json(row));
    }
    output.line("{}: {} rows", one_line(each.name), rows.size());
    output.document["tables"].push_back({{"name", each.name}, {"rows", std::move(rows)}});
  }
  if (output.document["tables"].empty()) output.line("no tuned tables");
}

void db_query(const DbArguments& arguments, Output& output) {
  const PlanSetting setting = plan_setting({.config = arguments.config, .gpu = arguments.gpu});
  const Config& config = setting.config;
  const std::string codes = arguments.codes.empty() ? codes_of(config) : row_codes(arguments.codes);
  const LadderAnswer answer =
      look_up(*setting.tables, config, setting.gpu.spec, {.codes = codes, .all = true});
  output.document = {{"codes", codes},
                     {"problem", to_json(config.problem)},
                     {"taken", nullptr},
                     {"passed", Json::array()}};
  report_gpu(setting.gpu, output);
  if (answer.taken) {
    const PlanSource source = source_of(*answer.taken);
    output.line("{}: {}", enum_name(source.rung), one_line(source.why));
    output.line("  {}", plan_name(answer.taken->row.plan));
    output.document["taken"] = neighbour_json(*answer.taken);
  } else {
    output.line("no row serves; the plan is chosen without");
  }
  for (const Neighbour& each : answer.passed) {
    output.line("not {} {}: {}", enum_name(each.rung), one_line(source_of(each).why),
                one_line(each.refused));
    output.document["passed"].push_back(neighbour_json(each));
  }
}

// Rows of no table that is merged are another's, who may be tuning at this moment.
void require_kept(const TunedTable& before, const TunedTable& after, const std::string& out) {
  const std::size_t lost = diff(before, after).only_before.size();
  if (lost == 0) return;
  throw Error(
      ErrorKind::bad_input,
      fmt::format("db merge: --out {} holds {} rows that no table has which is merged; name "
                  "it among the tables to keep them, or remove it",
                  out, lost));
}

void db_merge(const DbArguments& arguments, Output& output) {
  const std::string& out = arguments.out;
  require_place("db merge", "--out", out);
  std::size_t rows = 0;
  const TunedTable merged = change_table(out, [&](const TunedTable& before) {
    std::vector<TunedTable> tables;
    for (NamedTable& each : open_tables(arguments.tables)) {
      rows += each.table.rows.size();
      tables.push_back(std::move(each.table));
    }
    TunedTable best = merge(tables);
    require_kept(before, best, out);
    return best;
  });
  output.line("wrote {}: {} rows, the best of {}", one_line(out), merged.rows.size(), rows);
  output.document = {{"out", out}, {"rows", merged.rows.size()}, {"rows_read", rows}};
}

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

void db_lint(const DbArguments& arguments, Output& output) {
  output.document = {{"findings", Json::array()}};
  std::size_t rows = 0;
  for (const NamedTable& each : open_tables(arguments.tables)) {
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

void db_diff(const DbArguments& arguments, Output& output) {
  const TableDiff found = diff(read_table(std::filesystem::path(arguments.before)),
                               read_table(std::filesystem::path(arguments.after)));
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

}  // namespace

void add_db(CLI::App& app, Output& output) {
  auto* db = app.add_subcommand("db", "Look at, ask, merge and check tuned tables");
  add_examples(*db, "vqgen db ls",
               "vqgen db query examples/configs/llama3-8b-up-aqlm-2x8.json --gpu h200");
  db->require_subcommand(1);
  const char* const files = "Tables [those that plans are looked up in]";

  const auto [ls, shown] = add_command<DbArguments>(
      *db, output, "ls", "List the rows of tables: time, gain over the default plan, problem, plan",
      db_ls);
  add_examples(*ls, "vqgen db ls", "vqgen db ls profiles/tuned/h200.jsonl --json");
  ls->add_option("table", shown->tables, files);

  const auto [query, asked] = add_command<DbArguments>(
      *db, output, "query", "Say which row a config's plan comes from, why, and what is near",
      db_query);
  add_examples(*query, "vqgen db query examples/configs/llama3-8b-up-aqlm-2x8.json --gpu h200",
               "vqgen db query examples/configs/llama3-8b-attention-2bit.json --gpu h200 "
               "--code-distribution zipf:1");
  query->add_option("config", asked->config, "config.json")->required();
  query->add_option("--gpu", asked->gpu, "The GPU to plan for: a name, a JSON file, or auto");
  query->add_option("--code-distribution", asked->codes,
                    "Distribution of codes: uniform, zipf:S or profile:DIGEST [the config's]");

  const auto [merge, merged] = add_command<DbArguments>(
      *db, output, "merge", "Write one table with the best row of each key", db_merge);
  add_examples(*merge, "vqgen db merge profiles/tuned/h200.jsonl --out out/tables.jsonl",
               "vqgen db merge profiles/tuned/h200.jsonl out/tables.jsonl --out out/merged.jsonl");
  merge->add_option("table", merged->tables, "Tables")->required();
  merge->add_option("--out", merged->out, "The table to write")->required();

  const auto [lint, read] = add_command<DbArguments>(
      *db, output, "lint", "Read everything; exit code 2 if something is doubtful", db_lint);
  add_examples(*lint, "vqgen db lint", "vqgen db lint profiles/tuned/h200.jsonl");
  lint->add_option("table", read->tables, files);

  const auto [diff, compared] = add_command<DbArguments>(
      *db, output, "diff", "Say what differs from one table to another, beyond the noise", db_diff);
  add_examples(*diff, "vqgen db diff profiles/tuned/h200.jsonl out/merged.jsonl",
               "vqgen db diff profiles/tuned/h200.jsonl out/merged.jsonl --json");
  diff->add_option("before", compared->before, "A table")->required();
  diff->add_option("after", compared->after, "Another")->required();
}

}  // namespace vqgen::cli
