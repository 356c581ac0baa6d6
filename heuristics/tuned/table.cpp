#include "heuristics/tuned/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "core/files/files.h"
#include "core/json/format_version.h"
#include "core/plan/plan_name.h"
#include "core/profiles.h"
#include "heuristics/check.h"

namespace vqgen {
namespace {

constexpr const char* kVersionField = "vqgen_tuned";
constexpr std::int64_t kVersion = 1;

[[noreturn]] void fail_at(const std::string& where, const std::string& what) {
  throw Error(ErrorKind::bad_input, where + ": " + what);
}

std::string at_line(const std::string& source, std::size_t line) {
  return fmt::format("{}:{}", source, line);
}

void require_header(std::string_view line, const std::string& where) {
  const std::string remedy =
      fmt::format(R"(a tuned table begins with {{"{}":{}}})", kVersionField, kVersion);
  if (line.empty()) fail_at(where, "is empty; " + remedy);
  const Json json = parse_json(line, where);
  const JsonCursor root(json, where);
  if (!root.has(kVersionField)) root.fail("is no header; " + remedy);
  format_version(root, kVersionField, kVersion);
  root.expect_object({kVersionField});
}

std::map<std::string, TunedRow> by_key(const TunedTable& table) {
  std::map<std::string, TunedRow> rows;
  for (TunedRow& row : merge(std::span(&table, 1)).rows) {
    std::string key = tuned_key(row);
    rows.emplace(std::move(key), std::move(row));
  }
  return rows;
}

// Times of another policy are of something else, however near they are.
bool moved(const TunedRow& a, const TunedRow& b) {
  return a.policy.l2 != b.policy.l2 ||
         std::abs(a.time_us - b.time_us) >
             std::max(a.noise, b.noise) * std::min(a.time_us, b.time_us);
}

// The device class that a file is named after, or "".
std::string class_named(const std::string& name) {
  const std::string stem = std::filesystem::path(name).stem().string();
  const std::vector<std::string> known = gpu_names();
  if (std::find(known.begin(), known.end(), stem) == known.end()) return "";
  return find_gpu(stem).name;
}

struct RowLint {
  const TunedRow& row;
  std::string where;
  std::vector<LintFinding>& findings;

  void figures(double (*tolerance)(DType)) {
    if (row.noise == 0) say("noise of 0: nothing was repeated");
    if (row.noise > kMostNoise) {
      say("noise of {:.0f} % is more than {:.0f} %", 100 * row.noise, 100 * kMostNoise);
    }
    slower_than("the default plan", row.default_us);
    slower_than("the runner-up", row.runner_up_us);
    const auto [allowed, dtype] = std::visit(
        [&]<class Op>(const Op& op) {
          double most = 0;  // a scalar matrix is right to the bit
          if constexpr (!std::is_base_of_v<ScalarMatrix, Op>) most = tolerance(op.dtype);
          return std::pair(most, enum_name(op.dtype));
        },
        row.problem);
    if (row.rel_err > allowed) {
      say("rel_err {:.1e} is more than the {:.0e} allowed in {}", row.rel_err, allowed, dtype);
    }
  }

  void circumstances(const std::string& wanted_class) {
    if (!wanted_class.empty() && row.gpu != wanted_class) {
      say("device class '{}' in the file of '{}'", row.gpu, wanted_class);
    }
    const TuneEnvironment& world = row.environment;
    for (const auto& [name, value] : {std::pair("device", &world.device),
                                      {"driver", &world.driver},
                                      {"compiler", &world.compiler},
                                      {"vqgen", &world.vqgen}}) {
      if (value->empty()) say("the environment's {} is empty", name);
    }
    if (world.device == "replay") say("times of a recording, which no device was asked for");
    const MeasurePolicy& policy = row.policy;
    if (!names_codes(policy.codes)) {
      say("codes '{}' are none of uniform, zipf:S with S up to {} and profile:DIGEST", policy.codes,
          kMostSkew);
    }
    if (!policy.of_gpu()) {
      say("timed by '{}', which says nothing of a GPU", policy.timer);
    }
    if (policy.of_gpu() && policy.l2 != kL2Cold && policy.l2 != kL2CodesCold) {
      say("policy l2 '{}' is neither {} nor {}, as GPUs are timed", policy.l2, kL2Cold,
          kL2CodesCold);
    }
    if (policy.rounds < 1) say("{} rounds of finals", policy.rounds);
  }

  void plans(const std::optional<GpuSpec>& gpu) {
    if (!gpu) {
      say("no GPU profile is of device class '{}', so that its plans cannot be checked", row.gpu);
      return;
    }
    judge("the winner", row.plan, *gpu);
    judge("the default plan", row.default_plan, *gpu);
    judge("the runner-up", row.runner_up, *gpu);
  }

  template <class... Args>
  void say(fmt::format_string<Args...> text, Args&&... args) {
    findings.push_back({where, fmt::format(text, std::forward<Args>(args)...)});
  }
  // The winner was found by rounds in pairs; medians of all rounds may differ by as much again.
  void slower_than(const char* what, double us) {
    if (row.time_us <= us * (1 + 2 * row.noise)) return;
    say("the winner, {:.2f} us, is slower than {}, {:.2f} us, by more than the noise", row.time_us,
        what, us);
  }
  void judge(const char* what, const Plan& plan, const GpuSpec& gpu) {
    const Verdict verdict = check(plan, row.problem, gpu);
    if (!verdict.ok) say("{} cannot run: {}", what, verdict.reason);
  }
};

}  // namespace

TableReader::TableReader(std::string_view text, std::string source) : source_(std::move(source)) {
  const std::size_t header = std::min(text.find('\n'), text.size());
  require_header(text.substr(0, header), at_line(source_, 1));
  for (std::size_t begin = header + 1; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines_.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (text.back() == '\n') return;
  fail_at(at_line(source_, lines_.size() + 1),
          "the last line is cut off; remove it, or write the table again");
}

TunedRow TableReader::read(std::size_t row) {
  const std::size_t number = row + 2;
  const std::string where = at_line(source_, number);
  TunedRow read = read_row(lines_.at(row), where);
  const auto [known, fresh] = known_.emplace(tuned_key(read), number);
  if (fresh) return read;
  fail_at(where,
          fmt::format("has the problem, device class and codes of line {}; remove one of them",
                      known->second));
}

TunedRow read_row(std::string_view line, const std::string& where) {
  const Json json = parse_json(line, where);
  return read_tuned_row(JsonCursor(json, where));
}

TunedTable read_table(std::string_view text, const std::string& source) {
  TunedTable table;
  TableReader reader(text, source);
  for (std::size_t i = 0; i < reader.size(); ++i) table.rows.push_back(reader.read(i));
  return table;
}

TunedTable read_table(const std::filesystem::path& path) {
  return read_table(read_text(path), path.string());
}

std::string table_text(const TunedTable& table) {
  std::string text = Json{{kVersionField, kVersion}}.dump() + '\n';
  for (const TunedRow& row : merge(std::span(&table, 1)).rows) {
    text += to_json(row).dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
  }
  return text;
}

void write_table(const std::filesystem::path& path, const TunedTable& table) {
  publish_text(path, table_text(table));
}

bool better(const TunedRow& a, const TunedRow& b) {
  if (a.policy.grade() != b.policy.grade()) return a.policy.grade() > b.policy.grade();
  if (a.time_us != b.time_us) return a.time_us < b.time_us;
  const std::string a_name = plan_name(a.plan);
  const std::string b_name = plan_name(b.plan);
  if (a_name != b_name) return a_name < b_name;
  return to_json(a).dump() < to_json(b).dump();
}

TunedTable merge(std::span<const TunedTable> tables) {
  std::map<std::string, TunedRow> best;
  for (const TunedTable& table : tables) {
    for (const TunedRow& row : table.rows) {
      const auto [known, fresh] = best.emplace(tuned_key(row), row);
      if (!fresh && better(row, known->second)) known->second = row;
    }
  }
  TunedTable merged;
  for (auto& [key, row] : best) merged.rows.push_back(std::move(row));
  return merged;
}

TableDiff diff(const TunedTable& before, const TunedTable& after) {
  TableDiff result;
  std::map<std::string, TunedRow> later = by_key(after);
  for (auto& [key, row] : by_key(before)) {
    const auto other = later.find(key);
    if (other == later.end()) {
      result.only_before.push_back(row);
      continue;
    }
    RowChange change{row, other->second, moved(row, other->second)};
    if (!(row.plan == other->second.plan)) {
      result.winners.push_back(std::move(change));
    } else if (change.beyond_noise) {
      result.times.push_back(std::move(change));
    } else {
      ++result.same;
    }
    later.erase(other);
  }
  for (auto& [key, row] : later) result.only_after.push_back(std::move(row));
  return result;
}

std::vector<LintFinding> lint(const TunedTable& table, const std::string& name,
                              double (*tolerance)(DType)) {
  std::vector<LintFinding> findings;
  std::map<std::string, std::optional<GpuSpec>> gpus;
  const std::string wanted_class = class_named(name);
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const TunedRow& row = table.rows[i];
    const auto [gpu, fresh] = gpus.try_emplace(row.gpu);
    if (fresh) gpu->second = gpu_of_class(row.gpu);
    RowLint each{row, fmt::format("{}:{}", name, i + 2), findings};
    each.figures(tolerance);
    each.circumstances(wanted_class);
    each.plans(gpu->second);
  }
  return findings;
}

}  // namespace vqgen
