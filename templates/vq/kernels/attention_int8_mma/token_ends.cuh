// Where the codes, and the tokens, of each query token of a block end, in int8_mma attention, and
// with a tree of drafts where they begin, and which of them it sees: the block keeps them in shared
// memory, and a lane has those of its heads in registers.
#pragma once

#include <vq/args/attention_decode.h>
#include <vq/kernels/attention_int8_mma/plan.h>
#include <vq/lanes/fragment_lanes.cuh>
#include <vq/ops/attention_work.cuh>

namespace vq {

template <class Plan>
class TokenEnds {
 public:
  static constexpr auto kConfig = Plan::config();
  static constexpr int kTokens = block_tokens(kConfig);
  static constexpr bool kTree = kConfig.tree_mask;
  static constexpr bool kSeveral = masks_tokens(kConfig);
  static constexpr int kWords = kTree ? 5 : 2;  // per query token
  static constexpr int kQuads = quad_heads(kConfig) / 4;

  // Keeps those of `work`. A barrier must follow. All threads.
  VQ_DEVICE static void keep(const AttentionWork<Plan>& work) {
    const int number = thread_index();
    if (number >= kTokens) return;
    int* const to = kept() + kWords * number;
    store_shared(to, work.codes_end(number));
    store_shared(to + 1, work.seen_end(number));
    if constexpr (kTree) {
      const u64 path = work.path(number);
      store_shared(to + 2, work.seen_begin(number));
      store_shared(to + 3, static_cast<int>(static_cast<u32>(path)));
      store_shared(to + 4, static_cast<int>(static_cast<u32>(path >> 32)));
      if (number == 0) store_shared(kept() + kWords * kTokens, work.least_codes_end());
    }
  }
  VQ_DEVICE void load() {
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      const int own = (quad * 4 + place_in_group()) / group(kConfig);
      const int number = own < kTokens ? own : kTokens - 1;  // lanes without a head
      const int* const from = kept() + kWords * number;
      codes_[quad] = load_shared(from);
      seen_[quad] = load_shared(from + 1);
      if constexpr (kTree) {
        begin_[quad] = load_shared(from + 2);
        const u64 high = static_cast<u32>(load_shared(from + 4));
        paths_[quad] = high << 32 | static_cast<u32>(load_shared(from + 3));
      }
    }
  }
  // The end of the codes that head c of a quad reads, in lane (g, c), and of the tokens it sees.
  VQ_DEVICE int codes(int quad) const { return codes_[quad]; }
  VQ_DEVICE int seen(int quad) const { return seen_[quad]; }
  // The first token that it sees.
  VQ_DEVICE int begin(int quad) const {
    if constexpr (kTree) return begin_[quad];
    return first_seen<Plan>(seen_[quad]);
  }
  // True unless it is a draft that the head's query token does not see, of those from `cached` on.
  VQ_DEVICE bool is_on_path(int quad, int token, int cached) const {
    if constexpr (!kTree) return true;
    return AttentionWork<Plan>::is_on(paths_[quad], token - cached);
  }
  // The end of the codes that all heads of the block read.
  VQ_DEVICE static int least_codes() {
    return load_shared(kept() + (kTree ? kWords * kTokens : 0));
  }

 private:
  VQ_DEVICE static int* kept() { return shared_part<int>(bytes_layout(kConfig).token_ends); }

  int codes_[kSeveral ? kQuads : 1], seen_[kSeveral ? kQuads : 1];
  int begin_[kTree ? kQuads : 1];
  u64 paths_[kTree ? kQuads : 1];
};

}  // namespace vq
