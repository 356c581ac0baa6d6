// Rows of codes in int8_mma attention: which codes of a row a lane reads, and where their entries
// stand.
#pragma once

#include <vq/layout/query_words.h>

namespace vq {

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
// A row in one format whose codes per lane are no power of two is read as several parts of one, the
// largest first. They share entries, and are aligned loads each. Codes past the row's own, which
// make such a number divisible, are any bytes: their channels are beyond head_dim, where the query
// has zeros and results are not stored.
inline constexpr int kMostLaneParts = 8;
// If the values' parts of 2 and of 4 elements leave half as many words as there are lanes each, a
// lane's last word is mixed: two of the last codes of 2 elements in the lower half of the lanes,
// one of the last codes of 4 in the upper half.
struct LaneRow {
  int lanes;
  int count;
  int code_words;  // registers with codes of a row, per lane
  bool matrices;   // lanes get their codes by ldmatrix
  LanePart parts[kMostLaneParts];
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

// Bytes of a row of codes in device memory.
VQ_HD constexpr int code_row_bytes(const FormatConfig& f) {
  return static_cast<int>(padded_words(f.layout, f.part.row_words)) * 4;
}
// Codes of the next part of a row in one format with so many left: the largest power of two of them
// that lanes can load, each lane's at once, wherever such a row begins.
VQ_HD constexpr int codes_of_part(int left, int lanes, int row_bytes) {
  int codes = 16 * lanes;
  while (row_bytes % (codes / lanes) != 0) codes /= 2;
  while (codes > left) codes /= 2;
  return codes;
}
// Can lanes share `codes` of so many elements so? Pieces of an entry are whole words, and so are a
// lane's entries of 2 elements.
VQ_HD constexpr bool parted_evenly(int codes, int size, int lanes, int row_bytes) {
  int parts = 0;
  for (int part = 0; codes > 0; codes -= part, ++parts) {
    part = codes_of_part(codes, lanes, row_bytes);
    if (part * size % (lanes * 4) != 0) return false;
  }
  return parts <= kMostLaneParts;
}
// lane_row() of a row in one format.
VQ_HD constexpr LaneRow lane_row_of_one(const AttentionProblem& c, bool values) {
  const FormatConfig f = operand_format(c, values, 0);
  LaneRow row{};
  row.lanes = values ? kValueLanes : kKeyLanes;
  row.mixed_word = -1;
  const int size = f.vector_size;
  const int all = query_span(row_dim(c, values)) / size;
  int column = 0, word = 0;
  if (values && size != 2) column = columns_of(c, false, key_formats(c), false);
  for (int first = 0; first < all && row.count < kMostLaneParts;) {
    const int codes = codes_of_part(all - first, row.lanes, code_row_bytes(f));
    LanePart part{};
    part.size = size;
    part.sharers = sharers_of(codes, row.lanes);
    part.codes = codes * part.sharers / row.lanes;
    part.first_word = word;
    part.code_word = row.code_words;
    part.column = column;
    part.first_byte = first;
    part.first_channel = first * size;
    part.per_head = f.per_head;
    part.scaled = f.stage_scales;
    row.parts[row.count++] = part;
    word += lane_channels(part) / 4;
    row.code_words += ceil_div(part.codes, 4);
    first += codes;
  }
  return row;
}

VQ_HD constexpr LaneRow lane_row(const AttentionProblem& c, bool values) {
  if (operand_formats(c, values) == 1) return lane_row_of_one(c, values);
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
// Are all loads of a row's codes aligned, if rows of so many bytes follow each other?
VQ_HD constexpr bool aligned_in(const LaneRow& row, int row_bytes) {
  for (int i = 0; i < row.count; ++i) {
    const LanePart& part = row.parts[i];
    const int load = part.strided ? 4 : part.codes < 2 ? 2 : part.codes;
    if (part.codes > 0 && row_bytes % load != 0) return false;
  }
  return row_bytes % 2 == 0;
}
// Can lanes read part i of a row so? Loads of a lane's codes are aligned, and each word of a
// value is four channels that follow each other.
VQ_HD constexpr bool shared_by_lanes(const AttentionProblem& c, bool values, int i) {
  const FormatConfig f = operand_format(c, values, i);
  const int lanes = values ? kValueLanes : kKeyLanes;
  const int size = f.vector_size;
  if (size != 2 && size != 4 && size != 8 && size != 16) return false;
  if (operand_formats(c, values) == 1) {
    const int span = query_span(row_dim(c, values));
    return span % size == 0 && parted_evenly(span / size, size, lanes, code_row_bytes(f));
  }
  if (row_dim(c, values) % 32 != 0) return false;
  LanePart part{};
  share_codes(part, c, values, i);
  const int channels = lane_channels(part) * lanes;
  const int left = in_mixed_word(c, values, i) ? kValueLanes * 2 : 0;
  if (channels % (lanes * 4) != 0 || channels + left != f.part.channels) return false;
  if (part.strided) return !values || size >= 4;
  return f.part.first_word * 4 % (part.codes < 4 ? 4 : part.codes) == 0;
}

}  // namespace vq
