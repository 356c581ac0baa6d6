#include "heuristics/tuned/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/files/embedded.h"
#include "core/files/files.h"
#include "core/problem/config.h"

namespace vqgen {
namespace {

// A problem's text in a row, and what stands around its shape: op and element type before it,
// formats behind it or before it as their names sort.
struct ProblemText {
  std::string whole;
  std::string before;
  std::string behind;
};

ProblemText text_of(const Problem& problem) {
  const Json json = to_json(problem);
  const std::string whole = json.dump();
  const std::string shape = json["shape"].dump();
  const std::size_t at = whole.find(R"("shape":)" + shape) + std::string_view(R"("shape":)").size();
  return {R"("problem":)" + whole + ',', R"("problem":)" + whole.substr(0, at),
          whole.substr(at + shape.size()) + ','};
}

// The string between two texts that stand in every row.
std::string string_between(const FoundRow& row, std::string_view before, std::string_view behind) {
  const std::size_t at = std::min(row.line.find(before), row.line.size());
  const std::size_t begin = std::min(at + before.size(), row.line.size());
  const std::size_t end = std::min(row.line.find(behind, begin), row.line.size());
  const Json json = parse_json(row.line.substr(begin, end - begin), row.where);
  return JsonCursor(json, row.where).string();
}

}  // namespace

template <class Act>
void TunedTables::guarded(Act&& act) const {
  try {
    act();
  } catch (const Error& error) {
    if (damage_ == Damage::fail) throw;
    const std::lock_guard lock(mutex_);
    if (warning_.empty()) warning_ = error.what();
  }
}

void TunedTables::add(std::string name, std::string_view text) {
  guarded([&] {
    TableReader reader(text, name);
    Table table{std::move(name), ""};
    for (std::size_t i = 0; i < reader.size(); ++i) {
      guarded([&] { table.text += to_json(reader.read(i)).dump(); });
      table.text += '\n';
    }
    tables_.push_back(std::move(table));
  });
}

void TunedTables::add_file(const std::filesystem::path& path) {
  guarded([&] { add(path.string(), read_text(path)); });
}

void TunedTables::add_shipped() {
  for (ShippedTable& each : shipped_tables()) {
    tables_.push_back(
        {std::move(each.name), std::string(each.text.substr(each.text.find('\n') + 1))});
  }
}

std::vector<FoundRow> TunedTables::find(const Wanted& wanted) const {
  std::vector<FoundRow> found;
  const std::boyer_moore_horspool_searcher search(wanted.first.begin(), wanted.first.end());
  for (std::size_t order = 0; order < tables_.size(); ++order) {
    const Table& table = tables_[order];
    const std::string_view text = table.text;
    const auto from = [&](std::size_t at) {
      return text.begin() + static_cast<std::ptrdiff_t>(at);
    };
    std::size_t number = 2;
    for (std::size_t counted = 0, next = 0; next < text.size();) {
      const auto hit = std::search(from(next), text.end(), search);
      if (hit == text.end()) break;
      const auto at = static_cast<std::size_t>(hit - text.begin());
      const std::size_t begin = text.rfind('\n', at) + 1;
      const std::string_view line = text.substr(begin, text.find('\n', at) - begin);
      number += static_cast<std::size_t>(std::count(from(counted), from(begin), '\n'));
      counted = begin;
      next = begin + line.size() + 1;
      const std::size_t behind = at - begin + wanted.first.size();
      const std::size_t second = line.find(wanted.second, behind);
      if (second == std::string_view::npos) continue;
      guarded([&] {
        FoundRow row{
            .where = fmt::format("{}:{}", table.name, number), .order = order, .line = line};
        row.gpu = string_between(row, R"("gpu":)", R"(,"high_us":)");
        const auto problem = wanted.problem(line.substr(behind, second - behind), row);
        if (!problem) return;
        row.codes = string_between(row, R"("policy":{"codes":)", R"(,"l2":)");
        row.problem = *problem;
        row.key = tuned_key(row.problem, row.gpu, row.codes);
        found.push_back(std::move(row));
      });
    }
  }
  return found;
}

std::vector<FoundRow> TunedTables::of(const Problem& problem) const {
  return find({.first = text_of(problem).whole,
               .second = "",
               .problem = [&](std::string_view, const FoundRow&) { return problem; }});
}

std::vector<FoundRow> TunedTables::like(const Problem& problem, const std::string& gpu,
                                        const std::function<bool(const Problem&)>& near) const {
  const auto with_shape = [&](std::string_view shape,
                              const FoundRow& row) -> std::optional<Problem> {
    if (row.gpu != gpu) return std::nullopt;
    const Json json = parse_json(shape, row.where);
    const JsonCursor cursor(json, row.where, "/problem/shape");
    Problem other = problem;
    std::visit([&](auto& op) { read_fields(cursor, op.shape); }, other);
    if (!near(other)) return std::nullopt;
    return other;
  };
  const ProblemText text = text_of(problem);
  return find({.first = text.before, .second = text.behind, .problem = with_shape});
}

std::optional<TunedRow> TunedTables::read(const FoundRow& found) const {
  std::optional<TunedRow> row;
  guarded([&] { row = read_row(found.line, found.where); });
  return row;
}

std::string TunedTables::warning() const {
  const std::lock_guard lock(mutex_);
  return warning_;
}

std::vector<ShippedTable> shipped_tables() {
  std::vector<ShippedTable> tables;
  for (const EmbeddedFile& file : embedded_profiles()) {
    if (file.path.starts_with("tuned/")) tables.push_back({std::string(file.path), file.text});
  }
  return tables;
}

}  // namespace vqgen
