#include "runtime/library/host_integers.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "core/ceil_div.h"
#include "runtime/library/last_error.h"

namespace vqgen::library {
namespace {

template <class... Values>
vqgen_status refuse(fmt::format_string<Values...> text, Values&&... values) {
  return fail(VQGEN_BAD_INPUT, fmt::format(text, std::forward<Values>(values)...).c_str());
}

// Checks that `count` integers of an array, from number `first` on, are in memory that may be read.
template <class Int>
vqgen_status judge_array(const Backend& backend, const char* name, const Int* array,
                         std::int64_t first, std::int64_t count) {
  constexpr std::int64_t kBytes = sizeof(Int);
  const std::uintptr_t begin =
      reinterpret_cast<std::uintptr_t>(array) + static_cast<std::uintptr_t>(kBytes * first);
  const auto why = backend.out_of_reach(reinterpret_cast<const void*>(begin),
                                        static_cast<std::size_t>(kBytes * count));
  if (!why) return VQGEN_OK;
  return refuse(
      "{}[{}] to [{}] are {}; give all of it as memory of vqgen_alloc() or "
      "vqgen_register_host_memory()",
      name, first, first + count - 1, *why);
}

// The arrays of counts of a cache that is read.
template <class Shape, class Args>
vqgen_status judge_counts(const Backend& backend, const Shape& shape, const Args& args) {
  auto status = judge_array(backend, "lengths", args.lengths, 0, shape.batch);
  if (status == VQGEN_OK && shape.recent_tokens > 0) {
    status = judge_array(backend, "recent_counts", args.recent_counts, 0, shape.batch);
  }
  if (status == VQGEN_OK && shape.sinks > 0) {
    status = judge_array(backend, "sinks", args.sinks, 0, shape.batch);
  }
  return status;
}

// visit(column, page) for the pages of tokens [first, end) of a sequence, until one is wrong.
template <class Visit>
vqgen_status each_page(const Backend& backend, const char* name, const auto& pages,
                       std::int64_t page_tokens, std::int64_t sequence, std::int64_t first,
                       std::int64_t end, Visit&& visit) {
  if (first >= end) return VQGEN_OK;
  const std::int64_t begin = first / page_tokens;
  if (const auto status =
          judge_array(backend, name, pages.block_table, sequence * pages.columns + begin,
                      ceil_div(end, page_tokens) - begin)) {
    return status;
  }
  for (std::int64_t i = begin; i < ceil_div(end, page_tokens); ++i) {
    const std::int32_t page = pages.block_table[sequence * pages.columns + i];
    if (page < 0 || page >= pages.count) {
      return refuse(
          "{}[{}][{}] is {}, and the pool has pages 0 to {}; give the page of tokens {} to {} of "
          "the sequence",
          name, sequence, i, page, pages.count - 1, i * page_tokens, (i + 1) * page_tokens - 1);
    }
    if (const vqgen_status status = visit(i, page); status != VQGEN_OK) return status;
  }
  return VQGEN_OK;
}

// The pages of the tokens of sequence b that a call reads, the last `queries` of which ask.
template <class Shape, class Args>
vqgen_status judge_pages(const Backend& backend, const Shape& shape, const Args& args,
                         std::int64_t b, int queries) {
  const std::int64_t end = std::min<std::int64_t>(args.lengths[b], args.tokens);
  const auto any = [](std::int64_t, std::int32_t) { return VQGEN_OK; };
  if (shape.page_tokens > 0) {
    const auto status =
        each_page(backend, "block_table", args.pages, shape.page_tokens, b, 0, end, any);
    if (status != VQGEN_OK) return status;
  }
  if (shape.raw_page_tokens == 0) return VQGEN_OK;
  const std::int64_t first =
      std::max<std::int64_t>(args.lengths[b] - args.recent_counts[b] - (queries - 1), 0);
  return each_page(backend, "raw_block_table", args.raw_pages, shape.raw_page_tokens, b, first, end,
                   any);
}

// The raw slots of sequence b that a call reads. The first of `queries` tokens in the cache reads
// further back in the window than the last.
template <class Shape, class Args>
vqgen_status judge_raw(const Shape& shape, const Args& args, std::int64_t b, int queries) {
  if (args.lengths[b] < 0) {
    return refuse("lengths[{}] is {}; a sequence that rests has 0", b, args.lengths[b]);
  }
  if (args.lengths[b] == 0) return VQGEN_OK;
  const int most = std::max(most_raw(shape) - std::max(queries - 1, 0), 0);
  if (shape.recent_tokens > 0 && args.recent_counts[b] < 0) {
    return refuse("recent_counts[{}] is {}; a sequence without a window has 0", b,
                  args.recent_counts[b]);
  }
  if (shape.sinks > 0 && args.sinks[b] < 0) {
    return refuse("sinks[{}] is {}; a sequence without sinks has 0", b, args.sinks[b]);
  }
  if (shape.recent_tokens > 0 && args.recent_counts[b] > most) {
    return refuse(
        "recent_counts[{}] is {}, and a window of {} in the config{} serves {} with at most {}; "
        "lower "
        "it, or prepare with a larger window",
        b, args.recent_counts[b], shape.recent_tokens,
        shape.flush_block > 1 ? fmt::format(", which tokens leave {} at a time,", shape.flush_block)
                              : "",
        queries > 1 ? fmt::format("{} query tokens", queries) : "a sequence", most);
  }
  if (shape.sinks > 0 && args.sinks[b] > shape.sinks) {
    return refuse("sinks[{}] is {}, and the config has {}; lower it, or prepare with more", b,
                  args.sinks[b], shape.sinks);
  }
  return VQGEN_OK;
}

// The masks of the drafts of sequence b, whose first is in row `first`.
vqgen_status judge_tree(const Backend& backend, const vqgen_attention_args& args, std::int64_t b,
                        std::int64_t first, std::int64_t drafts) {
  if (drafts == 0) return VQGEN_OK;
  if (const auto status = judge_array(backend, "tree_mask", args.tree_mask, first, drafts)) {
    return status;
  }
  for (std::int64_t i = 0; i < drafts; ++i) {
    const auto mask = static_cast<std::uint64_t>(args.tree_mask[first + i]);
    const std::uint64_t own = std::uint64_t{1} << i;
    if ((mask & own) == 0) {
      return refuse(
          "tree_mask[{}] is {:#x}, and bit {} is not set, of draft {} of sequence {} itself; set "
          "the bits of a draft and of its ancestors",
          first + i, mask, i, i, b);
    }
    if (mask / 2 >= own) {
      return refuse(
          "tree_mask[{}] is {:#x}, with bits behind bit {}, of draft {} of sequence {} itself; put "
          "ancestors first, and set their bits alone",
          first + i, mask, i, i, b);
    }
  }
  return VQGEN_OK;
}

}  // namespace

vqgen_status judge_integers(const Backend& backend, const AttentionShape& shape,
                            const vqgen_attention_args& args) {
  if (const auto status = judge_counts(backend, shape, args)) return status;
  if (shape.query_tokens > 1) {
    const std::int64_t starts = shape.batch + 1;
    if (const auto status = judge_array(backend, "query_start", args.query_start, 0, starts)) {
      return status;
    }
  }
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const std::int64_t length = args.lengths[b];
    std::int64_t queries = 1;
    if (shape.query_tokens > 1) {
      const std::int64_t first = args.query_start[b];
      const std::int64_t behind = args.query_start[b + 1];
      if (first < 0 || behind < first) {
        return refuse(
            "query_start[{}] and [{}] are {} and {}; rows of query tokens begin at 0 or later, and "
            "do not descend",
            b, b + 1, first, behind);
      }
      queries = std::min<std::int64_t>(behind - first, shape.query_tokens);
      if (shape.tree_mask) {
        if (const auto status = judge_tree(backend, args, b, first, queries)) return status;
      }
    }
    const bool fresh = args.new_keys != nullptr && queries > 0;
    const std::int64_t seen = length + (fresh ? queries : 0);
    if (seen > args.tokens) {
      return refuse(
          "lengths[{}] is {}{}, and `tokens` is {}; give the most that a query token sees", b,
          length, fresh ? fmt::format(", {} with its new_keys", seen) : "", args.tokens);
    }
    const int cached = fresh ? 1 : static_cast<int>(std::max<std::int64_t>(queries, 1));
    if (const auto status = judge_raw(shape, args, b, cached)) return status;
    if (const auto status = judge_pages(backend, shape, args, b, cached)) return status;
  }
  return VQGEN_OK;
}

vqgen_status judge_integers(const Backend& backend, const DequantizeShape& shape,
                            const vqgen_kv_dequantize_args& args) {
  if (const auto status = judge_counts(backend, shape, args)) return status;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    if (const auto status = judge_raw(shape, args, b, 1)) return status;
    if (const auto status = judge_pages(backend, shape, args, b, 1)) return status;
  }
  return VQGEN_OK;
}

vqgen_status judge_integers(const Backend& backend, const AppendShape& shape,
                            const vqgen_append_args& args) {
  if (const auto status = judge_array(backend, "positions", args.positions, 0, shape.batch)) {
    return status;
  }
  if (args.counts != nullptr) {
    if (const auto status = judge_array(backend, "counts", args.counts, 0, shape.batch)) {
      return status;
    }
  }
  struct Writer {
    std::int64_t sequence, column;
  };
  std::unordered_map<std::int32_t, Writer> writers, raw_writers;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const std::int64_t position = args.positions[b];
    const std::int64_t count = args.counts == nullptr
                                   ? shape.new_tokens
                                   : std::clamp<std::int64_t>(args.counts[b], 0, shape.new_tokens);
    if (position < 0) continue;
    const auto judge = [&](const char* name, const auto& pages, std::int64_t page_tokens,
                           auto& others, std::int64_t from, std::int64_t to) {
      // Entries before the call's tokens, but for raw pages, which only the window's have.
      const std::int64_t known = &others == &raw_writers ? from / page_tokens : 0;
      return each_page(backend, name, pages, page_tokens, b, from, to,
                       [&](std::int64_t column, std::int32_t page) {
                         const auto [writer, first] = others.emplace(page, Writer{b, column});
                         if (!first && writer->second.sequence != b) {
                           return refuse(
                               "page {} is appended to by sequences {} and {} ({}[{}][{}]); give "
                               "each a page of its "
                               "own",
                               page, writer->second.sequence, b, name, b, column);
                         }
                         const std::int32_t* const table = pages.block_table + b * pages.columns;
                         const std::int32_t* const before =
                             std::find(table + known, table + column, page);
                         if (before == table + column) return VQGEN_OK;
                         return refuse(
                             "page {} is appended to as {}[{}][{}], and is {}[{}][{}] too; give "
                             "each {} tokens a "
                             "page of their own",
                             page, name, b, column, name, b, before - table, page_tokens);
                       });
    };
    const std::int64_t end = std::min(position + count, args.tokens);
    if (shape.page_tokens > 0) {  // the call writes the codes of the flush blocks that it fills
      const auto status =
          judge("block_table", args.pages, shape.page_tokens, writers,
                position - position % shape.flush_block, end - end % shape.flush_block);
      if (status != VQGEN_OK) return status;
    }
    if (shape.raw_page_tokens > 0) {
      const auto status = judge("raw_block_table", args.raw_pages, shape.raw_page_tokens,
                                raw_writers, position, end);
      if (status != VQGEN_OK) return status;
    }
  }
  return VQGEN_OK;
}

vqgen_status judge_integers(const Backend& backend, const LinearShape& shape,
                            const vqgen_linear_args& args) {
  if (!shape.grouped() || args.m == 0) return VQGEN_OK;
  if (const auto status =
          judge_array(backend, "expert_rows", args.expert_rows, 0, shape.experts + 1)) {
    return status;
  }
  for (int e = 0; e < shape.experts; ++e) {
    const std::int64_t first = args.expert_rows[e];
    const std::int64_t last = args.expert_rows[e + 1];
    if (first < 0 || last < first || last > args.m) {
      return refuse(
          "expert_rows[{}] and [{}] are {} and {}, and `rows` is {}; offsets do not descend, and "
          "lie within 0..m",
          e, e + 1, first, last, args.m);
    }
    if (last - first > shape.rows) {
      return refuse(
          "expert {} has {} rows (expert_rows[{}] to [{}]), and the config has {}; prepare with "
          "more rows",
          e, last - first, e, e + 1, shape.rows);
    }
  }
  return VQGEN_OK;
}

}  // namespace vqgen::library
