// The pool of pages that a cache of contiguous rows becomes on a device, as in a serving engine:
// pages in any order, some unowned, some shared, in one of the orders that engines use.
#pragma once

#include <cstdint>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "runtime/verify/random.h"

namespace vqgen {

// Strides of one tensor in 32-bit words. For groups of rows (core/format), a token's stride is a
// group's divided by its rows.
struct PageStrides {
  std::int64_t begin = 0;  // offset of the first row in the tensor's storage
  std::int64_t page = 0, head = 0, token = 0;
};

struct PagePool {
  PageOrder order = PageOrder::hnd;
  int page_tokens = 0;
  std::int64_t pages = 0;             // pages of the pool
  std::int64_t columns = 0;           // entries per row of the table
  std::vector<std::int32_t> table;    // [batch][columns]; unused entries are not page numbers
  std::vector<std::uint32_t> keys;    // storage; for the last two orders, of both tensors
  std::vector<std::uint32_t> values;  // empty for those two orders
  PageStrides key_strides, value_strides;

  bool one_tensor() const { return order == PageOrder::joint || order == PageOrder::side_by_side; }
};

// Makes pages for the tensors' sequences of lengths[b] tokens, in drawn places; draws `order` if it
// is not given. With `shared`, half of the equal neighbouring pages become one. Unowned words are
// random. If groups of rows are not side by side, the order is joint.
PagePool make_pool(const QuantizedTensor& keys, const QuantizedTensor& values,
                   const std::vector<std::int32_t>& lengths, int page_tokens, bool shared,
                   Random random, std::optional<PageOrder> order = {});

// Copies the rows of each sequence's pages from storages that began as the pool's to `key_codes`
// and `value_codes`, in the tensors' layout; other rows are the tensors' own. A pool of one tensor
// leaves `values` unread. Returns false if words that belong to no row have changed.
bool take_rows(const PagePool& pool, const QuantizedTensor& keys, const QuantizedTensor& values,
               const std::vector<std::int32_t>& lengths, std::vector<std::uint32_t> key_storage,
               std::vector<std::uint32_t> value_storage, std::vector<std::uint32_t>& key_codes,
               std::vector<std::uint32_t>& value_codes);

// Raw rows of keys and values in pages.
struct RawPool {
  PagePool pages;                           // its words are pairs of elements
  std::vector<std::uint16_t> keys, values;  // its storages as elements
  bool paged() const { return pages.page_tokens > 0; }
};

// Makes pages for the raw rows of AttentionData or AppendData, one row for each token, with drawn
// places and order. Pages of tokens before `firsts`, if these are given, are not in the table.
RawPool make_raw_pool(const QuantizedTensor& keys, const QuantizedTensor& values,
                      const std::vector<std::uint16_t>& raw_keys,
                      const std::vector<std::uint16_t>& raw_values,
                      const std::vector<std::int32_t>& lengths, int page_tokens, Random random,
                      const std::vector<std::int32_t>& firsts = {});

// take_rows() of raw rows.
bool take_raw_rows(const RawPool& pool, const QuantizedTensor& keys, const QuantizedTensor& values,
                   const std::vector<std::int32_t>& lengths,
                   const std::vector<std::uint16_t>& key_storage,
                   const std::vector<std::uint16_t>& value_storage,
                   std::vector<std::uint16_t>& raw_keys, std::vector<std::uint16_t>& raw_values);

// The pools of a cache; empty for what is not in pages.
struct Pools {
  PagePool codes;
  RawPool raw;
};

}  // namespace vqgen
