// Statistics of a AccessCounts: how uneven the accesses are (VQ-LLM fig. 8) and how steady the
// hot entries are (fig. 9). Pure functions; profiles must satisfy validate().
#pragma once

#include <cstdint>
#include <vector>

#include "core/access/access_counts.h"

namespace vqgen {

struct AccessCountsFigures {
  std::int64_t accesses = 0;
  double mean = 0;         // accesses an entry
  double sigma = 0;        // their standard deviation over the entries
  double hot_entries = 0;  // entries read more often than mean + 3 sigma
  double below_mean = 0;   // share of the entries that are read less often than the mean
  // [k], 2^k = 1..entries: share of the accesses that the 2^k hottest entries take; 0 without any.
  std::vector<double> top_share;
};

// Accesses and top shares of all codebooks together, each with its own hottest entries; the rest
// is the mean over the codebooks.
AccessCountsFigures summarise(const AccessCounts& profile);

// Numbering of entries: by the profiled codes, or hot-first.
enum class Numbering { current, hot_first };

// The share of the accesses that go to entries 0..boundary - 1 of their codebook, 0 <= boundary <=
// entries; 0 where there are no accesses.
double share_below(const AccessCounts& profile, int boundary, Numbering numbering);

// Index k stands for the 2^k hottest entries of the whole tensor, 2^k = 1..parts.hot.
struct AccessCountsSteadiness {
  // [k][part]: the share of the part's accesses that these entries take; 0 in an empty part.
  std::vector<std::vector<double>> share;
  // [k]: the overlap (Jaccard: common over united) of these entries with the part's own 2^k
  // hottest, mean over the codebooks and their parts that have accesses. 1 is steady; n of m
  // entries drawn at random overlap by about n / (2 m - n).
  std::vector<double> overlap;
};
AccessCountsSteadiness steadiness(const AccessCounts& profile);

}  // namespace vqgen
