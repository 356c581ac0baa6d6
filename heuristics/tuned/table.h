// A tuned table: a file of JSON lines (docs/guides/tuning.md), a header and then a row a line.
// table_text() writes them one way only, so equal tables are equal bytes; any JSON of a row is
// read.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/format/element.h"
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
// Writes the table to a file, published by one rename.
void write_table(const std::filesystem::path& path, const TunedTable& table);

// True if `a` sorts before `b` of the same key: the higher grade of policy, then the faster, then
// by plan name, then by the row's text. A total order: the best of many rows does not depend on
// their order.
bool better(const TunedRow& a, const TunedRow& b);

// The best row of any table for each key, sorted by key. Commutative, associative and idempotent.
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

// Two tables against each other, by key.
struct RowChange {
  TunedRow before;
  TunedRow after;
  bool beyond_noise = false;  // relative to the faster; or the policies' caching differs
};

struct TableDiff {
  std::vector<TunedRow> only_before;
  std::vector<TunedRow> only_after;
  std::vector<RowChange> winners;  // another plan
  std::vector<RowChange> times;    // same plan, beyond the noise
  std::size_t same = 0;
  bool empty() const {
    return only_before.empty() && only_after.empty() && winners.empty() && times.empty();
  }
};

// Sorted by key; a key that a table has twice counts with its best row.
TableDiff diff(const TunedTable& before, const TunedTable& after);

// Doubtful rows of a readable table.
inline constexpr double kMostNoise = 0.10;  // relative; beyond, a measurement decides little

struct LintFinding {
  std::string where;  // FILE:LINE
  std::string what;
};

// Findings of a table that was read from `name`, in its order. A file that is named as a shipped
// GPU profile is must hold rows of that device class alone. `tolerance` is what rel_err is allowed
// for an element type.
std::vector<LintFinding> lint(const TunedTable& table, const std::string& name,
                              double (*tolerance)(DType));

}  // namespace vqgen
