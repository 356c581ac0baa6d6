#include "runtime/library/host_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "core/ceil_div.h"
#include "runtime/library/last_error.h"

namespace vqgen::library {
namespace {

// visit(column, page) for the pages of tokens [first, end) of a sequence, until one is wrong.
template <class Visit>
vqgen_status each_page(const vqgen_pages& pages, std::int64_t page_tokens, std::int64_t sequence,
                       std::int64_t first, std::int64_t end, Visit&& visit) {
  if (first >= end) return VQGEN_OK;
  for (std::int64_t i = first / page_tokens; i < ceil_div(end, page_tokens); ++i) {
    const std::int32_t page = pages.block_table[sequence * pages.columns + i];
    if (page < 0 || page >= pages.count) {
      return fail(VQGEN_BAD_INPUT,
                  fmt::format("block_table[{}][{}] is {}, and the pool has pages 0 to {}; give the "
                              "page of tokens {} to {} of the sequence",
                              sequence, i, page, pages.count - 1, i * page_tokens,
                              (i + 1) * page_tokens - 1)
                      .c_str());
    }
    if (const vqgen_status status = visit(i, page); status != VQGEN_OK) return status;
  }
  return VQGEN_OK;
}

template <class Shape, class Args>
vqgen_status judge_read(const Shape& shape, const Args& args) {
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const std::int64_t end = std::min<std::int64_t>(args.lengths[b], args.tokens);
    const vqgen_status status = each_page(args.pages, shape.page_tokens, b, 0, end,
                                          [](std::int64_t, std::int32_t) { return VQGEN_OK; });
    if (status != VQGEN_OK) return status;
  }
  return VQGEN_OK;
}

}  // namespace

vqgen_status judge_tables(const AttentionShape& shape, const vqgen_attention_args& args) {
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    if (args.lengths[b] <= args.tokens) continue;
    return fail(VQGEN_BAD_INPUT, fmt::format("lengths[{}] is {}, and `tokens` is {}; give the most "
                                             "that a query token sees",
                                             b, args.lengths[b], args.tokens)
                                     .c_str());
  }
  return judge_read(shape, args);
}

vqgen_status judge_tables(const DecodeShape& shape, const vqgen_kv_decode_args& args) {
  return judge_read(shape, args);
}

vqgen_status judge_tables(const AppendShape& shape, const vqgen_append_args& args) {
  std::unordered_map<std::int32_t, std::int64_t> writers;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const std::int64_t position = args.positions[b];
    const std::int64_t count = args.counts == nullptr
                                   ? shape.new_tokens
                                   : std::clamp<std::int64_t>(args.counts[b], 0, shape.new_tokens);
    if (position < 0) continue;
    const vqgen_status status = each_page(
        args.pages, shape.page_tokens, b, position, std::min(position + count, args.tokens),
        [&](std::int64_t column, std::int32_t page) {
          const auto [writer, first] = writers.emplace(page, b);
          if (first || writer->second == b) return VQGEN_OK;
          return fail(VQGEN_BAD_INPUT,
                      fmt::format("page {} is appended to by sequences {} and {} "
                                  "(block_table[{}][{}]); give each a page of its own",
                                  page, writer->second, b, b, column)
                          .c_str());
        });
    if (status != VQGEN_OK) return status;
  }
  return VQGEN_OK;
}

}  // namespace vqgen::library
