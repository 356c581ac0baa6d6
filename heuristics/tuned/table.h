// A tuned table: a file of JSON lines (docs/tuning.md), a header and then a row a line.
// table_text() writes them one way only, so equal tables are equal bytes; any JSON of a row is
// read.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/plan/tuned_row.h"

namespace vqgen {

struct TunedTable {
  std::vector<TunedRow> rows;
};

// Error(bad_input) that begins with SOURCE:LINE for another version than 1, a last line that is cut
// off, what is no row, and a second row of one key.
TunedTable read_table(std::string_view text, const std::string& source);
TunedTable read_table(const std::filesystem::path& path);

// Canonical: one row a key, the better where there are more, sorted by key.
std::string table_text(const TunedTable& table);
// The same, published by one rename.
void write_table(const std::filesystem::path& path, const TunedTable& table);

// Whether `a` goes before `b` of the same key: the higher grade of its policy, then the faster,
// then by the name of the plan, then by the whole row's text. A total order, so that the best of
// many rows does not depend on theirs.
bool better(const TunedRow& a, const TunedRow& b);

// For each key the best row of any table, sorted by key. Commutative, associative and idempotent.
TunedTable merge(std::span<const TunedTable> tables);

// A table row by row, for those who go on where one is damaged. `text` must outlive it. Errors as
// of read_table().
class TableReader {
 public:
  TableReader(std::string_view text, std::string source);
  std::size_t size() const { return lines_.size(); }
  TunedRow read(std::size_t row);

 private:
  std::string source_;
  std::vector<std::string_view> lines_;       // behind the header
  std::map<std::string, std::size_t> known_;  // keys that were read, and the numbers of their lines
};

// One line of a table; `where` is its SOURCE:LINE.
TunedRow read_row(std::string_view line, const std::string& where);

}  // namespace vqgen
