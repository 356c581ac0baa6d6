#include "runtime/stored_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace vqgen {
namespace {

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
  void same_format(const char* what, const VqFormat& bundle, const VqFormat& config) const {
    if (bundle != config && without_layout(bundle) == without_layout(config)) {
      fail(fmt::format(
          "the codes of {} are stored in groups of {} rows and runs of {} words, the "
          "config has {} and {}; make them agree, as by vqgen repack",
          what, bundle.layout.rows, bundle.layout.words, config.layout.rows, config.layout.words));
    }
    Json has = Json::object();
    Json wants = Json::object();
    for_each_field<VqFormat>([&](const auto& field) {
      if (bundle.*field.member == config.*field.member) return;
      has[field.name] = to_json_value(bundle.*field.member);
      wants[field.name] = to_json_value(config.*field.member);
    });
    same(fmt::format("the format of {}", what), has.dump(), wants.dump());
  }

 private:
  std::string where_;
};

// Each of the sequences gets a cache of its own, equal to the one that the bundle has for all.
void repeat_cache(AttentionData& data) {
  const auto repeat = [&](auto& values) {
    const auto once = std::ssize(values);
    values.resize(static_cast<std::size_t>(data.batch * once));
    for (std::int64_t b = 1; b < data.batch; ++b) {
      std::copy_n(values.begin(), once, values.begin() + b * once);
    }
  };
  for (QuantizedTensor* tensor : {&data.keys, &data.values}) {
    tensor->batch = data.batch;
    repeat(tensor->codes);
  }
  for (auto* rows :
       {&data.raw_keys, &data.raw_values, &data.original_keys, &data.original_values}) {
    repeat(*rows);
  }
}

// The raw rows of all caches in the order of the args: sinks by token, then the window's ring.
// Slots without a token stay zero.
template <class Op>
std::vector<std::uint16_t> raw_rows(const Op& op, const AttentionData& data,
                                    const std::vector<std::uint16_t>& originals) {
  const std::int64_t head_dim = op.shape.head_dim;
  const std::int64_t heads = data.keys.batch * op.shape.kv_heads;
  std::vector<std::uint16_t> raw(static_cast<std::size_t>(heads * op.raw_slots() * head_dim));
  for (std::int64_t head = 0; head < heads; ++head) {
    const std::int64_t tokens = data.lengths[static_cast<std::size_t>(head / op.shape.kv_heads)];
    const auto copy = [&](std::int64_t token, std::int64_t slot) {
      std::copy_n(originals.begin() + (head * data.keys.rows + token) * head_dim, head_dim,
                  raw.begin() + (head * op.raw_slots() + slot) * head_dim);
    };
    const std::int64_t sinks = std::min<std::int64_t>(op.shape.sinks, tokens);
    for (std::int64_t t = 0; t < sinks; ++t) copy(t, t);
    for (std::int64_t t = std::max<std::int64_t>(0, tokens - op.shape.recent_tokens); t < tokens;
         ++t) {
      copy(t, op.shape.sinks + t % op.shape.recent_tokens);
    }
  }
  return raw;
}

// The cache of a bundle item, checked against a problem on caches: formats, element type, heads,
// head_dim and longest sequence must agree.
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
  matcher.same<std::int64_t>("tokens", stored->keys.rows, op.shape.tokens);
  return *stored;
}

// Raw tokens, where the problem keeps some, from the originals: the first and the newest of each
// sequence.
template <class Op>
void add_raw(const Matcher& matcher, const Op& op, AttentionData& data) {
  if (op.raw_slots() == 0) return;
  if (data.original_keys.empty() || data.original_values.empty()) {
    matcher.fail("holds no originals for the raw window and sinks; quantize with --keep-original");
  }
  data.max_recent_tokens = op.shape.recent_tokens;
  data.flush_block = op.shape.flush_block;
  data.max_sinks = op.shape.sinks;
  data.recent_counts.assign(data.lengths.size(), most_raw(op.shape));
  data.sinks.assign(data.lengths.size(), op.shape.sinks);
  data.raw_keys = raw_rows(op, data, data.original_keys);
  data.raw_values = raw_rows(op, data, data.original_values);
}

const LinearData& stored_matrix(const Matcher& matcher, const Linear& op, const BundleItem& item) {
  if (op.shape.grouped()) {
    matcher.fail(
        "holds one matrix, the config has experts; run it on generated data, without --data");
  }
  const auto* stored = std::get_if<LinearData>(&item.data);
  if (stored == nullptr) matcher.fail("holds a KV cache, but the config's op is gemv");
  matcher.same_format("weights", stored->weights.format, op.weights);
  matcher.same("dtype", enum_name(stored->dtype), enum_name(op.dtype));
  matcher.same<std::int64_t>("out_features", stored->weights.rows, op.shape.out_features);
  matcher.same<std::int64_t>("in_features", stored->weights.columns, op.shape.in_features);
  return *stored;
}

}  // namespace

AttentionData stored_data(const AttentionDecode& op, const BundleItem& item,
                          const std::string& where, const HardInput&) {
  const Matcher matcher(where);
  AttentionData data = stored_cache(matcher, op, item);
  if (data.queries.empty()) {
    matcher.fail("holds no queries; quantize with --queries, or run on generated data");
  }
  matcher.same<std::int64_t>("batch", data.batch, op.shape.batch);
  matcher.same<std::int64_t>("query_heads", data.query_heads, op.shape.query_heads);
  if (data.keys.batch == 1) repeat_cache(data);
  if (op.shape.query_tokens > 1) {  // of which a bundle has one a sequence
    data.query_start.resize(static_cast<std::size_t>(data.batch) + 1);
    std::iota(data.query_start.begin(), data.query_start.end(), 0);
  }
  add_raw(matcher, op, data);
  return data;
}

AttentionData stored_data(const KvDequantize& op, const BundleItem& item, const std::string& where,
                          const HardInput&) {
  const Matcher matcher(where);
  AttentionData data = stored_cache(matcher, op, item);
  matcher.same<std::int64_t>("the number of caches", data.keys.batch, op.shape.batch);
  data.batch = data.keys.batch;
  data.lengths.assign(static_cast<std::size_t>(data.batch),
                      static_cast<std::int32_t>(data.keys.rows));
  data.recent_counts.clear();
  data.sinks.clear();
  add_raw(matcher, op, data);
  return data;
}

LinearData stored_data(const Linear& op, const BundleItem& item, const std::string& where,
                       const HardInput& input) {
  const Matcher matcher(where);
  LinearData data = stored_matrix(matcher, op, item);
  if (data.input_rows > 0 && data.input_rows < op.shape.rows) {
    matcher.fail(fmt::format("holds {} rows of x, the config asks for {}; lower its rows",
                             data.input_rows, op.shape.rows));
  }
  if (data.input_rows == 0) {
    data.x = make_linear_data(op, HardInput{.seed = input.seed}).x;
  } else {
    data.x.resize(static_cast<std::size_t>(op.shape.rows * op.shape.in_features));
  }
  data.input_rows = op.shape.rows;
  return data;
}

AppendData stored_data(const KvAppend&, const BundleItem&, const std::string& where,
                       const HardInput&) {
  throw Error(ErrorKind::bad_input,
              where +
                  ": kv_append makes codes of new tokens, so a bundle has nothing for it; run "
                  "it on generated data, without --data");
}

ScalarData stored_data(const ScalarMatrix&, const BundleItem&, const std::string& where,
                       const HardInput&) {
  throw Error(ErrorKind::bad_input,
              where +
                  ": int8_quantize and scalar_dequantize take a plain matrix, which a bundle has "
                  "none of; run them on generated data, without --data");
}

MergeData stored_data(const AttentionMerge&, const BundleItem&, const std::string& where,
                      const HardInput&) {
  throw Error(ErrorKind::bad_input,
              where +
                  ": attention_merge takes results of attention, which a bundle has none of; run "
                  "it on generated data, without --data");
}

void require_same_sizes(const Config& config, const BundleItem& item, const std::string& where) {
  const Matcher matcher(where);
  std::visit(
      [&]<class Op>(const Op& op) {
        if constexpr (std::is_same_v<Op, AttentionDecode> || std::is_same_v<Op, KvDequantize>) {
          stored_cache(matcher, op, item);
        } else if constexpr (std::is_base_of_v<Linear, Op>) {
          stored_matrix(matcher, op, item);
        } else {
          matcher.fail(fmt::format("the config's op is {}, which reads no bundle", Op::kOp));
        }
      },
      config.problem);
}

void require_fit(const Config& config, const NamedBundle& bundle) {
  if (bundle.bundle.items.empty()) {
    throw Error(ErrorKind::bad_input, bundle.path + ": holds no items; quantize again");
  }
  for (const BundleItem& item : bundle.bundle.items) {
    std::visit([&](const auto& op) { stored_data(op, item, bundle.where(item), {}); },
               config.problem);
  }
}

}  // namespace vqgen
