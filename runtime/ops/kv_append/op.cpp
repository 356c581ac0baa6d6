#include "runtime/ops/kv_append/op.h"

#include <fmt/format.h>

namespace vqgen {
namespace {

// Tokens for which each sequence has pages: all that it has room for, if it is appended to.
std::vector<std::int32_t> paged_lengths(const AppendData& data) {
  std::vector<std::int32_t> lengths;
  for (std::size_t b = 0; b < data.positions.size(); ++b) {
    const std::int32_t position = data.positions[b];
    const bool some = data.counts.empty() || data.counts[b] > 0;
    const bool appends = some && position >= 0 && position < data.keys.rows;
    lengths.push_back(appends ? static_cast<std::int32_t>(data.keys.rows) : 0);
  }
  return lengths;
}

}  // namespace

using KvAppendTraits = OpTraits<KvAppend>;

ItemReport KvAppendTraits::judge(const KvAppend&, const AppendData& data, None,
                                 const AppendResult& output) {
  const AppendVerdict verdict = judge_append(data, output);
  ItemReport report;
  report.ok = verdict.ok;
  report.rel_err = verdict.excess;
  report.tolerance = append_tolerance(data);
  report.why = verdict.why;
  return report;
}

std::function<vq::KvAppendArgs(int, int)> KvAppendTraits::upload(const KvAppend& op,
                                                                 const AppendData& data,
                                                                 const Upload& to) {
  if (op.shape.page_tokens > 0) {
    to.pools.codes = make_pool(data.keys, data.values, paged_lengths(data), op.shape.page_tokens,
                               false, Random(data.paging_seed), data.page_order);
  }
  if (op.shape.raw_page_tokens > 0) {
    to.pools.raw =
        make_raw_pool(data.keys, data.values, data.raw_keys, data.raw_values, paged_lengths(data),
                      op.shape.raw_page_tokens, Random(data.paging_seed + 1));
  }
  DeviceArgs args{};
  upload_inputs<KvAppend>(args, data, to);
  const auto cache = place_cache(args, op, data, to);
  args.capacity = static_cast<vq::i32>(op.shape.tokens);
  args.batch = op.shape.batch;
  return [=](int call, int codebooks) mutable {
    cache.set(args, call, codebooks);
    return args;
  };
}

AppendResult KvAppendTraits::output(const DeviceData& device, const Pools& pools,
                                    const AppendData& data) {
  AppendResult result{device.fetch<std::uint32_t>(0), device.fetch<std::uint32_t>(1),
                      device.fetch<std::uint16_t>(2), device.fetch<std::uint16_t>(3)};
  const auto require_kept = [](bool kept, const char* what) {
    if (kept) return;
    throw Error(
        ErrorKind::verification_failed,
        fmt::format("the kernel wrote to {} of the pool that are no row's of a sequence", what));
  };
  if (pools.raw.paged()) {
    const std::vector<std::uint16_t> keys = std::move(result.raw_keys);
    const std::vector<std::uint16_t> values = std::move(result.raw_values);
    result.raw_keys = data.raw_keys;
    result.raw_values = data.raw_values;
    require_kept(take_raw_rows(pools.raw, data.keys, data.values, paged_lengths(data), keys, values,
                               result.raw_keys, result.raw_values),
                 "raw rows");
  }
  const PagePool& pool = pools.codes;
  if (pool.page_tokens == 0) return result;
  std::vector<std::uint32_t> keys = std::move(result.key_codes);
  std::vector<std::uint32_t> values = std::move(result.value_codes);
  require_kept(take_rows(pool, data.keys, data.values, paged_lengths(data), std::move(keys),
                         std::move(values), result.key_codes, result.value_codes),
               "words");
  return result;
}

// A call writes few rows of the codes: those of its new tokens, or of the flush blocks that they
// fill.
LayerBytes KvAppendTraits::layer_bytes(const AppendData& data) {
  std::int64_t rows = 0;
  for (const std::int64_t position : data.positions) {
    const std::int64_t end = position + data.new_tokens;
    rows +=
        data.keys.heads * (end - end % data.flush_block - position + position % data.flush_block);
  }
  return {rows * (data.keys.row_words + data.values.row_words) * 4,
          bytes_of(data.keys.codes, data.values.codes, data.raw_keys, data.raw_values),
          codebook_bytes_of(data.keys) + codebook_bytes_of(data.values)};
}

}  // namespace vqgen
