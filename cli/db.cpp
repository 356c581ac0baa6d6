// vqgen db: what is in tuned tables, what a config is answered from them, and tables made one.
#include "cli/db_commands.h"
#include "core/plan/plan_name.h"
#include "heuristics/tuned/ladder.h"
#include "runtime/code_distribution.h"
#include "runtime/prepare.h"

namespace vqgen::cli {
namespace {

struct DbArguments {
  std::vector<std::string> tables;
  std::string config;
  std::string gpu;
  std::string codes;
  std::string out;
  std::string before;
  std::string after;
};

Json neighbour_json(const Neighbour& neighbour) {
  Json json{{"rung", enum_name(neighbour.rung)},
            {"where", neighbour.found.where},
            {"differs", neighbour.differs},
            {"row", to_json(neighbour.row)}};
  if (!neighbour.refused.empty()) json["refused"] = neighbour.refused;
  return json;
}

// As rows spell it: zipf:1.0 is zipf:1.
std::string row_codes(const std::string& flag) {
  if (flag == "zipf" || zipf_skew(flag)) return read_codes(flag).name;
  if (names_codes(flag)) return flag;
  throw Error(ErrorKind::bad_input,
              fmt::format("db query: --codes '{}' is none of uniform, zipf:S and profile: with 12 "
                          "hex digits, as db ls shows them",
                          flag));
}

std::string tuned_problem_text(const Problem& problem) {
  if (const auto* op = std::get_if<AttentionDecode>(&problem)) {
    const AttentionShape& s = op->shape;
    return fmt::format("attention_decode {} batch {} heads {}/{} of {} tokens {} {}/{}{}",
                       enum_name(op->dtype), s.batch, s.query_heads, s.kv_heads, s.head_dim,
                       s.tokens, short_name(op->keys), short_name(op->values),
                       s.shared_cache ? " shared cache" : "");
  }
  if (const auto* op = std::get_if<KvAppend>(&problem)) {
    const AppendShape& s = op->shape;
    return fmt::format("kv_append {} batch {} heads {} of {} tokens {} new {} {}/{}",
                       enum_name(op->dtype), s.batch, s.kv_heads, s.head_dim, s.tokens,
                       s.new_tokens, short_name(op->keys), short_name(op->values));
  }
  const Linear& op = *as_linear(problem);
  return fmt::format("{} {} rows {} of {}x{} {}", op_name(problem), enum_name(op.dtype),
                     op.shape.rows, op.shape.out_features, op.shape.in_features,
                     short_name(op.weights));
}

}  // namespace

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

std::string row_text(const TunedRow& row) {
  return one_line(fmt::format("{:>9.2f} us  {:>5.2f}x  {}  {}  {}  {}  {}", row.time_us,
                              row.default_us / row.time_us, tuned_problem_text(row.problem),
                              row.gpu, row.policy.codes, row.policy.l2, plan_name(row.plan)));
}

void db_ls(const std::vector<std::string>& paths, Output& output) {
  output.document = {{"tables", Json::array()}};
  for (const NamedTable& each : open_tables(paths)) {
    Json rows = Json::array();
    for (const TunedRow& row : each.table.rows) {
      output.line("{}", row_text(row));
      rows.push_back(to_json(row));
    }
    output.line("{}: {} rows", one_line(each.name), rows.size());
    output.document["tables"].push_back({{"name", each.name}, {"rows", std::move(rows)}});
  }
  if (output.document["tables"].empty()) output.line("no tuned tables");
}

void db_query(const std::string& config_path, const std::string& gpu_name,
              const std::string& codes_flag, Output& output) {
  const Environment environment = read_environment();
  const Config config = read_config(std::filesystem::path(config_path));
  const std::unique_ptr<Backend> backend = make_cuda(environment);
  const GpuChoice gpu = choose_gpu(gpu_name, config, *backend);
  const auto tables = make_tables(environment);
  const std::vector<HotnessProfile> profiles = hotness_of(config);
  const std::string codes = codes_flag.empty() ? codes_of(config) : row_codes(codes_flag);
  const LadderAnswer answer =
      look_up(*tables, config, gpu.spec, {.codes = codes, .profiles = profiles, .all = true});
  output.line("gpu {} ({}): {}", gpu.spec.name, gpu.spec.arch, gpu.reason);
  output.document = {{"gpu", gpu.spec.name}, {"gpu_reason", gpu.reason},
                     {"codes", codes},       {"problem", to_json(config.problem)},
                     {"taken", nullptr},     {"passed", Json::array()}};
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

void db_merge(const std::vector<std::string>& paths, const std::string& out, Output& output) {
  require_place("db merge", "--out", out);
  std::vector<TunedTable> tables;
  std::size_t rows = 0;
  for (NamedTable& each : open_tables(paths)) {
    rows += each.table.rows.size();
    tables.push_back(std::move(each.table));
  }
  const TunedTable merged = merge(tables);
  write_table(out, merged);
  output.line("wrote {}: {} rows, the best of {}", one_line(out), merged.rows.size(), rows);
  output.document = {{"out", out}, {"rows", merged.rows.size()}, {"rows_read", rows}};
}

void add_db(CLI::App& app, Output& output) {
  auto* db = app.add_subcommand("db", "Look at, ask, merge and check tuned tables");
  db->require_subcommand(1);
  auto arguments = std::make_shared<DbArguments>();
  const auto add = [&](const char* name, const char* what) {
    auto* command = db->add_subcommand(name, what);
    command->add_flag("--json", output.json, "One JSON document on stdout");
    return command;
  };
  const char* const files = "Tables; by default those that plans are looked up in";

  auto* ls = add("ls", "List the rows of tables: time, gain over the default plan, problem, plan");
  ls->add_option("table", arguments->tables, files);
  ls->callback([arguments, &output] { db_ls(arguments->tables, output); });

  auto* query = add("query", "Say which row a config's plan comes from, why, and what is near");
  query->add_option("config", arguments->config, "config.json")->required();
  query->add_option("--gpu", arguments->gpu, "A profile's name, a JSON file, or auto");
  query->add_option("--codes", arguments->codes,
                    "Their distribution, as rows name it: uniform, zipf:S or profile:DIGEST; by "
                    "default the config's");
  query->callback([arguments, &output] {
    db_query(arguments->config, arguments->gpu, arguments->codes, output);
  });

  auto* merge = add("merge", "Write one table with the best row of each key");
  merge->add_option("table", arguments->tables, "Tables")->required();
  merge->add_option("--out", arguments->out, "The table to write")->required();
  merge->callback([arguments, &output] { db_merge(arguments->tables, arguments->out, output); });

  auto* lint = add("lint", "Read everything; exit code 2 where something is doubtful");
  lint->add_option("table", arguments->tables, files);
  lint->callback([arguments, &output] { db_lint(arguments->tables, output); });

  auto* diff = add("diff", "Say what differs from one table to another, beyond the noise");
  diff->add_option("before", arguments->before, "A table")->required();
  diff->add_option("after", arguments->after, "Another")->required();
  diff->callback([arguments, &output] { db_diff(arguments->before, arguments->after, output); });
}

}  // namespace vqgen::cli
