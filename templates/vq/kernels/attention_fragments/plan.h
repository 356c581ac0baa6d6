// Plan of attention by fragments: decoded entries are the tensor core's operands as they come.
#pragma once

#include <vq/plan.h>

namespace vq {

struct AttentionFragments {
  int threads = 128;
  int step_tokens = 16;
  int splits = 1;
  Combine combine = Combine::kernel;
  int heads_per_block = 1;
  int code_words = 1;
  Placement key_codebook{};
  Placement value_codebook{};

  static constexpr const char* kType = "AttentionFragments";
  static constexpr const char* kName = "attention_fragments";
  static constexpr int key_channel_splits = 1;
  static constexpr int value_channel_splits = 1;

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AttentionFragments;
    visit("threads", &P::threads, Range{32, 1024}, Doc::kThreads);
    visit("step_tokens", &P::step_tokens, Range{8, 32},
          "tokens that a warp works on at once: 8, 16 or 32");
    visit("splits", &P::splits, Range{1, 1024}, Doc::kTokenSplits);
    visit("combine", &P::combine, Range{}, Doc::kMergesSplits);
    visit("heads_per_block", &P::heads_per_block, Range{1, 4096}, Doc::kHeadsPerBlock);
    visit("code_words", &P::code_words, Range{1, 4},
          "32-bit words that one load of codes moves where it can, a power of two; rows of codes "
          "are aligned to as much");
    visit("key_codebook", &P::key_codebook, Range{}, Doc::kKeyCodebook);
    visit("value_codebook", &P::value_codebook, Range{}, Doc::kValueCodebook);
  }
};

}  // namespace vq
