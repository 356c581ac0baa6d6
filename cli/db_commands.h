// vqgen db: its subcommands, one function each, and what they share.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"
#include "heuristics/tuned/table.h"

namespace vqgen::cli {

// A table that was read whole.
struct NamedTable {
  std::string name;
  TunedTable table;
};
// Those of the paths, or with none those that lookups go through, in their order.
std::vector<NamedTable> open_tables(const std::vector<std::string>& paths);

// "12.34 us  1.21x  gemv f16 rows 1 of 4096x4096 d8b8x2  NVIDIA H200  uniform  linear/...": a line.
std::string row_text(const TunedRow& row);

void db_ls(const std::vector<std::string>& paths, Output& output);
void db_query(const std::string& config, const std::string& gpu, const std::string& codes,
              Output& output);
void db_merge(const std::vector<std::string>& paths, const std::string& out, Output& output);
void db_lint(const std::vector<std::string>& paths, Output& output);
void db_diff(const std::string& before, const std::string& after, Output& output);

}  // namespace vqgen::cli
