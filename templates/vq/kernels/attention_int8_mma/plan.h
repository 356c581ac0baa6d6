// Plan of int8_mma attention: keys and values with int8 entries, all MMAs in integers.
#pragma once

#include <vq/layout/query_words.h>

namespace vq {

struct AttentionInt8Mma {
  int threads = 512;
  int splits = 1;
  Schedule schedule = Schedule::per_sequence;
  Combine combine = Combine::kernel;
  int heads_per_block = 1;
  int pipeline_stages = 4;

  static constexpr const char* kType = "AttentionInt8Mma";
  static constexpr const char* kName = "attention_int8_mma";
  static constexpr int key_channel_splits = 1;
  static constexpr int value_channel_splits = 1;
  // All entries, a copy in each bank of shared memory.
  static constexpr int kEntries = 256;
  static constexpr int kCopies = 32;
  static constexpr Placement key_codebook{0, kEntries, kCopies, 0};
  static constexpr Placement value_codebook{0, kEntries, kCopies, 0};

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = AttentionInt8Mma;
    visit("threads", &P::threads, Range{32, 512}, Doc::kThreads);
    visit("splits", &P::splits, Range{1, 1024}, Doc::kScheduledSplits);
    visit("schedule", &P::schedule, Range{}, Doc::kSchedule);
    visit("combine", &P::combine, kNoCluster, Doc::kMergesSplits);
    visit("heads_per_block", &P::heads_per_block, Range{1, 8}, Doc::kHeadsPerBlock);
    visit("pipeline_stages", &P::pipeline_stages, Range{2, 8},
          "rounds of codes that shared memory has room for; in one each warp has 32 tokens");
  }
};

// Tokens of a warp's step, and of a round of all warps.
inline constexpr int kBytesStep = 32;
VQ_HD constexpr int token_tile(const AttentionConfig<AttentionInt8Mma>&) { return kBytesStep; }
VQ_HD constexpr int turn_tokens(const AttentionConfig<AttentionInt8Mma>& c) { return c.threads; }
VQ_HD constexpr bool balanced(const AttentionConfig<AttentionInt8Mma>& c) {
  return c.schedule == Schedule::balanced;
}

// Tokens that a warp may sum up. Each is rounded to 2^-16 of its warp's largest probability; this
// limit keeps the error of an output below 1e-3 if scores spread by 2.5 (natural log units). Sums
// of bytes fit 32 bits far beyond.
inline constexpr i64 kBytesMostTokens = 12288;
static_assert(kBytesMostTokens * 255 * 127 + (1 << 29) < (i64{1} << 31), "");
// Tokens of a block from which its warps begin below the maximum in common (byte_softmax.cuh).
inline constexpr int kBytesManyTokens = 8192;

// Most tokens per warp of a sequence of `batch` with up to `tokens`, if each split takes whole
// steps.
VQ_HD constexpr i64 warp_tokens(const AttentionConfig<AttentionInt8Mma>& c, i64 batch, i64 tokens) {
  const i64 turn = turn_tokens(c);
  if (balanced(c)) {
    const i64 turns = ceil_div(tokens, turn);
    const i64 share = ceil_div(batch * (kStartTurns + turns), i64{c.splits});
    return (share < turns ? share : turns) * kBytesStep;
  }
  i64 share = ceil_div(ceil_div(tokens, i64{kBytesStep}), i64{c.splits}) * kBytesStep;
  if (c.batch_invariant) share = fixed_split(c, tokens);
  return ceil_div(share, turn) * kBytesStep;
}

// Each block rotates its query, so there should be about one per SM: with one split there may be
// several, and a balanced schedule would rotate once a piece.
VQ_HD constexpr bool brings_into_basis(const AttentionConfig<AttentionInt8Mma>& c) {
  return !c.key_basis.none() && c.query_tokens == 1 && c.splits > 1 && !balanced(c);
}

// Raw tokens are shared out by themselves, in tiles, after codes.
VQ_HD constexpr bool raw_apart(const AttentionConfig<AttentionInt8Mma>& c) { return reads_raw(c); }
// Tokens of such a tile: half of its rows fill the warp's key codes of a round, half its value
// codes.
inline constexpr int kRawTile = 8;

// Bytes of a row of codes in device memory, of keys and of values.
VQ_HD constexpr int code_row_bytes(const FormatConfig& f) {
  return static_cast<int>(padded_words(f.layout, f.part.row_words)) * 4;
}
VQ_HD constexpr int key_row_bytes(const AttentionConfig<AttentionInt8Mma>& c) {
  return code_row_bytes(c.keys);
}
VQ_HD constexpr int value_row_bytes(const AttentionConfig<AttentionInt8Mma>& c) {
  return code_row_bytes(c.values);
}
// Bytes of one copy, and the alignment of rows in device memory: the most, up to 16, that divide
// rows of keys and rows of values, which may follow each other.
VQ_HD constexpr int copy_bytes(const AttentionConfig<AttentionInt8Mma>& c) {
  const int both = key_row_bytes(c) | value_row_bytes(c);
  return both % 16 == 0 ? 16 : both % 8 == 0 ? 8 : 4;
}
// Lanes that copy a row together, if copies have 16 bytes and the row has 16, 32 or 64; one lane
// copies another row.
VQ_HD constexpr int copying_lanes(int row_bytes, int copy_bytes) {
  const bool together = row_bytes == 16 || row_bytes == 32 || row_bytes == 64;
  return together && copy_bytes == 16 ? row_bytes / 16 : 1;
}
// Bytes from a row to the next in shared memory, and of the rows of a round. A warp's rows of a
// round have room for half a raw tile.
VQ_HD constexpr int row_stride(const AttentionConfig<AttentionInt8Mma>& c, int row_bytes) {
  const int least = reads_raw(c) ? kRawTile / 2 * c.head_dim * 2 / kBytesStep : 16;
  return row_bytes == 16 && least <= 16 ? 16 : row_bytes <= 32 ? 32 : 64;
}
VQ_HD constexpr int key_stride(const AttentionConfig<AttentionInt8Mma>& c) {
  return row_stride(c, key_row_bytes(c));
}
VQ_HD constexpr int value_stride(const AttentionConfig<AttentionInt8Mma>& c) {
  return row_stride(c, value_row_bytes(c));
}
VQ_HD constexpr i64 round_bytes(const AttentionConfig<AttentionInt8Mma>& c) {
  return i64{c.threads} * (key_stride(c) + value_stride(c));
}

// How the lanes that share a row read it: each has as many codes of every format, wide sub-vectors
// first. A lane's *words* are four channels each: a piece of an entry of 8 or 16, an entry of 4,
// two entries of 2.
struct LanePart {
  int size;           // elements of an entry
  int codes;          // per lane
  int sharers;        // lanes that follow each other and have a piece of each entry
  bool strided;       // a lane's codes are row.lanes apart; otherwise they follow each other
  int first_word;     // of a lane's words
  int code_word;      // of the registers with its codes, the first,
  int code_byte;      // and of its bytes
  bool dealt;         // lanes of the upper half have its odd codes, or pairs of codes
  int column;         // where its entries stand
  int first_byte;     // of its codes in a row
  int first_channel;  // of its channels
  i64 first_element;  // of its codebooks
  i64 first_scale;
  bool per_head, scaled;
};
// If the values' parts of 2 and of 4 elements leave half as many words as there are lanes each, a
// lane's last word is mixed: two of the last codes of 2 elements in the lower half of the lanes,
// one of the last codes of 4 in the upper half.
struct LaneRow {
  int lanes;
  int count;
  int code_words;  // registers with codes of a row, per lane
  bool matrices;   // lanes get their codes by ldmatrix
  LanePart parts[kMostRowParts];
  int mixed_word;       // of a lane's words, the mixed one, or -1
  int mixed_code_word;  // of the registers with its codes
  int pairs, quads;     // parts that it has codes of
};
inline constexpr int kKeyLanes = 4;
inline constexpr int kValueLanes = 8;

// The formats of keys, or of values, in parts or not.
VQ_HD constexpr int operand_formats(const AttentionProblem& c, bool values) {
  return values ? value_formats(c) : key_formats(c);
}
VQ_HD constexpr FormatConfig operand_format(const AttentionProblem& c, bool values, int part) {
  return values ? value_format(c, part) : key_format(c, part);
}

// Columns are 128 bytes of shared memory per entry. Entries of 4 and more elements have one each,
// numbered from 0 on, keys before values; with `pairs` those of 2 elements, of which a key's and a
// value's share one.
VQ_HD constexpr int columns_of(const AttentionProblem& c, bool values, int parts, bool pairs) {
  int columns = 0;
  for (int i = 0; i < parts; ++i) {
    if ((operand_format(c, values, i).vector_size == 2) == pairs) ++columns;
  }
  return columns;
}
VQ_HD constexpr int wide_columns(const AttentionProblem& c) {
  return columns_of(c, false, key_formats(c), false) + columns_of(c, true, value_formats(c), false);
}
VQ_HD constexpr int pair_columns(const AttentionProblem& c) {
  return most(columns_of(c, false, key_formats(c), true),
              columns_of(c, true, value_formats(c), true));
}

// Pieces of 16 bytes that are one part each, or two of 8 codes, come by ldmatrix, without whose
// wide loads lanes would load every part by itself. A piece of two parts gives the lower half of
// the lanes one and the upper half the other, until they exchange a half.
VQ_HD constexpr bool in_matrices(const AttentionProblem& c, bool values) {
  int bytes = 0;
  for (int i = 0; i < operand_formats(c, values); ++i) {
    const FormatConfig f = operand_format(c, values, i);
    const int codes = f.part.channels / f.vector_size;
    if (codes != 16 && codes != 8) return false;
    if (codes == 16 && bytes % 16 != 0) return false;
    bytes += codes;
  }
  return bytes == 32;
}

// Lanes that share a code of `codes`, if each lane has a piece of one.
VQ_HD constexpr int sharers_of(int codes, int lanes) {
  return codes < lanes && lanes % codes == 0 ? lanes / codes : 1;
}
// Numbers of codes per lane that one load brings.
VQ_HD constexpr bool loaded_at_once(int codes) {
  return codes == 1 || codes == 2 || codes == 4 || codes == 8 || codes == 16;
}
// Elements of an entry that a lane has, and its channels of a part.
VQ_HD constexpr int piece_of(const LanePart& part) { return part.size / part.sharers; }
VQ_HD constexpr int lane_channels(const LanePart& part) { return part.codes * piece_of(part); }

// The part of so many elements whose words leave half of the lanes one, if there is one such part.
VQ_HD constexpr int half_left(const AttentionProblem& c, int size) {
  int part = -1, parts = 0;
  for (int i = 0; i < value_formats(c); ++i) {
    const FormatConfig f = value_format(c, i);
    if (f.vector_size != size || f.part.channels % (kValueLanes * 4) != kValueLanes * 2) continue;
    part = i;
    ++parts;
  }
  return parts == 1 ? part : -1;
}
// Does part i of keys, or of values, have codes in a mixed word?
VQ_HD constexpr bool in_mixed_word(const AttentionProblem& c, bool values, int i) {
  const int pairs = half_left(c, 2), quads = half_left(c, 4);
  return values && pairs >= 0 && quads >= 0 && (i == pairs || i == quads);
}
// Sets how many codes of part i a lane has, apart from a mixed word, and who shares them.
VQ_HD constexpr void share_codes(LanePart& part, const AttentionProblem& c, bool values, int i) {
  const FormatConfig f = operand_format(c, values, i);
  const int lanes = values ? kValueLanes : kKeyLanes;
  const int all = f.part.channels / f.vector_size;
  const bool mixed = in_mixed_word(c, values, i);
  part.size = f.vector_size;
  part.sharers = mixed ? 1 : sharers_of(all, lanes);
  part.codes = (mixed ? all - kValueLanes * 2 / f.vector_size : all * part.sharers) / lanes;
  part.strided = part.codes > 0 && !loaded_at_once(part.codes);
}

VQ_HD constexpr LaneRow lane_row(const AttentionProblem& c, bool values) {
  LaneRow row{};
  row.lanes = values ? kValueLanes : kKeyLanes;
  row.matrices = in_matrices(c, values);
  int word = 0;
  for (int size = 16; size >= 2; size /= 2) {
    for (int i = 0; i < operand_formats(c, values); ++i) {
      const FormatConfig f = operand_format(c, values, i);
      if (f.vector_size != size) continue;
      int column = columns_of(c, values, i, size == 2);
      if (values && size != 2) column += columns_of(c, false, key_formats(c), false);
      LanePart part{};
      share_codes(part, c, values, i);
      part.first_word = word;
      part.code_word = row.code_words;
      part.column = column;
      part.first_byte = f.part.first_word * 4;
      part.first_channel = f.part.first_channel;
      part.first_element = f.part.first_element;
      part.first_scale = f.part.first_scale;
      part.per_head = f.per_head;
      part.scaled = f.stage_scales;
      if (row.matrices) {
        part.dealt = part.codes * row.lanes == 8;
        part.code_word = part.first_byte / 16;
        part.code_byte = part.first_byte % 16 / row.lanes;
      }
      if (in_mixed_word(c, values, i)) (size == 2 ? row.pairs : row.quads) = row.count;
      row.parts[row.count++] = part;
      word += lane_channels(part) / 4;
      row.code_words += part.strided ? part.codes : ceil_div(part.codes, 4);
    }
  }
  row.mixed_word = -1;
  if (row.pairs != row.quads) {
    row.mixed_word = word;
    row.mixed_code_word = row.code_words++;
  }
  if (row.matrices) row.code_words = 2;
  return row;
}
// The number of the part that has word `word` of a lane.
VQ_HD constexpr int part_of_word(const LaneRow& row, int word) {
  int part = 0;
  for (int i = 1; i < row.count; ++i) {
    if (row.parts[i].first_word <= word) part = i;
  }
  return part;
}
// The row's channel of element j of word `word` of lane `lane` of `lanes`.
VQ_HD constexpr int channel_of_word(const LanePart& part, int lanes, int lane, int word, int j) {
  const int own = (word - part.first_word) * 4 + j;  // among the lane's of the part
  if (part.strided) {
    return part.first_channel + (own / part.size * lanes + lane) * part.size + own % part.size;
  }
  if (part.dealt) lane = lane < lanes / 2 ? 2 * lane : 2 * lane - lanes + 1;
  return part.first_channel + lane * lane_channels(part) + own;
}
// The first channel of the mixed word of a lane that has codes of this part in it.
VQ_HD constexpr int mixed_channel(const LanePart& part, int lanes, int lane) {
  return part.first_channel + lane_channels(part) * lanes + lane % (lanes / 2) * 4;
}
// The byte of the row where the codes of such a lane are; of 4 elements, with a neighbour.
VQ_HD constexpr int mixed_byte(const LanePart& part, int lanes, int lane) {
  const int of_half = lane % (lanes / 2);
  return part.first_byte + part.codes * lanes + (part.size == 2 ? 2 * of_half : of_half / 2 * 2);
}
// Can lanes read part i of a row so? Loads of a lane's codes are aligned, and each word of a
// value is four channels that follow each other.
VQ_HD constexpr bool shared_by_lanes(const AttentionProblem& c, bool values, int i) {
  const FormatConfig f = operand_format(c, values, i);
  const int lanes = values ? kValueLanes : kKeyLanes;
  const int size = f.vector_size;
  if (size != 2 && size != 4 && size != 8 && size != 16) return false;
  LanePart part{};
  share_codes(part, c, values, i);
  const int channels = lane_channels(part) * lanes;
  const int left = in_mixed_word(c, values, i) ? kValueLanes * 2 : 0;
  if (channels % (lanes * 4) != 0 || channels + left != f.part.channels) return false;
  if (part.strided) return !values || size >= 4;
  return f.part.first_word * 4 % (part.codes < 4 ? 4 : part.codes) == 0;
}

// True if the query takes factors of parts or of channels, so that what its rounding leaves may
// count (ops/query_rest.cuh).
VQ_HD constexpr bool rests(const AttentionConfig<AttentionInt8Mma>& c) {
  return key_formats(c) > 1 || scales_channels(c.keys, c.head_dim);
}

// Shared-memory layout of a block: during attention, and while its warps' parts merge, over entries
// and rounds; over rounds alone in a block with several pieces, which keeps its entries.
struct AttentionInt8MmaShared {
  i64 entries;      // wide columns, two by two: [entry][2] of 128 bytes
  i64 pairs;        // pair columns, one by one: [entry] of 128 bytes
  i64 rounds;       // [pipeline_stages]: rows of codes of keys, then of values
  i64 query;        // [heads_per_block][head_dim] fp32, transformed; before, of whole quads
  i64 query_sums;   // [warp][4][head_dim] fp32, where the kernel rotates the query
  i64 query_words;  // [heads_per_block][2] rows of operand words
  i64 query_rests;  // as many, of the rests of the query
  i64 query_peaks;  // [heads_per_block] fp32, their largest magnitudes
  i64 raw_query;    // [heads_per_block][head_dim] fp32, untransformed, where that is another
  i64 raw_words;    // [heads_per_block] rows of operand words of it, where there are raw tokens
  i64 raw_tokens;   // RawTokens of the block (raw_tiles.cuh)
  i64 token_ends;   // [query token] TokenEnds, where a block has several (byte_softmax.cuh)
  i64 parts;        // at the end: [warp][quad head][part_row] fp32
  i64 maximum;      // [quad head][warp] fp32
  i64 sum;          // [quad head][warp] fp32
  i64 merge;        // a word for the last block
  i64 total;
};

// Room for a RawTokens.
inline constexpr i64 kRawTokensBytes = 32;
// Floats between the heads of a warp's part, padded so that stores have no bank conflicts.
VQ_HD constexpr int part_row(int head_dim) { return head_dim + 4; }

VQ_HD constexpr AttentionInt8MmaShared bytes_layout(const AttentionConfig<AttentionInt8Mma>& c) {
  AttentionInt8MmaShared at{};
  Carver carve;
  const i64 warps = c.threads / 32;
  constexpr i64 kColumn = i64{AttentionInt8Mma::kEntries} * AttentionInt8Mma::kCopies * 4;
  at.entries = carve(ceil_div(wide_columns(c), 2) * 2 * kColumn);
  at.pairs = carve(pair_columns(c) * kColumn);
  const i64 part_bytes = warps * quad_heads(c) * i64{part_row(c.head_dim)} * 4;
  const i64 all_rounds = c.pipeline_stages * round_bytes(c);
  at.rounds = carve(balanced(c) && part_bytes > all_rounds ? part_bytes : all_rounds);
  const bool rotates = brings_into_basis(c) && c.key_basis.rotation;
  at.query = carve(i64{rotates ? quad_heads(c) : c.heads_per_block} * c.head_dim * 4);
  if (rotates) {  // over the second round, which is asked for later
    const i64 sum_bytes = warps * 4 * c.head_dim * 4;
    const bool fits = sum_bytes <= (c.pipeline_stages - 1) * round_bytes(c);
    at.query_sums = fits ? at.rounds + round_bytes(c) : carve(sum_bytes);
  }
  const i64 word_bytes =
      i64{query_word(quarter_words(c.head_dim) / 2, 2, 2 * c.heads_per_block, 0, 0)} * 4;
  at.query_words = carve(word_bytes);
  if (rests(c)) at.query_rests = carve(word_bytes);
  at.query_peaks = carve(i64{c.heads_per_block} * 4);
  // The channels of parts are in order.
  const bool changed = c.keys.smooth || c.keys.hadamard;
  at.raw_query =
      changed && reads_raw(c) ? carve(i64{c.heads_per_block} * c.head_dim * 4) : at.query;
  if (reads_raw(c)) {
    at.raw_words =
        carve(i64{query_word(quarter_words(c.head_dim), 4, c.heads_per_block, 0, 0)} * 4);
    at.raw_tokens = carve(kRawTokensBytes);
  }
  if (block_tokens(c) > 1) at.token_ends = carve(i64{block_tokens(c)} * 8);
  at.maximum = carve(warps * quad_heads(c) * 4);
  at.sum = carve(warps * quad_heads(c) * 4);
  at.merge = balanced(c) ? carve(4) : 0;
  at.total = carve.next;
  at.parts = balanced(c) ? at.rounds : at.entries;
  return at;
}

// Copies of codes are aligned.
VQ_HD constexpr CallShape call_shape(const AttentionConfig<AttentionInt8Mma>& c, i64 batch, i64) {
  CallShape shape = attention_shape(c, batch, bytes_layout(c).total, true);
  shape.code_bytes = most(shape.code_bytes, copy_bytes(c));
  if (reads_raw(c)) shape.element_bytes = 16;
  return shape;
}

}  // namespace vq
