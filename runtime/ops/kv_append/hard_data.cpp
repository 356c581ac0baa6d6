#include <algorithm>
#include <limits>

#include "runtime/ops/kv_append/reference.h"

namespace vqgen {
namespace {

enum AppendStream : std::uint64_t {
  kAppendKeys,
  kAppendValues,
  kAppendNewKeys,
  kAppendNewValues,
  kAppendRaw,
  kAppendPlaces,
};

QuantizedTensor make_cache(const KvAppend& op, const VqFormat& format, int columns, Random random) {
  const AppendShape& shape = op.shape;
  QuantizedTensor cache = make_hard_tensor(format, op.dtype,
                                           {.batch = shape.batch,
                                            .heads = shape.kv_heads,
                                            .rows = shape.tokens,
                                            .columns = columns,
                                            .units = kv_units(format, shape.kv_heads, columns)},
                                           1, random);
  fill_codes(cache, {}, random);
  return cache;
}

// A row of zeros would be as far from an entry as from its negative.
std::vector<std::uint16_t> make_elements(const KvAppend& op, int columns, Random random) {
  const AppendShape& shape = op.shape;
  const std::int64_t rows = std::int64_t{shape.batch} * shape.new_tokens * shape.kv_heads;
  return outlier_rows(op.dtype, rows, columns, 1.0 / 16, random);
}

std::vector<std::uint16_t> make_raw(const KvAppend& op, int columns, Random& random) {
  const AppendShape& shape = op.shape;
  const std::int64_t count = std::int64_t{shape.batch} * shape.kv_heads * op.raw_slots() * columns;
  std::vector<std::uint16_t> raw(static_cast<std::size_t>(count));
  const auto draw = [&] {
    return element_from_float(op.dtype, static_cast<float>(random.normal()));
  };
  std::generate(raw.begin(), raw.end(), draw);
  return raw;
}

// Gives each sequence one of the positions that are easily got wrong, in an order that the seed
// sets.
void make_places(const KvAppend& op, LengthPattern pattern, Random random, AppendData& data) {
  const auto tokens = static_cast<std::int32_t>(op.shape.tokens);
  const std::int32_t fresh = op.shape.new_tokens;
  const std::int32_t last = std::max(0, tokens - fresh);
  const auto batch = static_cast<std::size_t>(op.shape.batch);
  data.positions.assign(batch, last);
  if (pattern == LengthPattern::full) return;
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  const std::int32_t positions[] = {
      last,   0,  tokens - 1, static_cast<std::int32_t>(random.below(tokens)),
      tokens, -1, most,       std::numeric_limits<std::int32_t>::min()};
  const std::int32_t counts[] = {
      fresh, static_cast<std::int32_t>(random.below(fresh + 1)), 1, most, 0, -1};
  const std::int64_t turn = random.below(24);
  data.counts.resize(batch);
  for (std::size_t b = 0; b < batch; ++b) {
    data.positions[b] = positions[(b + static_cast<std::size_t>(turn % 4)) % std::size(positions)];
    data.counts[b] = counts[(b + static_cast<std::size_t>(turn / 4 % 4)) % std::size(counts)];
  }
}

}  // namespace

AppendData make_append_data(const KvAppend& problem, const HardInput& input) {
  const int keys = problem.shape.head_dim, values = problem.shape.value_dim();
  AppendData data;
  data.dtype = problem.dtype;
  data.paging_seed = input.seed;
  data.page_order = input.page_order;
  data.batch = problem.shape.batch;
  data.new_tokens = problem.shape.new_tokens;
  data.max_recent_tokens = problem.shape.recent_tokens;
  data.raw_page_tokens = problem.shape.raw_page_tokens;
  data.flush_block = problem.shape.flush_block;
  data.max_sinks = problem.shape.sinks;
  data.keys = make_cache(problem, problem.keys, keys, Random(input.seed, kAppendKeys));
  data.values = make_cache(problem, problem.values, values, Random(input.seed, kAppendValues));
  data.new_keys = make_elements(problem, keys, Random(input.seed, kAppendNewKeys));
  data.new_values = make_elements(problem, values, Random(input.seed, kAppendNewValues));
  Random raw(input.seed, kAppendRaw);
  data.raw_keys = make_raw(problem, keys, raw);
  data.raw_values = make_raw(problem, values, raw);
  make_places(problem, input.lengths, Random(input.seed, kAppendPlaces), data);
  return data;
}

}  // namespace vqgen
