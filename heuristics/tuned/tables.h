// The tables that plans are looked up in, one before the other: the user's own before those that
// ship with vqgen. Per key the first table that has it counts, not the fastest row: what was
// measured on the user's own machine goes over what was measured elsewhere.
//
// Looking up must cost next to nothing, and reading a row whole takes a tenth of a millisecond. So
// a table is kept as text of rows as to_json() writes them, whose lines are searched for the
// problem's own text, and a row is read again when it is its turn to be judged. A user's table is
// read whole when it is added, and brought to that text however it is written. What ships is
// written so already, which a test sees to.
#pragma once

#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "heuristics/tuned/table.h"

namespace vqgen {

// How a table or row that cannot be read is treated: as an Error, or as missing with a warning.
enum class Damage { fail, skip };

// A row as text in a table, of which only the key has been read.
struct FoundRow {
  std::string where;      // FILE:LINE
  std::size_t order = 0;  // of its table, the first is 0
  Problem problem = {};
  std::string gpu = {};
  std::string codes = {};
  std::string key = {};        // tuned_key()
  std::string_view line = {};  // in the tables, which must outlive it
};

// Filled by one thread, then looked up by any number.
class TunedTables {
 public:
  explicit TunedTables(Damage damage = Damage::fail) : damage_(damage) {}

  // Adds a table after the others. Throws Error(bad_input) as read_table() does.
  void add(std::string name, std::string_view text);
  void add_file(const std::filesystem::path& path);
  void add_shipped();

  bool empty() const { return tables_.empty(); }
  // Rows of exactly this problem, of all device classes and codes.
  std::vector<FoundRow> of(const Problem& problem) const;
  // Rows of problems with this op, element type and formats that are `near`, on one device class.
  std::vector<FoundRow> like(const Problem& problem, const std::string& gpu,
                             const std::function<bool(const Problem&)>& near) const;
  // The whole row; nothing where it is damaged and that is to be skipped.
  std::optional<TunedRow> read(const FoundRow& found) const;

  // The first damage that was skipped; empty where there was none.
  std::string warning() const;

 private:
  struct Table {
    std::string name;
    std::string text;  // lines of rows; empty lines for damaged ones
  };
  template <class Act>
  void guarded(Act&& act) const;
  // The rows of lines that hold the two texts one behind the other, each with its problem by the
  // text between them; nothing where it is not wanted.
  using ProblemOf =
      std::function<std::optional<Problem>(std::string_view between, const FoundRow& row)>;
  std::vector<FoundRow> find(const std::string& first, const std::string& second,
                             const ProblemOf& problem_of) const;

  Damage damage_;
  std::vector<Table> tables_;
  mutable std::mutex mutex_;  // guards the warning
  mutable std::string warning_;
};

// The tables that ship with vqgen: profiles/tuned/*.jsonl.
struct ShippedTable {
  std::string name;  // "tuned/h200.jsonl"
  std::string_view text;
};
std::vector<ShippedTable> shipped_tables();

}  // namespace vqgen
