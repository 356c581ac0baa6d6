#include "heuristics/tuned/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/files/files.h"
#include "core/plan/plan_name.h"

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
  root.expect_object({kVersionField});
  if (!root.has(kVersionField)) root.fail("is no header; " + remedy);
  const std::int64_t version = root.at(kVersionField).integer(0, 1e9);
  if (version == kVersion) return;
  root.at(kVersionField)
      .fail(fmt::format("version {} is unknown, {} is what this vqgen reads; tune again", version,
                        kVersion));
}

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
  for (const TunedRow& row : merge(std::span(&table, 1)).rows) text += to_json(row).dump() + '\n';
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

}  // namespace vqgen
