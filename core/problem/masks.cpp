// Which masks of attention go together.
#include <fmt/format.h>

#include "core/problem/problem.h"

namespace vqgen {
namespace {

// The window of a tree reaches past its drafts, so that it hides none; a chunk could begin among
// them.
std::optional<FormatFault> tree_fault(const AttentionShape& shape) {
  if (shape.query_tokens == 1) {
    return FormatFault{"tree_mask",
                       "is of several query tokens, and query_tokens is 1; set the most drafts of "
                       "a sequence, 2 to 64"};
  }
  if (shape.batch_invariant) {
    return FormatFault{"batch_invariant",
                       "goes without tree_mask: a draft's sums depend on its place in the tree; "
                       "remove one of the two"};
  }
  if (shape.attention_chunk > 0) {
    return FormatFault{"attention_chunk",
                       "goes without tree_mask, as a chunk may begin among the drafts; remove one "
                       "of the two"};
  }
  if (shape.sliding_window > 0 && shape.sliding_window < shape.query_tokens) {
    return FormatFault{"sliding_window",
                       fmt::format("{} would hide drafts of a tree from each other; lower "
                                   "query_tokens {} to it",
                                   shape.sliding_window, shape.query_tokens)};
  }
  return {};
}

}  // namespace

std::optional<FormatFault> mask_fault(const AttentionShape& shape) {
  if (shape.sliding_window > 0 && shape.attention_chunk > 0) {
    return FormatFault{"attention_chunk",
                       "goes without sliding_window; a layer has one of the two, so remove the "
                       "other"};
  }
  if (shape.tree_mask) return tree_fault(shape);
  if (shape.query_tokens > kMostQueryTokens) {
    return FormatFault{"query_tokens",
                       fmt::format("{} are more than the {} that may follow each other; lower it, "
                                   "or set tree_mask to true, an argument of 64 bits per token",
                                   shape.query_tokens, kMostQueryTokens)};
  }
  return {};
}

}  // namespace vqgen
