#include "core/access/access_counts_summary.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace vqgen {
namespace {

double ratio(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

// [k]: accesses of the 2^k hottest entries.
std::vector<std::int64_t> top_accesses(std::span<const std::int64_t> counts,
                                       const std::vector<std::uint32_t>& order) {
  std::vector<std::int64_t> top;
  std::int64_t sum = 0;
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    sum += counts[order[rank]];
    if (std::has_single_bit(rank + 1)) top.push_back(sum);
  }
  return top;
}

AccessCountsFigures figures_of(std::span<const std::int64_t> counts,
                               const std::vector<std::int64_t>& top) {
  AccessCountsFigures figures;
  const auto entries = static_cast<double>(counts.size());
  figures.accesses = top.back();
  figures.mean = static_cast<double>(figures.accesses) / entries;
  double squares = 0;
  for (const std::int64_t count : counts) {
    const double difference = static_cast<double>(count) - figures.mean;
    squares += difference * difference;
  }
  figures.sigma = std::sqrt(squares / entries);
  std::int64_t below = 0;
  for (const std::int64_t count : counts) {
    const auto accesses = static_cast<double>(count);
    if (accesses > figures.mean + 3 * figures.sigma) figures.hot_entries += 1;
    if (accesses < figures.mean) ++below;
  }
  figures.below_mean = static_cast<double>(below) / entries;
  for (const std::int64_t share : top) figures.top_share.push_back(ratio(share, top.back()));
  return figures;
}

}  // namespace

AccessCountsFigures summarise(const AccessCounts& profile) {
  AccessCountsFigures total;
  std::vector<std::int64_t> top(
      static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(profile.entries))));
  const auto codebooks = static_cast<double>(profile.codebooks());
  for (std::size_t i = 0; i < profile.codebooks(); ++i) {
    const auto counts = profile.codebook(i);
    const std::vector<std::int64_t> own = top_accesses(counts, hot_first(counts));
    const AccessCountsFigures figures = figures_of(counts, own);
    for (std::size_t k = 0; k < top.size(); ++k) top[k] += own[k];
    total.mean += figures.mean / codebooks;
    total.sigma += figures.sigma / codebooks;
    total.hot_entries += figures.hot_entries / codebooks;
    total.below_mean += figures.below_mean / codebooks;
  }
  total.accesses = top.back();
  for (const std::int64_t share : top) total.top_share.push_back(ratio(share, total.accesses));
  return total;
}

double share_below(const AccessCounts& profile, int boundary, Numbering numbering) {
  std::int64_t below = 0;
  std::int64_t all = 0;
  for (std::size_t i = 0; i < profile.codebooks(); ++i) {
    const auto counts = profile.codebook(i);
    all = std::accumulate(counts.begin(), counts.end(), all);
    std::vector<std::int64_t> numbered(counts.begin(), counts.end());
    if (numbering == Numbering::hot_first) {
      std::sort(numbered.begin(), numbered.end(), std::greater<>());
    }
    below = std::accumulate(numbered.begin(), numbered.begin() + boundary, below);
  }
  return ratio(below, all);
}

AccessCountsSteadiness steadiness(const AccessCounts& profile) {
  const AccessCountsParts& parts = profile.parts;
  const auto number = static_cast<std::size_t>(parts.number);
  const auto hot = static_cast<std::size_t>(parts.hot);
  const auto levels = static_cast<std::size_t>(std::bit_width(hot));
  std::vector<std::int64_t> accesses(number, 0);
  std::vector<std::vector<std::int64_t>> top(levels, accesses);
  AccessCountsSteadiness result;
  result.overlap.assign(levels, 0.0);
  double read_parts = 0;
  for (std::size_t row = 0; row < parts.accesses.size(); ++row) {
    if (parts.accesses[row] == 0) continue;
    read_parts += 1;
    const std::size_t part = row % number;
    accesses[part] += parts.accesses[row];
    std::int64_t sum = 0;
    for (std::size_t rank = 0; rank < hot; ++rank) {
      sum += parts.counts[row * hot + rank];
      if (std::has_single_bit(rank + 1)) top[std::bit_width(rank + 1) - 1u][part] += sum;
    }
    for (std::size_t k = 0; k < levels; ++k) {
      const int common = parts.common[row * levels + k];
      result.overlap[k] += static_cast<double>(common) / static_cast<double>((2 << k) - common);
    }
  }
  for (std::size_t k = 0; k < levels; ++k) {
    if (read_parts > 0) result.overlap[k] /= read_parts;
    std::vector<double> share;
    for (std::size_t part = 0; part < number; ++part) {
      share.push_back(ratio(top[k][part], accesses[part]));
    }
    result.share.push_back(std::move(share));
  }
  return result;
}

}  // namespace vqgen
