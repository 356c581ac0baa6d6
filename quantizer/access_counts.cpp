#include "quantizer/access_counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "quantizer/pack.h"
#include "quantizer/parts.h"
#include "quantizer/units.h"

namespace vqgen {
namespace {

// The heat map of VQ-LLM fig. 9 needs no more, and profiles of large codebooks stay small.
constexpr int kMostHot = 64;

// For n = 1, 2, 4..hot: how many of the first n of both orders are equal.
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
void append_codebook(const std::vector<std::vector<std::int64_t>>& counts, AccessCounts& profile) {
  AccessCountsParts& parts = profile.parts;
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

// Scalar codes are numbers, and their codebook is one entry. Entries of parts are in global memory
// in any case.
void require_entries(const AccessCounts& profile) {
  if (profile.format.in_parts()) {
    throw Error(ErrorKind::bad_input,
                profile.name() +
                    ": is in parts, whose accesses are not counted and whose entries "
                    "are not reordered; take a bundle without such a format");
  }
  if (!profile.format.is_scalar()) return;
  throw Error(ErrorKind::infeasible,
              fmt::format("{}: codes of format {} are numbers, which name no codebook entries, so "
                          "no accesses can be counted; take a bundle without such a format",
                          profile.name(), short_name(profile.format)));
}

void require_reorderable(const QuantizedTensor& tensor, std::span<const std::int64_t> counts) {
  const VqFormat& format = tensor.format;
  if (format.decoder != Decoder::table) {
    throw Error(ErrorKind::infeasible,
                fmt::format("reorder: codes of the decoder {} are no numbers of entries, so they "
                            "cannot be renumbered; leave such tensors as they are",
                            enum_name(format.decoder)));
  }
  const std::int64_t expected = tensor.units * format.num_codebooks * format.entries();
  if (counts.size() != static_cast<std::size_t>(expected)) {
    throw Error(ErrorKind::bad_input,
                fmt::format("reorder: {} counts do not fit {} units of {} stages of {} entries; "
                            "count the accesses of this tensor",
                            counts.size(), tensor.units, format.num_codebooks, format.entries()));
  }
}

// Moves the entries of one codebook; gives the new number of each.
std::vector<std::uint32_t> renumber(std::span<const std::int64_t> counts,
                                    std::span<std::uint16_t> codebook) {
  const std::vector<std::uint16_t> old(codebook.begin(), codebook.end());
  const std::vector<std::uint32_t> order = hot_first(counts);
  const std::size_t size = codebook.size() / order.size();
  std::vector<std::uint32_t> number(order.size());
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    number[order[rank]] = static_cast<std::uint32_t>(rank);
    std::copy_n(old.data() + order[rank] * size, size, codebook.data() + rank * size);
  }
  return number;
}

const AccessCounts& profile_for(const std::string& item, Operand operand,
                                const std::vector<AccessCounts>& profiles) {
  for (const AccessCounts& profile : profiles) {
    if (profile.item == item && profile.operand == operand) return profile;
  }
  throw Error(ErrorKind::bad_input,
              fmt::format("reorder: no profile of the {} of '{}'; profile a bundle that has them",
                          enum_name(operand), item));
}

}  // namespace

AccessCounts count_accesses(const QuantizedTensor& tensor, const std::string& item, Operand operand,
                            int parts) {
  const VqFormat& format = tensor.format;
  AccessCounts profile{
      item, operand, without_layout(format), tensor.units, format.num_codebooks, format.entries(),
      {},   {}};
  require_entries(profile);
  profile.parts.number = parts;
  profile.parts.hot = std::min(kMostHot, format.entries() / 2);

  const std::vector<std::uint32_t> codes = unpack_codes(tensor);
  const UnitMap map = unit_map(format, tensor.heads, tensor.rows, tensor.columns, "count-accesses");
  const std::vector<std::vector<std::int64_t>> none(
      static_cast<std::size_t>(parts),
      std::vector<std::int64_t>(static_cast<std::size_t>(format.entries()), 0));
  for (std::int64_t unit = 0; unit < tensor.units; ++unit) {
    const UnitExtent extent = map.extent(unit);
    const std::int64_t unit_rows = extent.row_end - extent.row_begin;
    std::vector counts(static_cast<std::size_t>(format.num_codebooks), none);
    for_each_sub_vector(
        map, extent, tensor.batch, format.vector_size, [&](std::int64_t row, std::int64_t column) {
          const std::int64_t unit_row = row % map.rows - extent.row_begin;
          const auto part = static_cast<std::size_t>(unit_row * parts / unit_rows);
          const std::uint32_t* code = codes.data() + (row * tensor.columns + column) /
                                                         format.vector_size * format.num_codebooks;
          for (auto& stage : counts) ++stage[part][format.entry_of(*code++)];
        });
    for (const auto& stage : counts) append_codebook(stage, profile);
  }
  return profile;
}

std::vector<AccessCounts> profile_bundle(const Bundle& bundle, int parts) {
  std::vector<AccessCounts> profiles;
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

void reorder(QuantizedTensor& tensor, std::span<const std::int64_t> counts) {
  require_one_format(tensor.format, "reorder");
  require_reorderable(tensor, counts);
  const VqFormat& format = tensor.format;
  const auto entries = static_cast<std::size_t>(format.entries());
  const auto stages = static_cast<std::size_t>(format.num_codebooks);
  const std::size_t codebook_size = entries * static_cast<std::size_t>(format.vector_size);
  const UnitMap map = unit_map(format, tensor.heads, tensor.rows, tensor.columns, "reorder");

  std::vector<std::uint32_t> codes = unpack_codes(tensor);
  std::vector<std::vector<std::uint32_t>> numbers(stages);
  for (std::int64_t unit = 0; unit < tensor.units; ++unit) {
    for (std::size_t stage = 0; stage < stages; ++stage) {
      const std::size_t codebook = static_cast<std::size_t>(unit) * stages + stage;
      numbers[stage] =
          renumber(counts.subspan(codebook * entries, entries),
                   std::span(tensor.codebooks).subspan(codebook * codebook_size, codebook_size));
    }
    for_each_sub_vector(map, map.extent(unit), tensor.batch, format.vector_size,
                        [&](std::int64_t row, std::int64_t column) {
                          std::uint32_t* code = codes.data() + (row * tensor.columns + column) /
                                                                   format.vector_size *
                                                                   format.num_codebooks;
                          for (const auto& number : numbers) {
                            *code = number[*code];
                            ++code;
                          }
                        });
  }
  pack_codes(codes, tensor);
}

void reorder(Bundle& bundle, const std::vector<AccessCounts>& profiles) {
  const auto by_profile = [&](const std::string& item, Operand operand, QuantizedTensor& tensor) {
    const AccessCounts& profile = profile_for(item, operand, profiles);
    if (profile.format != without_layout(tensor.format) || profile.units != tensor.units) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("reorder: the profile of '{}' is of another format or number of "
                              "codebooks than the bundle; profile one with these codebooks",
                              profile.name()));
    }
    reorder(tensor, profile.counts);
  };
  for (BundleItem& item : bundle.items) {
    if (auto* cache = std::get_if<AttentionData>(&item.data)) {
      by_profile(item.name, Operand::keys, cache->keys);
      by_profile(item.name, Operand::values, cache->values);
    } else {
      by_profile(item.name, Operand::weights, std::get<LinearData>(item.data).weights);
    }
  }
}

}  // namespace vqgen
