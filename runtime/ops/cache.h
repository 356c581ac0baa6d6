// What the ops on a KV cache share: arguments, and data on a device.
#pragma once

#include <vq/args/quantized.h>
#include <vqgen/launch.h>

#include "runtime/ops/op.h"

namespace vqgen {

template <class Op, Operand kOperand>
StoredTensor stored_in_cache(const Op& op) {
  const auto& s = op.shape;
  const VqFormat& format = kOperand == Operand::keys ? op.keys : op.values;
  const int columns = row_dim(s, kOperand);
  const bool paged = s.page_tokens > 0;
  return {{paged ? 0 : s.batch, s.kv_heads, paged ? s.page_tokens : s.tokens},
          columns,
          kv_units(format, s.kv_heads, columns),
          kv_codebook_elements(format, s.kv_heads, columns),
          kv_stages(format, s.kv_heads, columns)};
}

// Raw rows, a row of channels per KV head, and factors of pairs of channels, of keys or of values.
template <class Op, Operand kOperand>
Extents raw_extents(const Op& op) {
  const auto& shape = op.shape;
  const int columns = row_dim(shape, kOperand);
  if (shape.raw_page_tokens > 0) {  // as many pages as the caller gives
    return {0, shape.kv_heads, shape.raw_page_tokens, columns};
  }
  return {shape.batch, shape.kv_heads, op.raw_slots(), columns};
}
template <class Op, Operand kOperand>
Extents channel_extents(const Op& op) {
  return {op.shape.kv_heads, row_dim(op.shape, kOperand)};
}
template <class Op, Operand kOperand>
Extents pair_extents(const Op& op) {
  const int columns = row_dim(op.shape, kOperand);
  return {op.shape.kv_heads, columns, columns};
}

template <class Op>
Extents one_a_sequence(const Op& op) {
  return {op.shape.batch};
}

// Keys, values and raw tokens; kv_append has them `written`.
template <class Op, class C, class D>
constexpr auto cache_arguments(bool written) {
  constexpr Operand kKeys = Operand::keys, kValues = Operand::values;
  const About<Op> raw_keys{.shape = raw_extents<Op, kKeys>,
                           .aligned = Aligned::access,
                           .taken = [](const Op& op) { return op.raw_slots() > 0; },
                           .written = written,
                           .strided = 2};
  About<Op> raw_values = raw_keys;
  raw_values.shape = raw_extents<Op, kValues>;
  const auto of_channels = [](Extents (*shape)(const Op&), bool (*taken)(const Op&)) {
    About<Op> about{.shape = shape, .content = f32<Op>};
    about.taken = taken;
    return about;
  };
  const auto of_pairs = [](Extents (*shape)(const Op&), bool (*taken)(const Op&)) {
    About<Op> about{.shape = shape, .content = f32<Op>, .aligned = Aligned::entry};
    about.taken = taken;
    return about;
  };
  // The pool and a row of the table have as many pages as the caller gives.
  About<Op> table{.shape = [](const Op& op) -> Extents {
                    return {op.shape.batch, 0};
                  },
                  .content = i32<Op>};
  table.taken = [](const Op& op) { return op.shape.page_tokens > 0; };
  table.refused =
      "is given, and the op was prepared without page_tokens; leave pages out, or prepare with "
      "page_tokens";
  const auto block_table = [](auto& args) -> auto& { return args.pages.block_table; };
  About<Op> raw_table = table;
  raw_table.taken = [](const Op& op) { return op.shape.raw_page_tokens > 0; };
  raw_table.refused =
      "is given, and the op was prepared without raw_page_tokens; leave raw_pages out, or prepare "
      "with raw_page_tokens";
  const auto raw_block_table = [](auto& args) -> auto& { return args.raw_pages.block_table; };
  return std::tuple{
      Tensor{"keys", &C::keys, &D::keys, &Op::keys, &vqgen_pages::keys, &stored_in_cache<Op, kKeys>,
             written},
      Tensor{"values", &C::values, &D::values, &Op::values, &vqgen_pages::values,
             &stored_in_cache<Op, kValues>, written},
      Array{"key_smooth", &C::key_smooth, &D::key_smooth, None{},
            of_channels(channel_extents<Op, kKeys>, [](const Op& op) { return op.keys.smooth; })},
      Array{"key_mean", &C::key_mean, &D::key_mean, None{},
            of_channels(channel_extents<Op, kKeys>, [](const Op& op) { return op.keys.center; })},
      Array{"key_rotation", &C::key_rotation, &D::key_rotation, None{},
            of_pairs(pair_extents<Op, kKeys>, [](const Op& op) { return op.keys.klt; })},
      Array{
          "value_mean", &C::value_mean, &D::value_mean, None{},
          of_channels(channel_extents<Op, kValues>, [](const Op& op) { return op.values.center; })},
      Array{"value_rotation", &C::value_rotation, &D::value_rotation, None{},
            of_pairs(pair_extents<Op, kValues>, [](const Op& op) { return op.values.klt; })},
      Array{"block_table", block_table, None{}, None{}, table},
      Array{"raw_keys", &C::raw_keys, &D::raw_keys, None{}, raw_keys},
      Array{"raw_values", &C::raw_values, &D::raw_values, None{}, raw_values},
      Array{"raw_block_table", raw_block_table, None{}, None{}, raw_table}};
}

// Lengths, windows and sinks, for ops that read a cache.
template <class Op, class C, class D>
constexpr auto count_arguments() {
  return std::tuple{
      Array{"lengths", &C::lengths, &D::lengths, &AttentionData::lengths,
            About<Op>{.shape = one_a_sequence<Op>, .content = i32<Op>}},
      Array{"recent_counts", &C::recent_counts, &D::recent_counts, &AttentionData::recent_counts,
            About<Op>{.shape = one_a_sequence<Op>,
                      .content = i32<Op>,
                      .taken = [](const Op& op) { return op.shape.recent_tokens > 0; }}},
      Array{"sinks", &C::sinks, &D::sinks, &AttentionData::sinks,
            About<Op>{.shape = one_a_sequence<Op>, .content = i32<Op>, .taken = [](const Op& op) {
                        return op.shape.sinks > 0;
                      }}}};
}

// A tensor in all its places.
template <class Args>
struct Places {
  using Code = std::remove_pointer_t<decltype(Args::codes)>;
  std::vector<Code*> codes;
  std::vector<const std::uint16_t*> codebooks;
  std::vector<const float*> scales;
  std::int64_t head_stride;
  std::int64_t batch_stride;
  std::int64_t begin = 0;  // of the codes' storage
  std::int64_t token_stride = 0;
  const std::int32_t* pages = nullptr;
  std::int64_t page_columns = 0;

  Args operator()(int call, int books) const {
    return {at(codes, call) + begin,
            at(codebooks, books),
            at(scales, books),
            batch_stride,
            head_stride,
            token_stride,
            pages,
            page_columns};
  }
};

// Uploads all but its codes.
template <class Args>
Places<Args> places_of(const QuantizedTensor& tensor, const Upload& to) {
  return {{},
          to.device.inputs(tensor.codebooks, to.rotation.codebooks, to.misalignment.entries),
          to.device.inputs(tensor.stage_scales, to.rotation.codebooks, to.misalignment.words),
          tensor.head_words(),
          tensor.heads * tensor.head_words()};
}

// Keys, values and raw rows of a cache in all their places.
template <class Args>
struct CachePlaces {
  using Raw = std::remove_pointer_t<decltype(Args::raw_keys)>;
  Places<decltype(Args::keys)> keys;
  Places<decltype(Args::values)> values;
  std::vector<const float*> smooth;
  std::vector<const float*> key_mean, key_rotation, value_mean, value_rotation;
  std::vector<Raw*> raw_keys, raw_values;

  void set(Args& args, int call, int books) const {
    args.keys = keys(call, books);
    args.values = values(call, books);
    args.key_smooth = at(smooth, books);
    args.key_mean = at(key_mean, books);
    args.key_rotation = at(key_rotation, books);
    args.value_mean = at(value_mean, books);
    args.value_rotation = at(value_rotation, books);
    args.raw_keys = at(raw_keys, call);
    args.raw_values = at(raw_values, call);
  }
};

// Uploads a cache, contiguous or in the upload's pool of pages, with the strides of its raw rows.
// If its codes are written it is a state (device_data.h), in the order keys, values, raw rows.
template <class Args, class Op, class Data>
CachePlaces<Args> place_cache(Args& args, const Op& op, const Data& data, const Upload& to) {
  CachePlaces<Args> cache{};
  cache.keys = places_of<decltype(Args::keys)>(data.keys, to);
  cache.values = places_of<decltype(Args::values)>(data.values, to);
  const auto places = [&](const auto& values, std::size_t slack) {
    if constexpr (std::is_const_v<typename CachePlaces<Args>::Raw>) {
      return to.device.inputs(values, to.rotation.codes, slack);
    } else {
      return to.device.states(values, to.rotation.codes, slack);
    }
  };
  const PagePool& pool = to.pools.codes;
  const bool paged = pool.page_tokens > 0;
  cache.keys.codes = places(paged ? pool.keys : data.keys.codes, to.misalignment.codes);
  cache.values.codes = places(paged ? pool.values : data.values.codes, to.misalignment.codes);
  if (paged) {
    if (pool.one_tensor()) cache.values.codes = cache.keys.codes;
    const std::int32_t* const table = to.device.input(pool.table, to.misalignment.words);
    const auto put = [&](auto& tensor, const PageStrides& strides) {
      tensor.begin = strides.begin;
      tensor.batch_stride = strides.page;
      tensor.head_stride = strides.head;
      tensor.token_stride = strides.token;
      tensor.pages = table;
      tensor.page_columns = pool.columns;
    };
    put(cache.keys, pool.key_strides);
    put(cache.values, pool.value_strides);
  }
  const auto factors = [&](const std::vector<float>& values, std::size_t slack) {
    return to.device.inputs(values, to.rotation.codebooks, slack);
  };
  cache.smooth = factors(data.keys.smooth, to.misalignment.words);
  cache.key_mean = factors(data.keys.mean, to.misalignment.words);
  cache.key_rotation = factors(data.keys.rotation, to.misalignment.entries);
  cache.value_mean = factors(data.values.mean, to.misalignment.words);
  cache.value_rotation = factors(data.values.rotation, to.misalignment.entries);
  const RawPool& raw = to.pools.raw;
  const bool raw_paged = raw.paged();
  cache.raw_keys = places(raw_paged ? raw.keys : data.raw_keys, to.misalignment.rows);
  cache.raw_values = places(raw_paged ? raw.values : data.raw_values, to.misalignment.rows);
  if (!raw_paged) {
    args.raw_head_stride = op.raw_slots() * op.shape.head_dim;
    args.raw_batch_stride = op.shape.kv_heads * args.raw_head_stride;
    args.raw_value_head_stride = op.raw_slots() * op.shape.value_dim();
    args.raw_value_batch_stride = op.shape.kv_heads * args.raw_value_head_stride;
    return cache;
  }
  // In one tensor values begin behind the first key or behind the page's keys.
  const PageStrides& strides = raw.pages.key_strides;
  const PageStrides& of_values = raw.pages.value_strides;
  if (raw.pages.one_tensor()) {
    cache.raw_values = cache.raw_keys;
    for (auto& values : cache.raw_values) values += 2 * of_values.begin;
  }
  args.raw_batch_stride = 2 * strides.page;
  args.raw_head_stride = 2 * strides.head;
  args.raw_token_stride = 2 * strides.token;
  args.raw_value_batch_stride = 2 * of_values.page;
  args.raw_value_head_stride = 2 * of_values.head;
  args.raw_value_token_stride = 2 * of_values.token;
  args.raw_table = to.device.input(raw.pages.table, to.misalignment.words);
  args.raw_table_columns = raw.pages.columns;
  return cache;
}

// The pools of a cache that is read.
template <class Op>
Pools pools_of(const Op& op, const AttentionData& data) {
  Pools pools;
  if (op.shape.page_tokens > 0) {
    pools.codes = make_pool(data.keys, data.values, data.lengths, op.shape.page_tokens, true,
                            Random(data.paging_seed), data.page_order);
  }
  if (op.shape.raw_page_tokens > 0) {
    std::vector<std::int32_t> firsts;  // tokens before them are in no window
    for (const std::int32_t length : data.lengths)
      firsts.push_back(length - data.max_recent_tokens);
    pools.raw = make_raw_pool(data.keys, data.values, data.raw_keys, data.raw_values, data.lengths,
                              op.shape.raw_page_tokens, Random(data.paging_seed + 1), firsts);
  }
  return pools;
}

// A call reads the rows of the sequences' lengths.
LayerBytes layer_bytes_of(const AttentionData& data);

// The size steps of an op whose size is the tokens that it reads.
inline constexpr SizeSteps kTokenSteps{1024, 4};  // below it, a kernel per size gains nothing

}  // namespace vqgen
