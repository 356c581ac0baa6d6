// Plan: every decision the generator needs and nothing that it can work out. A plain value: part of
// the cache key, a line of a log, the name of a test.
#pragma once

#include <variant>

#include "core/placement.h"

namespace vqgen {

// How a sequence's codes become its output. lanes: each lane decodes sub-vectors of its own, in
// fp32. fragments: decoded entries are the tensor core's operands as they come. tables: inner
// products of the query and all key entries are made first, and looked up for each token. channels:
// blocks share the channels of the keys, and partial scores meet in global memory before the
// softmax.
enum class AttentionDataflow { lanes, fragments, tables, channels };
template <>
inline constexpr auto enum_names<AttentionDataflow> =
    std::array{"lanes", "fragments", "tables", "channels"};

// How the sums of splits become one. kernel: a second kernel adds them up. last_block: of the
// blocks that share a result the last to end does, by counters in the workspace; the same bits.
enum class Combine { kernel, last_block };
template <>
inline constexpr auto enum_names<Combine> = std::array{"kernel", "last_block"};

struct AttentionDecodePlan {
  AttentionDataflow dataflow = AttentionDataflow::lanes;
  int threads = 128;
  int tile_tokens = 64;
  int splits = 1;
  Combine combine = Combine::kernel;
  int heads_per_block = 1;
  int lanes_per_token = 8;
  int stages = 2;
  int code_words = 1;
  int table_bits = 32;
  int key_channel_splits = 1;
  int value_channel_splits = 1;
  Placement key_codebook{};
  Placement value_codebook{};

  static constexpr auto fields() {
    using P = AttentionDecodePlan;
    return std::make_tuple(
        field("dataflow", &P::dataflow, Rule{}, "how codes become scores and sums"),
        field("threads", &P::threads, optional_in(32, 1024), "threads a block"),
        field(
            "tile_tokens", &P::tile_tokens, optional_in(1, 1024),
            "tokens scored between barriers; fragments: tokens of one step of a warp, 8, 16 or 32"),
        field("splits", &P::splits, optional_in(1, 1024),
              "blocks that share one sequence's tokens"),
        field("combine", &P::combine, Rule{},
              "what merges the splits: a second kernel, or the last block to end, by counters in "
              "the workspace; not in dataflow channels"),
        field("heads_per_block", &P::heads_per_block, optional_in(1, 4096),
              "query heads of one KV head that a block serves"),
        field("lanes_per_token", &P::lanes_per_token, optional_in(1, 32),
              "threads that share the dot product of one key"),
        field("stages", &P::stages, optional_in(1, 2), "tiles of codes in flight in shared memory"),
        field("code_words", &P::code_words, optional_in(1, 4),
              "fragments: 32-bit words that one load of codes moves where it can, a power of two; "
              "rows of codes are aligned to as much"),
        field("table_bits", &P::table_bits, optional_in(16, 32),
              "tables: bits of an inner product, 32 (fp32) or 16 (f16, which rounds scores)"),
        field("key_channel_splits", &P::key_channel_splits, optional_in(1, 128),
              "channels: blocks that share the channels of a head's keys, each with the codebooks "
              "of its own"),
        field("value_channel_splits", &P::value_channel_splits, optional_in(1, 128),
              "channels: the same of the values"),
        field("key_codebook", &P::key_codebook, Rule{},
              "where the entries of the key codebooks stand"),
        field("value_codebook", &P::value_codebook, Rule{},
              "where the entries of the value codebooks stand"));
  }
  bool operator==(const AttentionDecodePlan&) const = default;
};

// How a product turns codes into sums. lanes: each lane decodes sub-vectors of its own and
// multiplies them with all rows in fp32. fragments: decoded entries are the tensor core's operands
// as they come, since the order of the columns is free. tables: inner products of x and all entries
// are made first, and looked up for each output. warpgroups: as fragments, but four warps multiply
// together and at once with all rows, which they read from shared memory (Hopper). slices: for
// codebooks that no block holds; each holds some elements of all entries, and has what these add.
enum class LinearDataflow { lanes, fragments, tables, warpgroups, slices };
template <>
inline constexpr auto enum_names<LinearDataflow> =
    std::array{"lanes", "fragments", "tables", "warpgroups", "slices"};

// Those whose lanes stream codes of their own in whole words, and read x by octets.
constexpr bool streams_codes(LinearDataflow dataflow) {
  return dataflow == LinearDataflow::fragments || dataflow == LinearDataflow::warpgroups;
}

// Fragments: how entries get from the lanes that look them up to the operands of the tensor core
// (VQ-LLM, section VI-B). permute: they do not move, x is laid out to match. registers: lanes
// exchange words, x keeps its order. shared: through shared memory, likewise.
enum class LinearFusion { permute, registers, shared };
template <>
inline constexpr auto enum_names<LinearFusion> = std::array{"permute", "registers", "shared"};

struct LinearPlan {
  LinearDataflow dataflow = LinearDataflow::lanes;
  int threads = 256;
  int outputs_per_warp = 2;
  int chunk_columns = 1024;
  int splits = 1;
  Combine combine = Combine::kernel;
  int warps_along_columns = 1;
  int rows_per_block = 8;
  int fragment_rows = 8;
  LinearFusion fusion = LinearFusion::permute;
  int code_words = 1;
  int idle_warps = 0;
  int steps_ahead = 0;
  Placement codebook{};

  static constexpr auto fields() {
    using P = LinearPlan;
    return std::make_tuple(
        field("dataflow", &P::dataflow, Rule{}, "how codes become sums"),
        field("threads", &P::threads, optional_in(32, 1024), "threads a block"),
        field("outputs_per_warp", &P::outputs_per_warp, optional_in(1, 4096),
              "output features a warp serves; fragments: a multiple of twice fragment_rows; "
              "warpgroups: of 16; tables: up to 32, or a multiple of 4"),
        field("chunk_columns", &P::chunk_columns, optional_in(1, 1 << 24),
              "columns of x staged between barriers; tables: as many sub-vectors for each lane; "
              "slices: those of a split"),
        field("splits", &P::splits, optional_in(1, 4096),
              "blocks that share the columns of one output; tables: one a chunk; slices: one a "
              "chunk, stage and slice of an entry"),
        field("combine", &P::combine, Rule{},
              "what sums up the splits: a second kernel, or the last block to end, by counters in "
              "the workspace"),
        field("warps_along_columns", &P::warps_along_columns, optional_in(1, 32),
              "fragments: warps of a block that share the columns, a power of two"),
        field("rows_per_block", &P::rows_per_block, optional_in(4, 256),
              "rows of x that a block serves, a multiple of 4; warpgroups: a power of two from 8"),
        field("fragment_rows", &P::fragment_rows, optional_in(4, 8),
              "fragments: rows of x that one product serves, 4 or 8; and twice as many outputs"),
        field("fusion", &P::fusion, Rule{},
              "fragments: how entries become operands of the tensor core; permute lays x out to "
              "match them"),
        field(
            "code_words", &P::code_words, optional_in(1, 4),
            "fragments, warpgroups and slices: 32-bit words that one load of codes moves, a power "
            "of two; codes are aligned to as much"),
        field("idle_warps", &P::idle_warps, optional_in(0, 3),
              "warpgroups: warps of a block that have no outputs, where fewer outputs a block fill "
              "the multiprocessors evenly"),
        field("steps_ahead", &P::steps_ahead, optional_in(0, 1),
              "warpgroups: steps that are looked up before the one ahead of them is multiplied, "
              "for registers"),
        field("codebook", &P::codebook, Rule{}, "where the entries of the codebooks stand"));
  }
  bool operator==(const LinearPlan&) const = default;
};

// How the nearest entries are found. lanes: those of a codebook are spread over the lanes of warps,
// in fp32, and the lanes' nearest meet by shuffles.
enum class AppendDataflow { lanes };
template <>
inline constexpr auto enum_names<AppendDataflow> = std::array{"lanes"};

struct KvAppendPlan {
  AppendDataflow dataflow = AppendDataflow::lanes;
  int threads = 128;
  int splits = 1;
  int tokens_per_block = 1;
  int warps_along_entries = 1;
  int sub_vectors_per_warp = 4;

  static constexpr auto fields() {
    using P = KvAppendPlan;
    return std::make_tuple(
        field("dataflow", &P::dataflow, Rule{}, "how the nearest entries are found"),
        field("threads", &P::threads, optional_in(32, 1024), "threads a block"),
        field("splits", &P::splits, optional_in(1, 128),
              "blocks that share the sub-vectors of a row, at most: each writes whole words"),
        field("tokens_per_block", &P::tokens_per_block, optional_in(1, 64),
              "new tokens of a sequence that a block encodes at once"),
        field("warps_along_entries", &P::warps_along_entries, optional_in(1, 32),
              "warps of a block that share the entries of a codebook, a power of two, at most"),
        field("sub_vectors_per_warp", &P::sub_vectors_per_warp, optional_in(1, 16),
              "sub-vectors of one codebook that are compared with an entry once it is loaded, at "
              "most"));
  }
  bool operator==(const KvAppendPlan&) const = default;
};

using Plan = std::variant<AttentionDecodePlan, LinearPlan, KvAppendPlan>;

}  // namespace vqgen
