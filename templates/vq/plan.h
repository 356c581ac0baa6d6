// What the plans of all dataflows share. A plan is a plain struct with the fields of its dataflow
// and no others. Its visit() declares each field once,
//
//   visit(name, pointer to member, range, what it is)
//
// from which JSON, schema, names, digests and device text follow. What a dataflow fixes is a static
// constant of the same name, so that code which several dataflows share reads it alike. The host,
// NVRTC and g++ compile this.
#pragma once

#include <vq/annotations.h>
#include <vq/types.h>

namespace vq {

// The values that a field may have, inclusive. Enums and structs say that themselves.
struct Range {
  int least = 0;
  int most = 0;
};

// What the fields are that several plans share: one wording for all.
struct Doc {
  static constexpr const char* kThreads = "threads per block";
  static constexpr const char* kTileTokens = "tokens scored between barriers";
  static constexpr const char* kTilesInFlight = "tiles of codes in flight in shared memory";
  static constexpr const char* kTokenSplits = "blocks that share one sequence's tokens";
  static constexpr const char* kMergesSplits =
      "what merges the splits: a second kernel, or the last block to end, by counters in the "
      "workspace";
  static constexpr const char* kHeadsPerBlock = "query heads of one KV head that a block serves";
  static constexpr const char* kLanesPerToken =
      "threads that share the dot product of one key, a power of two";
  static constexpr const char* kKeyCodebook = "where the entries of the key codebooks stand";
  static constexpr const char* kValueCodebook = "where the entries of the value codebooks stand";
  static constexpr const char* kOutputsPerWarp = "output features that a warp serves";
  static constexpr const char* kChunkColumns = "columns of x staged between barriers";
  static constexpr const char* kColumnSplits = "blocks that share the columns of one output";
  static constexpr const char* kSumsSplits =
      "what sums up the splits: a second kernel, or the last block to end, by counters in the "
      "workspace";
  static constexpr const char* kSumsSplitsOrClusters =
      "what sums up the splits: a second kernel; the last block to end, by counters in the "
      "workspace; or the blocks as a cluster, of 2 to 8, in shared memory";
  static constexpr const char* kSumsBlocks =
      "what sums up the blocks of an output: a second kernel, or the last block to end, by "
      "counters in the workspace";
  static constexpr const char* kSchedule =
      "whose tokens blocks share: each sequence has as many blocks, or all sequences share them by "
      "length";
  static constexpr const char* kRowsPerBlock = "rows of x that a block serves, a multiple of 4";
  static constexpr const char* kCodeWords =
      "32-bit words that one load of codes moves, a power of two; codes are aligned to as much";
  static constexpr const char* kCodebook = "where the entries of the codebooks stand";
};

// How the sums of splits become one. kernel: a second kernel adds them up. last_block: the last to
// end of the blocks that share a result does, which it learns from a counter. cluster: these blocks
// form a cluster, and each adds up a part of what all of them hold in shared memory. The same bits.
enum class Combine : int { kernel, last_block, cluster };
template <>
struct EnumNames<Combine> {
  static constexpr const char* kType = "vq::Combine";
  static constexpr const char* kNames[] = {"kernel", "last_block", "cluster"};
};

// Whose tokens the blocks of a batch share. per_sequence: each has as many blocks. balanced: all
// sequences have them together, each by its length (ops/attention_pieces.cuh).
enum class Schedule : int { per_sequence, balanced };
template <>
struct EnumNames<Schedule> {
  static constexpr const char* kType = "vq::Schedule";
  static constexpr const char* kNames[] = {"per_sequence", "balanced"};
};

// Which entries of each codebook stand at which level, hot entries first (VQ-LLM, section V), by
// entry number and for each unit and stage alike. An entry stands at the first level whose boundary
// is above its number; the rest stay in global memory. So a level whose boundary is not above those
// before it is empty, and all zeros leave everything in global memory.
struct Placement {
  int registers = 0;
  int replicated = 0;
  int copies = 1;
  int shared = 0;

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = Placement;
    visit("registers", &P::registers, Range{0, 64},
          "entries below it stand in the registers of every thread");
    visit("replicated", &P::replicated, Range{0, 65536},
          "further entries below it stand in shared memory `copies` times, one copy per lane");
    visit("copies", &P::copies, Range{1, 32}, "copies of each replicated entry, a power of two");
    visit("shared", &P::shared, Range{0, 65536},
          "further entries below it stand in shared memory once; the rest in global memory");
  }
};

}  // namespace vq
