// What a bundle holds as data of a config's problem, each item judged against it.
#pragma once

#include <filesystem>
#include <string>

#include "core/problem/config.h"
#include "quantizer/bundle.h"
#include "runtime/verify/hard_input.h"

namespace vqgen {

// A bundle and the path that messages name.
struct NamedBundle {
  std::string path;
  Bundle bundle;

  std::string where(const BundleItem& item) const { return path + ": item '" + item.name + "'"; }
};

// The data of one call of the problem. Error(bad_input) names `where` and what differs: formats,
// element type, heads, head_dim, tokens, and of attention the number of queries.

// One query token a sequence, whatever the problem takes.
AttentionData stored_data(const AttentionDecode& op, const BundleItem& item,
                          const std::string& where, const HardInput& input);
// Each stored cache whole, whatever its queries are.
AttentionData stored_data(const KvDequantize& op, const BundleItem& item, const std::string& where,
                          const HardInput& input);
// Where the bundle stores no x, it is drawn.
LinearData stored_data(const Linear& op, const BundleItem& item, const std::string& where,
                       const HardInput& input);
// Of these a bundle holds nothing: always an Error.
AppendData stored_data(const KvAppend& op, const BundleItem& item, const std::string& where,
                       const HardInput& input);
ScalarData stored_data(const ScalarMatrix& op, const BundleItem& item, const std::string& where,
                       const HardInput& input);
MergeData stored_data(const AttentionMerge& op, const BundleItem& item, const std::string& where,
                      const HardInput& input);

// Of an item without its data, as of one that is to be made: Error(bad_input) where formats,
// element type or sizes are not the config's, or its op reads no bundle.
void require_same_sizes(const Config& config, const BundleItem& item, const std::string& where);

// stored_data() of all items, before a kernel is compiled for them. Error(bad_input) where there
// are none.
void require_fit(const Config& config, const NamedBundle& bundle);

}  // namespace vqgen
