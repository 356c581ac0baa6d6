// The pool of pages that a cache of contiguous rows becomes on a device, as an engine has it: pages
// in any order, some of them nobody's, some shared, in one of the orders that engines use.
#pragma once

#include <cstdint>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "runtime/verify/random.h"

namespace vqgen {

// Strides of one tensor in 32-bit words; of groups of rows (core/format) a token's is a group's
// divided by its rows.
struct PageStrides {
  std::int64_t begin = 0;  // of the first row, in the tensor's storage
  std::int64_t page = 0, head = 0, token = 0;
};

struct PagePool {
  PageOrder order = PageOrder::hnd;
  int page_tokens = 0;
  std::int64_t pages = 0;             // of the pool
  std::int64_t columns = 0;           // of a row of the table
  std::vector<std::int32_t> table;    // [batch][columns]; what is no page is no number of one
  std::vector<std::uint32_t> keys;    // storage; of the last two orders that of both
  std::vector<std::uint32_t> values;  // empty there
  PageStrides key_strides, value_strides;

  bool one_tensor() const { return order == PageOrder::joint || order == PageOrder::side_by_side; }
};

// The pages of the tensors' sequences, of lengths[b] tokens each. Places are drawn, and `order` where
// it is not given; pages of neighbours that are equal are one, half of the time, where `shared`. What
// is no sequence's is random. Groups of rows do not stand side by side: then the order is joint.
PagePool make_pool(const QuantizedTensor& keys, const QuantizedTensor& values,
                   const std::vector<std::int32_t>& lengths, int page_tokens, bool shared,
                   Random random, std::optional<PageOrder> order = {});

// Takes the rows of each sequence's pages out of storages that began as the pool's: to `key_codes`
// and `value_codes`, laid out as the tensors', whose other rows are the tensors' own. `values` is
// not read where the pool is one tensor. False where words that are no row's of these have changed.
bool take_rows(const PagePool& pool, const QuantizedTensor& keys, const QuantizedTensor& values,
               const std::vector<std::int32_t>& lengths, std::vector<std::uint32_t> key_storage,
               std::vector<std::uint32_t> value_storage, std::vector<std::uint32_t>& key_codes,
               std::vector<std::uint32_t>& value_codes);

}  // namespace vqgen
