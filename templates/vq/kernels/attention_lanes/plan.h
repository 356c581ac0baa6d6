// Plan of attention by lanes: each lane decodes sub-vectors of its own, in fp32.
#pragma once

#include <vq/plan.h>

namespace vq {

struct AttentionLanes {
  int threads = 128;
  int tile_tokens = 64;
  int splits = 1;
  Combine combine = Combine::kernel;
  int heads_per_block = 1;
  int lanes_per_token = 8;
  int tiles_in_flight = 2;
  Placement key_codebook{};
  Placement value_codebook{};

  static constexpr const char* kType = "AttentionLanes";
  static constexpr const char* kName = "attention_lanes";
  static constexpr int key_channel_splits = 1;
  static constexpr int value_channel_splits = 1;

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AttentionLanes;
    visit("threads", &P::threads, Range{32, 1024}, "threads per block");
    visit("tile_tokens", &P::tile_tokens, Range{1, 1024}, "tokens scored between barriers");
    visit("splits", &P::splits, Range{1, 1024}, "blocks that share one sequence's tokens");
    visit("combine", &P::combine, Range{},
          "what merges the splits: a second kernel, or the last block to end, by counters in the "
          "workspace");
    visit("heads_per_block", &P::heads_per_block, Range{1, 4096},
          "query heads of one KV head that a block serves");
    visit("lanes_per_token", &P::lanes_per_token, Range{1, 32},
          "threads that share the dot product of one key, a power of two");
    visit("tiles_in_flight", &P::tiles_in_flight, Range{1, 2},
          "tiles of codes in flight in shared memory");
    visit("key_codebook", &P::key_codebook, Range{},
          "where the entries of the key codebooks stand");
    visit("value_codebook", &P::value_codebook, Range{},
          "where the entries of the value codebooks stand");
  }
};

}  // namespace vq
