// Codebook sets and codebooks of a problem's tensors.
#include "core/ceil_div.h"
#include "core/problem/problem.h"

namespace vqgen {
namespace {

// Codebook sets of a part, or of a format without parts.
std::int64_t units_of_part(const VqFormat& part, int kv_heads, int channels) {
  switch (part.scope) {
    case Scope::head:
      return kv_heads;
    case Scope::channel_group:
      return std::int64_t{kv_heads} * (channels / part.channels_per_group());
    default:
      return 1;
  }
}

// The sum over all parts of units times count(part).
template <class Count>
std::int64_t sum_of_units(const VqFormat& format, int kv_heads, int head_dim, Count count) {
  std::int64_t sum = 0;
  for_each_part(format, head_dim, [&](const VqFormat& part, int channels) {
    sum += units_of_part(part, kv_heads, channels) * count(part);
  });
  return sum;
}

}  // namespace

std::int64_t kv_units(const VqFormat& format, int kv_heads, int head_dim) {
  return sum_of_units(format, kv_heads, head_dim, [](const VqFormat&) { return 1; });
}

std::int64_t kv_codebook_elements(const VqFormat& format, int kv_heads, int head_dim) {
  return sum_of_units(format, kv_heads, head_dim, [](const VqFormat& part) {
    return std::int64_t{part.num_codebooks} * part.entries() * part.vector_size;
  });
}

std::int64_t kv_stages(const VqFormat& format, int kv_heads, int head_dim) {
  return sum_of_units(format, kv_heads, head_dim,
                      [](const VqFormat& part) { return part.num_codebooks; });
}

std::int64_t weight_units(const VqFormat& format, std::int64_t out_features,
                          std::int64_t in_features) {
  switch (format.scope) {
    case Scope::channel_group:
      return ceil_div(in_features, format.channels_per_group());
    case Scope::tile:
      return ceil_div(out_features, format.tile_rows) * ceil_div(in_features, format.tile_columns);
    default:
      return 1;
  }
}

std::int64_t weight_units(const Linear& op) {
  return op.shape.matrices() *
         weight_units(op.weights, op.shape.out_features, op.shape.in_features);
}

}  // namespace vqgen
