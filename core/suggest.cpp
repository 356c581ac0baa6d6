#include "core/suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/former_names.h"

namespace vqgen {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Optimal string alignment: row i of the table from the two above it.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const auto same = [&](std::size_t p, std::size_t q) { return lower(a[p]) == lower(b[q]); };
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + !same(i - 1, j - 1)});
      if (i > 1 && j > 1 && same(i - 1, j - 2) && same(i - 2, j - 1)) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

// q_heads for query_heads: letters of the name in their order, with its first and its last.
bool abbreviates(std::string_view given, std::string_view name) {
  const auto ends = [](std::string_view each) {
    return std::pair(lower(each.front()), lower(each.back()));
  };
  if (given.size() < 3 || ends(given) != ends(name)) return false;
  std::size_t met = 0;
  for (const char c : name) met += met < given.size() && lower(c) == lower(given[met]);
  return met == given.size();
}

// int4-kivi-keys for int4: of the names that hold what is given, one that begins with it if any
// does. Null of less than three letters, which too many hold.
const std::string* holder_of(std::string_view given, std::span<const std::string> names) {
  if (given.size() < 3) return nullptr;
  std::string wanted(given);
  std::transform(wanted.begin(), wanted.end(), wanted.begin(), lower);
  const std::string* holder = nullptr;
  for (const std::string& name : names) {
    std::string each = name;
    std::transform(each.begin(), each.end(), each.begin(), lower);
    if (each.starts_with(wanted)) return &name;
    if (holder == nullptr && each.find(wanted) != each.npos) holder = &name;
  }
  return holder;
}

}  // namespace

bool same_but_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::string did_you_mean(std::string_view given, std::span<const std::string> names) {
  constexpr std::size_t kLettersAnEdit = 3;
  constexpr std::size_t kLongest = 64;  // no name is longer, and the table stays small
  if (given.size() > kLongest) return "";
  if (const std::string* present = present_name(given, names)) {
    return fmt::format("; it is named '{}'", *present);
  }
  const std::string* nearest = nullptr;
  const std::size_t most = std::max<std::size_t>(given.size() / kLettersAnEdit, 1);
  std::pair fewest{most + 1,
                   std::size_t{0}};  // an abbreviation is as near as one edit, if no name is
  for (const std::string& name : names) {
    if (name.empty()) continue;
    const std::size_t all = edits(given, name);
    const std::pair count{abbreviates(given, name) ? std::min<std::size_t>(all, 1) : all, all};
    if (count >= fewest || count.first >= name.size()) continue;
    fewest = count;
    nearest = &name;
  }
  if (nearest == nullptr) nearest = holder_of(given, names);
  return nearest == nullptr ? "" : fmt::format("; did you mean '{}'?", *nearest);
}

std::string suggest_then(std::string_view given, std::span<const std::string> names) {
  const std::string meant = did_you_mean(given, names);
  if (meant.empty()) return "; ";
  return meant + (meant.ends_with('?') ? " Else " : "; ");
}

std::string few_of(std::span<const std::string> names) {
  constexpr std::size_t kMost = 8;
  if (names.size() <= kMost) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.first(kMost - 1), ", "),
                     names.size() - kMost + 1);
}

}  // namespace vqgen
