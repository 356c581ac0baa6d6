// Plan: every decision the generator needs and nothing that it can work out. A plain value: part of
// the cache key, a line of a log, the name of a test.
#pragma once

#include <variant>

#include "core/placement.h"

namespace vqgen {

struct AttentionDecodePlan {
  int threads = 128;
  int tile_tokens = 64;
  int splits = 1;
  int heads_per_block = 1;
  int lanes_per_token = 8;
  int stages = 2;
  Placement key_codebook{};
  Placement value_codebook{};

  static constexpr auto fields() {
    using P = AttentionDecodePlan;
    return std::make_tuple(
        field("threads", &P::threads, optional_in(32, 1024), "threads a block"),
        field("tile_tokens", &P::tile_tokens, optional_in(1, 1024),
              "tokens scored between barriers"),
        field("splits", &P::splits, optional_in(1, 1024),
              "blocks that share one sequence's tokens"),
        field("heads_per_block", &P::heads_per_block, optional_in(1, 64),
              "query heads of one KV head that a block serves"),
        field("lanes_per_token", &P::lanes_per_token, optional_in(1, 32),
              "threads that share the dot product of one key"),
        field("stages", &P::stages, optional_in(1, 2), "tiles of codes in flight in shared memory"),
        field("key_codebook", &P::key_codebook, Rule{},
              "where the entries of the key codebooks stand"),
        field("value_codebook", &P::value_codebook, Rule{},
              "where the entries of the value codebooks stand"));
  }
  bool operator==(const AttentionDecodePlan&) const = default;
};

struct GemvPlan {
  int threads = 256;
  int outputs_per_warp = 2;
  int chunk_columns = 1024;
  Placement codebook{};

  static constexpr auto fields() {
    using P = GemvPlan;
    return std::make_tuple(
        field("threads", &P::threads, optional_in(32, 1024), "threads a block"),
        field("outputs_per_warp", &P::outputs_per_warp, optional_in(1, 16),
              "output features a warp serves"),
        field("chunk_columns", &P::chunk_columns, optional_in(1, 1 << 24),
              "columns of x staged between barriers"),
        field("codebook", &P::codebook, Rule{}, "where the entries of the codebooks stand"));
  }
  bool operator==(const GemvPlan&) const = default;
};

using Plan = std::variant<AttentionDecodePlan, GemvPlan>;

}  // namespace vqgen
