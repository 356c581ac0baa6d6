// Items of a bundle judged against a config's problem.
#pragma once

#include <fmt/format.h>

#include "core/json/json.h"
#include "quantizer/bundle.h"
#include "runtime/ops/op.h"

namespace vqgen {

class Matcher {
 public:
  explicit Matcher(std::string where) : where_(std::move(where)) {}

  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorKind::bad_input, where_ + ": " + message);
  }
  template <class Value>
  void same(const std::string& what, const Value& bundle, const Value& config) const {
    if (bundle == config) return;
    fail(fmt::format("{} is {} in the bundle and {} in the config; make them agree", what, bundle,
                     config));
  }
  void same_format(const char* what, const VqFormat& bundle, const VqFormat& config) const;

 private:
  std::string where_;
};

// The raw rows of all caches in the order of the args: sinks by token, then the recent-token ring.
// Slots without a token stay zero.
std::vector<std::uint16_t> raw_rows(const AttentionData& data,
                                    const std::vector<std::uint16_t>& originals,
                                    std::int64_t columns);

// The cache of a bundle item, checked against a problem on caches: formats, element type, heads,
// their sizes and longest sequence must agree.
template <class Op>
const AttentionData& stored_cache(const Matcher& matcher, const Op& op, const BundleItem& item) {
  const auto* stored = std::get_if<AttentionData>(&item.data);
  if (stored == nullptr) {
    matcher.fail(fmt::format("holds weights, but the config's op is {}", Op::kOp));
  }
  matcher.same_format("keys", stored->keys.format, op.keys);
  matcher.same_format("values", stored->values.format, op.values);
  matcher.same("dtype", enum_name(stored->dtype), enum_name(op.dtype));
  matcher.same<std::int64_t>("kv_heads", stored->keys.heads, op.shape.kv_heads);
  matcher.same<std::int64_t>("head_dim", stored->keys.columns, op.shape.head_dim);
  matcher.same<std::int64_t>("value_head_dim", stored->values.columns, op.shape.value_dim());
  matcher.same<std::int64_t>("tokens", stored->keys.rows, op.shape.tokens);
  return *stored;
}

// The matrix of a bundle item, checked against a problem on weights, whose op is called `name`.
template <class Op>
const LinearData& stored_weights(const Matcher& matcher, const Op& op, const char* name,
                                 const BundleItem& item) {
  const auto* stored = std::get_if<LinearData>(&item.data);
  if (stored == nullptr) {
    matcher.fail(fmt::format("holds a KV cache, but the config's op is {}", name));
  }
  matcher.same_format("weights", stored->weights.format, op.weights);
  matcher.same("dtype", enum_name(stored->dtype), enum_name(op.dtype));
  matcher.same<std::int64_t>("out_features", stored->weights.rows, op.shape.out_features);
  matcher.same<std::int64_t>("in_features", stored->weights.columns, op.shape.in_features);
  return *stored;
}

// Fills raw tokens, if the problem keeps some, from the originals: the first and the newest of each
// sequence.
template <class Op>
void add_raw(const Matcher& matcher, const Op& op, AttentionData& data) {
  if (op.raw_slots() == 0) return;
  if (data.original_keys.empty() || data.original_values.empty()) {
    matcher.fail(
        "holds no originals for the full-precision window and sinks; quantize with "
        "--keep-original");
  }
  data.max_recent_tokens = op.shape.recent_tokens;
  data.raw_page_tokens = op.shape.raw_page_tokens;
  data.flush_block = op.shape.flush_block;
  data.max_sinks = op.shape.sinks;
  data.recent_counts.assign(data.lengths.size(), most_raw(op.shape));
  data.sinks.assign(data.lengths.size(), op.shape.sinks);
  data.raw_keys = raw_rows(data, data.original_keys, data.keys.columns);
  data.raw_values = raw_rows(data, data.original_values, data.values.columns);
}

}  // namespace vqgen
