// The common part of all dataflows' plans. A plan is a plain struct with the fields of its dataflow
// only. Its visit() declares each field once,
//
//   visit(name, pointer to member, range, what it is)
//
// from which JSON, schema, names, digests and device text follow. A value that a dataflow fixes is
// a static constant of the same name, so that shared code reads both alike. The host, NVRTC and g++
// compile this.
#pragma once

#include <vq/annotations.h>
#include <vq/types.h>

namespace vq {

// The values that a field may have, inclusive; of an enum by number. Range{}: all that an enum or a
// struct has.
struct Range {
  int least = 0;
  int most = 0;
};

// Descriptions of fields that several plans share.
struct Doc {
  static constexpr const char* kThreads = "threads per block";
  static constexpr const char* kTileTokens = "tokens scored between barriers";
  static constexpr const char* kTilesInFlight = "tiles of codes in flight in shared memory";
  static constexpr const char* kTokenSplits = "blocks that share one sequence's tokens";
  static constexpr const char* kScheduledSplits =
      "blocks that share one sequence's tokens; with schedule balanced, tokens of all sequences";
  static constexpr const char* kMergesSplits =
      "what merges the splits: a second kernel, or the last block to end";
  static constexpr const char* kHeadsPerBlock = "query heads of one KV head that a block serves";
  static constexpr const char* kLanesPerToken =
      "threads that share the dot product of one key, a power of two";
  static constexpr const char* kKeyCodebook =
      "the memories that hold the entries of the key codebooks";
  static constexpr const char* kValueCodebook =
      "the memories that hold the entries of the value codebooks";
  static constexpr const char* kOutputsPerWarp = "output features that a warp serves";
  static constexpr const char* kChunkColumns = "columns of x staged between barriers";
  static constexpr const char* kSequencesPerBlock =
      "sequences of which one block encodes the new tokens at once";
  static constexpr const char* kColumnSplits = "blocks that share the columns of one output";
  static constexpr const char* kSumsSplits =
      "what sums up the splits: a second kernel, or the last block to end";
  static constexpr const char* kSumsSplitsOrClusters =
      "what sums up the splits: a second kernel; the last block to end; or the blocks as a "
      "cluster, of 2 to 8, in shared memory";
  static constexpr const char* kSumsBlocks =
      "what sums up the blocks of an output: a second kernel, or the last block to end";
  static constexpr const char* kSchedule =
      "per_sequence: each sequence has equally many blocks; balanced: sequences share all blocks "
      "by their lengths";
  static constexpr const char* kRowsPerBlock = "rows of x that a block serves, a multiple of 4";
  static constexpr const char* kCodeWords =
      "32-bit words that one load of codes moves, a power of two; codes are aligned to as much";
  static constexpr const char* kCodebook = "the memories that hold the entries of the codebooks";
};

// How sums of splits merge, with the same bits. kernel: a second kernel adds them. last_block: the
// last block that shares a result does, found by a counter. cluster: these blocks form a cluster,
// and each adds a part of what all of them hold in shared memory.
enum class Combine : int { kernel, last_block, cluster };
template <>
struct EnumNames<Combine> {
  static constexpr const char* kType = "vq::Combine";
  static constexpr const char* kNames[] = {"kernel", "last_block", "cluster"};
};
// The bound of combine for dataflows whose blocks form no clusters.
inline constexpr Range kNoCluster{0, static_cast<int>(Combine::last_block)};

// How a batch's tokens are shared among blocks. sequence: each sequence has as many blocks. length:
// all sequences share them, each by its length (ops/attention_pieces.cuh).
enum class Schedule : int { per_sequence, balanced };
template <>
struct EnumNames<Schedule> {
  static constexpr const char* kType = "vq::Schedule";
  static constexpr const char* kNames[] = {"per_sequence", "balanced"};
};

// The entries of each codebook at each level, hot entries first (VQ-LLM, section V), alike for all
// units and stages. An entry is at the first level whose boundary is above its number, else in
// global memory: a boundary not above the previous ones makes an empty level.
struct Placement {
  int registers = 0;
  int replicated = 0;
  int copies = 1;
  int shared = 0;

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = Placement;
    visit("registers", &P::registers, Range{0, 64},
          "entries below it are in the registers of every thread");
    visit("replicated", &P::replicated, Range{0, 65536},
          "further entries below it are in shared memory `copies` times, one copy per lane");
    visit("copies", &P::copies, Range{1, 32}, "copies of each replicated entry, a power of two");
    visit("shared", &P::shared, Range{0, 65536},
          "further entries below it are in shared memory once; the rest is in global memory");
  }
};

}  // namespace vq
