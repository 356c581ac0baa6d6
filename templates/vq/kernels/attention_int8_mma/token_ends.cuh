// Where the codes, and the tokens, of each query token of a block end, in int8_mma attention: the
// block keeps them in shared memory, and a lane has those of its heads in registers.
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
  static constexpr bool kSeveral = kTokens > 1;
  static constexpr int kQuads = quad_heads(kConfig) / 4;

  // Keeps those of `work`. A barrier must follow. All threads.
  VQ_DEVICE static void keep(const AttentionWork<Plan>& work) {
    const int number = thread_index();
    if (number >= kTokens) return;
    store_shared(kept() + 2 * number, work.codes_end(number));
    store_shared(kept() + 2 * number + 1, work.seen_end(number));
  }
  VQ_DEVICE void load() {
    VQ_UNROLL
    for (int quad = 0; quad < kQuads; ++quad) {
      const int own = (quad * 4 + place_in_group()) / group(kConfig);
      const int number = own < kTokens ? own : kTokens - 1;  // lanes without a head
      codes_[quad] = load_shared(kept() + 2 * number);
      seen_[quad] = load_shared(kept() + 2 * number + 1);
    }
  }
  // The end of the codes that head c of a quad reads, in lane (g, c), and of the tokens it sees.
  VQ_DEVICE int codes(int quad) const { return codes_[quad]; }
  VQ_DEVICE int seen(int quad) const { return seen_[quad]; }
  // The first token that it sees.
  VQ_DEVICE int begin(int quad) const { return first_seen<Plan>(seen_[quad]); }
  // The end of the codes that all heads of the block read.
  VQ_DEVICE static int least_codes() { return load_shared(kept()); }

 private:
  VQ_DEVICE static int* kept() { return shared_part<int>(bytes_layout(kConfig).token_ends); }

  int codes_[kSeveral ? kQuads : 1], seen_[kSeveral ? kQuads : 1];
};

}  // namespace vq
