// The sizes of a cache's rows: heads of values may have another size than those of keys. `Shape` is
// the shape of an op on a cache.
#pragma once

#include <algorithm>
#include <array>

#include "core/json/fields.h"

namespace vqgen {

// Of keys and queries; values may have a size of their own.
inline constexpr const char* kHeadDimDoc = "channels per head, of keys and queries";
inline constexpr const char* kValueHeadDimDoc =
    "channels per head of values and outputs; without the field, head_dim";

enum class Operand { keys, values, weights };
template <>
inline constexpr auto enum_names<Operand> = std::array{"keys", "values", "weights"};

// Channels of a row of values.
template <class Shape>
int value_dim_of(const Shape& shape) {
  return shape.value_head_dim > 0 ? shape.value_head_dim : shape.head_dim;
}
// The field that says it.
template <class Shape>
const char* value_dim_field(const Shape& shape) {
  return shape.value_dim() == shape.head_dim ? "head_dim" : "value_head_dim";
}
// The longer of a row of keys and one of values.
template <class Shape>
int longest_row(const Shape& shape) {
  return std::max(shape.head_dim, shape.value_dim());
}
// Channels of a row of keys, or of values.
template <class Shape>
int row_dim(const Shape& shape, Operand operand) {
  return operand == Operand::values ? shape.value_dim() : shape.head_dim;
}

}  // namespace vqgen
