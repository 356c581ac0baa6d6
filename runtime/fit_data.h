// Stored data as one call of a problem.
#pragma once

#include <string>

#include "core/problem/problem.h"
#include "quantizer/bundle.h"

namespace vqgen {

// What a bundle item says of the attention problem, checked against it: formats, element type,
// heads, head_dim, number of queries and longest sequence must agree. Where the problem keeps raw
// tokens, they are taken from the originals. Error(bad_input) names `where` and what differs.
AttentionData fit_data(const AttentionDecode& op, const BundleItem& item, const std::string& where);

// Likewise; where the bundle stores no x, `seed` draws it.
LinearData fit_data(const Linear& op, const BundleItem& item, const std::string& where,
                    std::uint64_t seed);

}  // namespace vqgen
