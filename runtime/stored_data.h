// The contents of a bundle as data of a config's problem, each item judged against it.
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
// element type, heads, head_dim, tokens, and for attention the number of queries. Always throws for
// an op that no bundle stores.
template <class Op>
typename OpTraits<Op>::Data stored_data(const Op& op, const BundleItem& item,
                                        const std::string& where, const HardInput& input) {
  if constexpr (requires { OpTraits<Op>::kNoBundle; }) {
    throw Error(ErrorKind::bad_input, where + ": " + OpTraits<Op>::kNoBundle);
  } else {
    return OpTraits<Op>::stored_data(op, item, where, input);
  }
}

// Checks an item without reading its data, also one that is still to be made. Throws
// Error(bad_input) if formats, element type or sizes are not the config's, or if its op reads no
// bundle.
void require_same_sizes(const Config& config, const BundleItem& item, const std::string& where);

// Calls stored_data() for all items before a kernel is compiled for them. Throws Error(bad_input)
// if there are no items.
void require_fit(const Config& config, const NamedBundle& bundle);

}  // namespace vqgen
