// A tuned table: a file of JSON lines (docs/tuned-tables.md), a header and then a row a line. Rows
// stand in it exactly as to_json() writes them, so that one problem's are found by comparing text
// (heuristics/tuned/tables.h) and equal rows are equal bytes.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tuned_row.h"

namespace vqgen {

struct TunedTable {
  std::vector<TunedRow> rows;
};

// Error(bad_input) that begins with SOURCE:LINE for another version than 1, a last line that is cut
// off, what is no row or not written as rows are, and a second row of one key.
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

// For those that read rows as they are wanted: checks the header and that each line begins and ends
// as a row does, and gives the offset of the first row.
std::size_t rows_begin(std::string_view text, const std::string& source);
// One line of a table; `where` is its SOURCE:LINE.
TunedRow read_row(std::string_view line, const std::string& where);

}  // namespace vqgen
