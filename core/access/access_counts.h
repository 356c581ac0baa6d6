// AccessCounts: how often each entry of one tensor's codebooks is read, and how steady that is
// over the tensor's rows (VQ-LLM sec. V-B). Measured on stored codes by quantizer/access_counts.h;
// what it says is in core/access/access_counts_summary.h. A profile file holds one for each item
// and operand of a bundle.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/json/fields.h"
#include "core/json/json.h"
#include "core/problem/problem.h"

namespace vqgen {

// Most accesses of a profile: a double holds every sum of them exactly.
inline constexpr std::int64_t kMostAccesses = 9'000'000'000'000'000;

// The rows that a unit serves, cut into `number` parts of equal size, a row more or less; and in
// each part the accesses of the entries that are the hottest of all rows, in hot_first() order.
struct AccessCountsParts {
  int number = 0;
  int hot = 0;                         // how many entries are followed: a power of two
  std::vector<std::int64_t> accesses;  // [unit][stage][part]
  std::vector<std::int64_t> counts;    // [unit][stage][part][rank], ranks 0..hot - 1
  // [unit][stage][part][k], 2^k = 1..hot: of the 2^k hottest entries of all rows, those that are
  // among the part's own 2^k hottest.
  std::vector<int> common;

  static constexpr auto fields() {
    using P = AccessCountsParts;
    return std::make_tuple(
        field("number", &P::number, required(1, 1024), "parts that the rows are cut into"),
        field("hot", &P::hot, required(1, 65536), "hottest entries followed in each part"),
        field("accesses", &P::accesses, required(0, 9e15), "[unit][stage][part] flattened"),
        field("counts", &P::counts, required(0, 9e15), "[unit][stage][part][rank] flattened"),
        field("common", &P::common, required(0, 65536), "[unit][stage][part][k] flattened"));
  }
  bool operator==(const AccessCountsParts&) const = default;
};

struct AccessCounts {
  std::string item;
  Operand operand = Operand::keys;
  VqFormat format;
  std::int64_t units = 0;
  int num_codebooks = 1;
  int entries = 0;
  std::vector<std::int64_t> counts;  // [unit][stage][entry], entries as the codes number them
  AccessCountsParts parts;

  static constexpr auto fields() {
    using H = AccessCounts;
    return std::make_tuple(
        field("item", &H::item, required(), "the bundle's item"),
        field("operand", &H::operand, required(), "which of its tensors"),
        field("format", &H::format, required(), "how the tensor is quantized"),
        field("units", &H::units, required(1, 9e15), "codebook sets"),
        field("num_codebooks", &H::num_codebooks, required(1, kMostStages),
              "stages of a set, as in the format"),
        field("entries", &H::entries, required(1, 65536), "of a codebook, as in the format"),
        field("counts", &H::counts, required(0, 9e15), "accesses, [unit][stage][entry] flattened"),
        field("parts", &H::parts, required(), "the same, part by part of the rows"));
  }
  bool operator==(const AccessCounts&) const = default;

  std::size_t codebooks() const { return counts.size() / static_cast<std::size_t>(entries); }
  // Codebook `index` = unit * num_codebooks + stage.
  std::span<const std::int64_t> codebook(std::size_t index) const {
    const auto size = static_cast<std::size_t>(entries);
    return std::span(counts).subspan(index * size, size);
  }
  // "layer2.keys": what reports call it.
  std::string name() const { return item + "." + std::string(enum_name(operand)); }
};

// Entries of one codebook, the most read first, equal ones by their number: element r is the entry
// that hot-first numbering calls r.
std::vector<std::uint32_t> hot_first(std::span<const std::int64_t> counts);

// Error(bad_input) that begins with `where` unless all sizes agree, sums stay below 2^53, and the
// parts are parts of the counts. `format` must be within the bounds of its fields.
void validate(const AccessCounts& profile, const std::string& where);

// The profiles of a file. Error(bad_input) names file, JSON path, problem and remedy.
std::vector<AccessCounts> read_access_counts(const std::filesystem::path& path);
std::vector<AccessCounts> read_access_counts(const Json& json, const std::string& source);

// The text of a profile file, a line a profile; the same profiles give the same bytes.
std::string access_counts_text(const std::vector<AccessCounts>& profiles);

// Selects one profile per operand of the problem, over the codebooks of all its items ("3 items")
// with `parts` empty: for summarise() and share_below(), not validate(). Throws Error(bad_input)
// from `source` if a profile is missing or of another format or number of units.
std::vector<AccessCounts> match_access_counts(const std::vector<AccessCounts>& profiles,
                                              const Problem& problem, const std::string& source);

}  // namespace vqgen
