#include "heuristics/tuned/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/files/embedded.h"
#include "core/files/files.h"
#include "core/problem/config.h"

namespace vqgen {
namespace {

// A problem's text in a row, and the text around its shape: op and element type before it, formats
// after or before as their names sort.
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

// The string between two texts that every row has.
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

std::vector<FoundRow> TunedTables::find(const std::string& first, const std::string& second,
                                        const ProblemOf& problem_of) const {
  std::vector<FoundRow> found;
  const std::boyer_moore_horspool_searcher search(first.begin(), first.end());
  for (std::size_t order = 0; order < tables_.size(); ++order) {
    const std::string_view text = tables_[order].text;
    std::size_t number = 2;
    for (std::size_t begin = 0; begin < text.size(); ++number) {
      const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
      begin += line.size() + 1;
      const auto hit = std::search(line.begin(), line.end(), search);
      if (hit == line.end()) continue;
      const std::size_t behind = static_cast<std::size_t>(hit - line.begin()) + first.size();
      const std::size_t end = line.find(second, behind);
      if (end == std::string_view::npos) continue;
      guarded([&] {
        FoundRow row{.where = fmt::format("{}:{}", tables_[order].name, number),
                     .order = order,
                     .line = line};
        row.gpu = string_between(row, R"("gpu":)", R"(,"high_us":)");
        const auto problem = problem_of(line.substr(behind, end - behind), row);
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
  return find(text_of(problem).whole, "",
              [&](std::string_view, const FoundRow&) { return problem; });
}

std::vector<FoundRow> TunedTables::like(const Problem& problem, const std::string& gpu,
                                        const std::function<bool(const Problem&)>& near) const {
  const ProblemText text = text_of(problem);
  return find(text.before, text.behind,
              [&](std::string_view shape, const FoundRow& row) -> std::optional<Problem> {
                if (row.gpu != gpu) return std::nullopt;
                const Json json = parse_json(shape, row.where);
                const JsonCursor cursor(json, row.where, "/problem/shape");
                Problem other = problem;
                std::visit(
                    [&](auto& op) {
                      op.shape = {};  // a field that is not written has its default
                      read_fields(cursor, op.shape);
                    },
                    other);
                return near(other) ? std::optional(other) : std::nullopt;
              });
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
