#include "heuristics/tuned/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "core/config.h"
#include "core/embedded.h"
#include "core/files.h"

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
  const std::string shape = R"("shape":)" + json["shape"].dump();
  const std::size_t at = whole.find(shape);
  return {R"("problem":)" + whole + ',', R"("problem":)" + whole.substr(0, at),
          whole.substr(at + shape.size()) + ','};
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

void TunedTables::add(std::string name, std::string text) {
  guarded([&] {
    const std::size_t begin = rows_begin(text, name);
    tables_.push_back({std::move(name), std::move(text), begin});
  });
}

void TunedTables::add_file(const std::filesystem::path& path) {
  guarded([&] { add(path.string(), read_text(path)); });
}

void TunedTables::add_shipped() {
  for (const ShippedTable& each : shipped_tables()) add(each.name, std::string(each.text));
}

// Rows whose text holds both, the first behind the other.
std::vector<FoundRow> TunedTables::find(const std::string& first, const std::string& second) const {
  std::vector<FoundRow> found;
  std::set<std::string> earlier;  // keys of tables before
  const std::boyer_moore_horspool_searcher search(first.begin(), first.end());
  for (std::size_t order = 0; order < tables_.size(); ++order) {
    const Table& table = tables_[order];
    const std::string_view text = table.text;
    std::set<std::string> keys;
    std::size_t number = 1;
    for (std::size_t counted = 0, next = table.begin; next < text.size();) {
      const auto hit =
          std::search(text.begin() + static_cast<std::ptrdiff_t>(next), text.end(), search);
      if (hit == text.end()) break;
      const auto at = static_cast<std::size_t>(hit - text.begin());
      const std::size_t begin = text.rfind('\n', at) + 1;
      const std::size_t end = text.find('\n', at);
      const std::string_view line = text.substr(begin, end - begin);
      number += static_cast<std::size_t>(
          std::count(text.begin() + static_cast<std::ptrdiff_t>(counted),
                     text.begin() + static_cast<std::ptrdiff_t>(begin), '\n'));
      counted = begin;
      next = end + 1;
      if (line.find(second, at - begin) == std::string_view::npos) continue;
      guarded([&] {
        FoundRow row{.row = {}, .where = fmt::format("{}:{}", table.name, number), .order = order};
        row.row = read_row(line, row.where);
        const std::string key = tuned_key(row.row);
        if (!keys.insert(key).second) {
          throw Error(ErrorKind::bad_input,
                      row.where +
                          ": has the problem, device class and codes of a line above; "
                          "remove one of them");
        }
        if (!earlier.contains(key)) found.push_back(std::move(row));
      });
    }
    earlier.merge(keys);
  }
  return found;
}

std::vector<FoundRow> TunedTables::of(const Problem& problem) const {
  return find(text_of(problem).whole, "");
}

std::vector<FoundRow> TunedTables::like(const Problem& problem) const {
  const ProblemText text = text_of(problem);
  return find(text.before, text.behind);
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
