#include "quantizer/hotness.h"

#include <algorithm>
#include <bit>

#include "quantizer/pack.h"
#include "quantizer/units.h"

namespace vqgen {
namespace {

// The heat map of VQ-LLM fig. 9 needs no more, and profiles of large codebooks stay small.
constexpr int kMostHot = 64;

// Of the first n of both orders, n = 1, 2, 4..hot, how many they share.
void append_common(const std::vector<std::uint32_t>& whole, const std::vector<std::uint32_t>& part,
                   std::size_t hot, std::vector<int>& common) {
  std::vector<int> seen(whole.size(), 0);
  int shared = 0;
  for (std::size_t rank = 0; rank < hot; ++rank) {
    for (const std::uint32_t entry : {whole[rank], part[rank]}) {
      if (++seen[entry] == 2) ++shared;
    }
    if (std::has_single_bit(rank + 1)) common.push_back(shared);
  }
}

// Appends one codebook, of which counts[part][entry] is known.
void append_codebook(const std::vector<std::vector<std::int64_t>>& counts,
                     HotnessProfile& profile) {
  HotnessParts& parts = profile.parts;
  std::vector<std::int64_t> whole(counts.front().size(), 0);
  for (const auto& part : counts) {
    std::transform(part.begin(), part.end(), whole.begin(), whole.begin(), std::plus<>());
  }
  const std::vector<std::uint32_t> order = hot_first(whole);
  const auto hot = static_cast<std::size_t>(parts.hot);
  for (const auto& part : counts) {
    std::int64_t accesses = 0;
    for (const std::int64_t count : part) accesses += count;
    parts.accesses.push_back(accesses);
    for (std::size_t rank = 0; rank < hot; ++rank) parts.counts.push_back(part[order[rank]]);
    append_common(order, hot_first(part), hot, parts.common);
  }
  profile.counts.insert(profile.counts.end(), whole.begin(), whole.end());
}

}  // namespace

HotnessProfile count_accesses(const QuantizedTensor& tensor, const std::string& item,
                              Operand operand, int parts) {
  const VqFormat& format = tensor.format;
  HotnessProfile profile{
      item, operand, without_layout(format), tensor.units, format.residuals, format.entries(),
      {},   {}};
  profile.parts.number = parts;
  profile.parts.hot = std::min(kMostHot, format.entries() / 2);

  const std::vector<std::uint32_t> codes = unpack_codes(tensor);
  const std::int64_t row_codes = tensor.columns / format.vector_size * format.residuals;
  const UnitMap map = unit_map(format, tensor.heads, tensor.rows, tensor.columns, "profile");
  const std::vector<std::vector<std::int64_t>> none(
      static_cast<std::size_t>(parts),
      std::vector<std::int64_t>(static_cast<std::size_t>(format.entries()), 0));
  for (std::int64_t unit = 0; unit < tensor.units; ++unit) {
    const UnitExtent extent = map.extent(unit);
    const std::int64_t unit_rows = extent.row_end - extent.row_begin;
    std::vector counts(static_cast<std::size_t>(format.residuals), none);
    for_each_sub_vector(
        map, extent, tensor.batch, format.vector_size, [&](std::int64_t row, std::int64_t column) {
          const std::int64_t unit_row = row % map.rows - extent.row_begin;
          const auto part = static_cast<std::size_t>(unit_row * parts / unit_rows);
          const std::uint32_t* code =
              codes.data() + row * row_codes + column / format.vector_size * format.residuals;
          for (auto& stage : counts) ++stage[part][format.entry_of(*code++)];
        });
    for (const auto& stage : counts) append_codebook(stage, profile);
  }
  return profile;
}

std::vector<HotnessProfile> profile_bundle(const Bundle& bundle, int parts) {
  std::vector<HotnessProfile> profiles;
  for (const BundleItem& item : bundle.items) {
    if (const auto* cache = std::get_if<AttentionData>(&item.data)) {
      profiles.push_back(count_accesses(cache->keys, item.name, Operand::keys, parts));
      profiles.push_back(count_accesses(cache->values, item.name, Operand::values, parts));
    } else {
      const auto& weights = std::get<LinearData>(item.data).weights;
      profiles.push_back(count_accesses(weights, item.name, Operand::weights, parts));
    }
  }
  return profiles;
}

}  // namespace vqgen
