// What a bundle holds as data of a config's problem, each item judged against it.
#pragma once

#include <filesystem>
#include <string>

#include "core/problem/config.h"
#include "quantizer/bundle.h"
#include "runtime/ops/ops.h"

namespace vqgen {

// A bundle and the path that messages name.
struct NamedBundle {
  std::string path;
  Bundle bundle;

  std::string where(const BundleItem& item) const { return path + ": item '" + item.name + "'"; }
};

// The data of one call of the problem. Error(bad_input) names `where` and what differs: formats,
// element type, heads, head_dim, tokens, and of attention the number of queries; that of an op for
// which a bundle holds nothing, always.
template <class Op>
typename OpTraits<Op>::Data stored_data(const Op& op, const BundleItem& item,
                                        const std::string& where, const HardInput& input) {
  if constexpr (requires { OpTraits<Op>::kNoBundle; }) {
    throw Error(ErrorKind::bad_input, where + ": " + OpTraits<Op>::kNoBundle);
  } else {
    return OpTraits<Op>::stored_data(op, item, where, input);
  }
}

// Of an item without its data, as of one that is to be made: Error(bad_input) where formats,
// element type or sizes are not the config's, or its op reads no bundle.
void require_same_sizes(const Config& config, const BundleItem& item, const std::string& where);

// stored_data() of all items, before a kernel is compiled for them. Error(bad_input) where there
// are none.
void require_fit(const Config& config, const NamedBundle& bundle);

}  // namespace vqgen
