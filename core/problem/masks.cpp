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

// A shared prefix is of codes that all query tokens see, and its result is merged with that over
// each sequence's own tokens, which has what belongs to a sequence.
std::optional<FormatFault> prefix_fault(const AttentionShape& shape) {
  if (shape.query_tokens == 1) {
    return FormatFault{"shared_prefix",
                       "is of several query tokens, and query_tokens is 1; set the most that "
                       "sequences with one prefix have together, 2 to 64"};
  }
  if (shape.tree_mask) {
    return FormatFault{"tree_mask",
                       "goes without shared_prefix, whose query tokens see all of it; set it for "
                       "the sequences' own tokens alone"};
  }
  if (shape.sliding_window > 0 || shape.attention_chunk > 0) {
    return FormatFault{shape.sliding_window > 0 ? "sliding_window" : "attention_chunk",
                       "goes without shared_prefix: query tokens of several sequences would see "
                       "other parts of the prefix; attend without one in such layers"};
  }
  if (shape.sink_logits) {
    return FormatFault{"sink_logits",
                       "go without shared_prefix, as they would count twice once results are "
                       "merged; set them for the sequences' own tokens alone"};
  }
  if (shape.batch_invariant) {
    return FormatFault{"batch_invariant",
                       "goes without shared_prefix, which depends on who shares it; remove one of "
                       "the two"};
  }
  const bool window = shape.recent_tokens > 0 || shape.flush_block > 1;
  if (window || shape.sinks > 0) {
    return FormatFault{window ? "recent_tokens" : "sinks",
                       fmt::format("{} goes without shared_prefix, which is read from codes: "
                                   "full-precision rows belong to one sequence; set it to 0{}",
                                   window ? shape.recent_tokens : shape.sinks,
                                   shape.flush_block > 1 ? ", and flush_block to 1" : "")};
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
  if (shape.shared_prefix) return prefix_fault(shape);
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
