#include "heuristics/tuned/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/files.h"
#include "core/plan_name.h"

namespace vqgen {
namespace {

constexpr const char* kVersionField = "vqgen_tuned";
constexpr std::int64_t kVersion = 1;
constexpr std::string_view kRowBegin = R"({"candidates":)";
constexpr const char* kNoRow =
    "is not written as rows are, keys sorted and without spaces; leave writing tables to vqgen";

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

// Calls visit(line, number) for each row's line, which ends where the next begins.
template <class Visit>
void for_each_row_line(std::string_view text, std::size_t begin, Visit&& visit) {
  for (std::size_t number = 2; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    visit(text.substr(begin, end - begin), number);
    begin = end + 1;
  }
}

}  // namespace

std::size_t rows_begin(std::string_view text, const std::string& source) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  require_header(text.substr(0, end), at_line(source, 1));
  if (text.back() != '\n') {
    const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
    fail_at(at_line(source, lines + 1),
            "the last line is cut off; remove it, or write the table again");
  }
  for_each_row_line(text, end + 1, [&](std::string_view line, std::size_t number) {
    if (!line.starts_with(kRowBegin) || !line.ends_with('}')) {
      fail_at(at_line(source, number), kNoRow);
    }
  });
  return end + 1;
}

TunedRow read_row(std::string_view line, const std::string& where) {
  const Json json = parse_json(line, where);
  TunedRow row = read_tuned_row(JsonCursor(json, where));
  if (to_json(row).dump() != line) fail_at(where, kNoRow);
  return row;
}

TunedTable read_table(std::string_view text, const std::string& source) {
  TunedTable table;
  std::map<std::string, std::size_t> lines;  // of keys
  const std::size_t begin = rows_begin(text, source);
  for_each_row_line(text, begin, [&](std::string_view line, std::size_t number) {
    table.rows.push_back(read_row(line, at_line(source, number)));
    const auto [known, fresh] = lines.emplace(tuned_key(table.rows.back()), number);
    if (fresh) return;
    fail_at(at_line(source, number),
            fmt::format("has the problem, device class and codes of line {}; remove one of them",
                        known->second));
  });
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
