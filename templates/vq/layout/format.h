// Compile-time facts of one VQ format, and the shape of its codebooks:
//
//   codebooks   [unit][stage][entry][vector_size] of 16-bit elements, 16-byte aligned
//   scales      [unit][stage] fp32, only where the format has stage scales
//
// With int8 entries the elements are integers within -127 .. 127; near levels hold them as bytes,
// unless groups of inputs have scales.
//
// A *unit* is what one codebook set serves. KV cache: unit = head * units_per_head + channel group
// (units_per_head is 1 for scope head; scope tensor has one unit for all heads). Weights: unit =
// (row / unit_rows) * units_per_row + column / unit_columns.
//
// With a table, a code is the number of its entry. With the E8P lattice (QuIP#, section 4) a
// codebook holds 256 entries of positive half-integers (1/2, 3/2, ..), and a code of 16 bits is
//
//   bit   15 | 14 .. 8            | 7 .. 0
//         u  | signs, bit 8 + i:  | number of the entry a
//            | 1 = element i of   |
//            | 0..6 is negative   |
//
// which stands for s + 1/4 if u = 0, s - 1/4 if u = 1; s is the entry with its signs, where the
// sign of element 7 makes the sum of s even.
//
// With signs (weights only) a codebook holds entries of magnitudes, 0 or above, and a code is
//
//   bit   index_bits - 1 .. n        | n - 1 .. 0            n = index_bits - vector_size
//         signs, bit n + i: 1 =      | number of the entry
//         element i is negative      |
//
// A scalar code of 16 bits holds a number for each of its vector_size elements, the first in the
// lowest bits: 2 integers of 8 bits or 4 of 4, in two's complement (scalar) or from 0 on (affine),
// or 2 floats of 8 bits (e4m3). A row of codes is thus the numbers of its channels in order. The
// codebook of a unit holds one entry, the scales of its channels, by which the numbers are
// multiplied; with units of vector_size channels (scope channel_group) codebooks are
// [kv_heads][head_dim] scales.
//
// With token scales a row also has its own scales, one for each scale_channels of its channels in
// order, in words after its codes: an fp32, or for affine codes
//
//   bit   31 .. 16 | 15 .. 0      both 16-bit elements: x = zero + scale * number
//         zero     | scale
//
// With scale_tokens G each channel has a scale for every G tokens, aligned to G. A group's scales
// are such words, one per channel in order, after the codes of its tokens: head_dim / G words per
// row. A group is encoded whole; until its last token arrives its tokens have no codes and are read
// from the raw slots.
#pragma once

#include <vq/layout/codes.h>
#include <vq/layout/group_scales.h>
#include <vq/plan.h>

namespace vq {

// Position of a format's channels, codes and codebooks among those of a cache's keys or values: all
// of them, or one part of them (layout/parts.h).
struct RowPart {
  int channels;       // channels of a row in this format
  int first_channel;  // channels before them, counted through the parts
  int first_word;     // words of the row before its codes
  int row_words;      // words of a row, all parts together
  bool in_parts;      // its channels are those that the parts name
  bool of_values;     // of the values, else of the keys
  i64 first_element;  // elements of codebooks before its own
  i64 first_scale;    // stage scales before its own, where the formats have them
};

struct FormatConfig {
  Decoder decoder;
  int vector_size;       // elements one code stands for
  int index_bits;        // bits of a code
  int num_codebooks;     // stages summed up
  CodeLayout layout;     // layout of the codes
  bool int8_entries;     // entries are integers within -127 .. 127
  bool stage_scales;     // a factor per unit and stage
  bool smooth;           // keys were divided by a factor per channel
  bool hadamard;         // keys were multiplied by the orthonormal Hadamard matrix
  bool token_scales;     // KV cache: a row has scales after its codes
  int scale_channels;    // that each of these serves; 0 without them
  int scale_tokens;      // KV cache: tokens for which a channel has a scale; 0 without such scales
  int group_inputs;      // weights: inputs that a scale behind the codes serves; 0 without scales
  int group_scale_bits;  // of such a scale (layout/group_scales.h)
  bool group_minima;     // such a scale has a minimum beside it
  bool per_head;         // KV cache: units differ from head to head
  int unit_elements;     // elements of a row that one unit serves (head_dim, or the channel group)
  Placement placement;   // the plan's, put here by configure(); the others are the problem's
  RowPart part;          // of a cache; set by configure()

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using F = FormatConfig;
    visit("decoder", &F::decoder);
    visit("vector_size", &F::vector_size);
    visit("index_bits", &F::index_bits);
    visit("num_codebooks", &F::num_codebooks);
    visit("layout", &F::layout);
    visit("int8_entries", &F::int8_entries);
    visit("stage_scales", &F::stage_scales);
    visit("smooth", &F::smooth);
    visit("hadamard", &F::hadamard);
    visit("token_scales", &F::token_scales);
    visit("scale_channels", &F::scale_channels);
    visit("scale_tokens", &F::scale_tokens);
    visit("group_inputs", &F::group_inputs);
    visit("group_scale_bits", &F::group_scale_bits);
    visit("group_minima", &F::group_minima);
    visit("per_head", &F::per_head);
    visit("unit_elements", &F::unit_elements);
  }
};

// Does a code hold a number for each element, instead of the number of an entry?
VQ_HD constexpr bool is_scalar(Decoder decoder) {
  return decoder == Decoder::scalar || decoder == Decoder::e4m3 || decoder == Decoder::affine;
}

// Elements of an entry that are looked up at a time, 16 bytes at most: all, or a piece of a wide
// one.
VQ_HD constexpr int piece_elements(const FormatConfig& f) {
  return f.vector_size < 8 ? f.vector_size : 8;
}
VQ_HD constexpr int entry_pieces(const FormatConfig& f) {
  return f.vector_size / piece_elements(f);
}

// Low bits of a code that are the number of its entry.
VQ_HD constexpr int number_bits(const FormatConfig& f) {
  return f.decoder == Decoder::table   ? f.index_bits
         : f.decoder == Decoder::signs ? f.index_bits - f.vector_size
         : f.decoder == Decoder::e8p   ? 8
                                       : 0;
}
// Entries of one codebook as it is stored.
VQ_HD constexpr int entries(const FormatConfig& f) { return 1 << number_bits(f); }

// Words of a row that stores `elements` numbers: codes, then scales.
VQ_HD constexpr i64 code_words(const FormatConfig& f, i64 elements) {
  return row_words(elements, f.vector_size, f.num_codebooks, f.index_bits);
}
VQ_HD constexpr i64 scale_words(const FormatConfig& f, i64 elements) {
  return f.scale_tokens > 0 ? elements / f.scale_tokens
         : f.token_scales   ? elements / f.scale_channels
                            : 0;
}
VQ_HD constexpr GroupScales group_scales(const FormatConfig& f) {
  return {f.group_inputs, f.group_scale_bits, f.group_minima};
}
VQ_HD constexpr i64 row_words(const FormatConfig& f, i64 elements) {
  return code_words(f, elements) + scale_words(f, elements) + group_scales(f).words(elements);
}

// Elements of one unit's codebooks, all stages.
VQ_HD constexpr i64 unit_codebook_elements(const FormatConfig& f) {
  return i64{f.num_codebooks} * entries(f) * f.vector_size;
}

VQ_HD constexpr int most(int a, int b) { return a > b ? a : b; }

// Bytes that rows of codes are aligned to by their layout.
VQ_HD constexpr int code_alignment(const FormatConfig& f) {
  const int words = f.layout.rows * f.layout.words;
  return 4 * (words < 4 ? words : 4);
}
VQ_HD constexpr int code_alignment(const FormatConfig& keys, const FormatConfig& values) {
  return most(code_alignment(keys), code_alignment(values));
}

// Entries [begin, end) of a codebook at one level; none if begin == end.
struct EntryRange {
  int begin;
  int end;
};
VQ_HD constexpr EntryRange level_range(int below, int boundary) {
  return {below, boundary > below ? boundary : below};
}
VQ_HD constexpr EntryRange register_range(const FormatConfig& f) {
  return level_range(0, f.placement.registers);
}
VQ_HD constexpr EntryRange replicated_range(const FormatConfig& f) {
  return level_range(register_range(f).end, f.placement.replicated);
}
VQ_HD constexpr EntryRange shared_range(const FormatConfig& f) {
  return level_range(replicated_range(f).end, f.placement.shared);
}
VQ_HD constexpr EntryRange global_range(const FormatConfig& f) {
  return level_range(shared_range(f).end, entries(f));
}

// Bytes of one entry as levels near the threads hold it.
VQ_HD constexpr int held_bytes(const FormatConfig& f) {
  return f.int8_entries ? f.vector_size : f.vector_size * 2;
}

// True if shared memory holds whole codebooks in their global-memory layout.
VQ_HD constexpr bool stands_as_stored(const FormatConfig& f) {
  const EntryRange range = shared_range(f);
  return f.decoder == Decoder::table && !f.int8_entries && f.num_codebooks == 1 &&
         range.begin == 0 && range.end == entries(f);
}

// True if each thread of a block fetches so many of a level's `entries` that some are in flight
// together (SharedLevel).
VQ_HD constexpr bool fetches_together(int num_codebooks, int entries, int threads) {
  return num_codebooks == 1 && entries > 2 * threads;
}

// Shared bytes of one unit's codebooks, all stages: the replicated entries, and those held once.
VQ_HD constexpr i64 replicated_bytes(const FormatConfig& f) {
  const EntryRange range = replicated_range(f);
  return i64{f.num_codebooks} * (range.end - range.begin) * f.placement.copies * held_bytes(f);
}
VQ_HD constexpr i64 shared_bytes(const FormatConfig& f) {
  const EntryRange range = shared_range(f);
  return i64{f.num_codebooks} * (range.end - range.begin) * held_bytes(f);
}

// Byte offsets of a block's codebooks of a tensor in shared memory.
struct CodebookShared {
  i64 replicated;  // [unit][entry][stage][copy] entries as held, those of replicated_range
  i64 shared;      // [unit][entry][stage] entries as held, those of shared_range
  i64 scales;      // [unit][stage] fp32, where the format has stage scales
};

// Allocates parts of a block's shared memory one after the other, 16-byte aligned.
struct Carver {
  i64 next = 0;
  VQ_HD constexpr i64 operator()(i64 bytes) {
    const i64 begin = next;
    next += ceil_div(bytes, i64{16}) * 16;
    return begin;
  }
};

VQ_HD constexpr CodebookShared carve_codebook(const FormatConfig& f, i64 units, Carver& carve) {
  CodebookShared at{};
  at.replicated = carve(units * replicated_bytes(f));
  at.shared = carve(units * shared_bytes(f));
  at.scales = carve(f.stage_scales ? units * f.num_codebooks * 4 : i64{0});
  return at;
}

}  // namespace vq
