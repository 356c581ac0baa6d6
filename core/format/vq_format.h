// VqFormat: how a tensor is vector-quantized, independent of any tensor's size.
#pragma once

#include <vq/layout/group_scales.h>
#include <vq/layout/parts.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/format/e8p.h"
#include "core/json/fields.h"

namespace vqgen {

// How a tensor's codes are stored: groups of rows and runs of words, so that kernels load words of
// several rows at once (templates/vq/layout/codes.h). It is part of the format, not of a plan, as
// ops of all row counts read the same data.
using vq::CodeLayout;

// Most rows times words, which one access loads; and the row count beyond it that wide sub-vectors
// may have.
inline constexpr int kMostRunWords = 4;
inline constexpr int kWideRows = 32;

// What is wrong with the layout and the remedy; empty if it is valid.
std::string layout_problem(const CodeLayout& layout);

// The part of a tensor that one set of codebooks serves.
enum class Scope { tensor, head, channel_group, tile };
template <>
inline constexpr auto enum_names<Scope> = std::array{"tensor", "head", "channel_group", "tile"};

using vq::Decoder;

// The type of an entry's numbers: the problem's 16-bit element type, or integers within -127..127
// that stage scales turn into numbers. Both are stored as elements; kernels hold the second as
// bytes.
enum class EntryType { element, int8 };
template <>
inline constexpr auto enum_names<EntryType> = std::array{"element", "int8"};

// The sub-vectors and stages that any kernel takes; weights take fewer (core/problem/check.cpp).
inline constexpr std::array kVectorSizes{2, 4, 8, 16, 32, 48, 64, 80, 96, 128};
inline constexpr int kMostStages = 36;
// Bits of a code: of all, and of those that number an entry without signs.
inline constexpr int kMostIndexBits = 18;
inline constexpr int kMostNumberBits = 16;
// Inputs that share a scale, and bits of the scale (templates/vq/layout/group_scales.h).
inline constexpr std::array kGroupInputs{0, 16, 32, 64, 128, 256};
inline constexpr std::array kGroupScaleBits{0, 3, 4};

inline constexpr int kInt8Peak = 127;  // the largest magnitude of int8 entries
// Parts that keys or values may be in, each some channels of a head (templates/vq/layout/parts.h).
inline constexpr int kMostRowParts = vq::kMostRowParts;

struct VqFormat {
  int vector_size = 0;
  int index_bits = 0;
  int num_codebooks = 1;
  Scope scope = Scope::tensor;
  int group_channels = 0;
  int tile_rows = 0;
  int tile_columns = 0;
  Decoder decoder = Decoder::table;
  EntryType entry_type = EntryType::element;
  bool smooth = false;
  bool hadamard = false;
  // The basis of the whole operand (vq/layout/basis.h), which no part has.
  bool center = false;
  bool klt = false;
  bool stage_scales = false;
  bool output_scales = false;
  bool token_scales = false;
  int group_tokens = 0;
  bool common_scale = false;
  int group_inputs = 0;
  int group_scale_bits = 0;
  bool group_minima = false;
  CodeLayout layout = {};
  // Keys or values in parts have a format per part, each with its channels of a head in order. The
  // fields above are then the first part's.
  std::vector<int> channels = {};
  std::vector<VqFormat> parts = {};

  static constexpr auto fields() {
    using F = VqFormat;
    return std::make_tuple(
        field("vector_size", &F::vector_size, required_of(kVectorSizes),
              "elements one code stands for; weights: up to 8"),
        field("index_bits", &F::index_bits, required(2, kMostIndexBits),
              "bits of a code; above 16 with decoder signs alone"),
        field("num_codebooks", &F::num_codebooks, optional_in(1, kMostStages),
              "stages whose entries are summed; weights: up to 4"),
        field("scope", &F::scope, Rule{}, "what one set of codebooks serves"),
        field("group_channels", &F::group_channels, optional_in(0, 65536),
              "scope channel_group: channels a codebook serves, 0 means vector_size; token_scales: "
              "channels a scale serves, 0 means all"),
        field("tile_rows", &F::tile_rows, optional_in(0, 65536), "scope tile: output features"),
        field("tile_columns", &F::tile_columns, optional_in(0, 65536),
              "scope tile: input features"),
        field("decoder", &F::decoder, Rule{}, "how a code becomes numbers"),
        field("entry_type", &F::entry_type, Rule{}, "what the numbers of an entry are"),
        field("smooth", &F::smooth, Rule{},
              "keys divided by one factor per channel (VecInfer eq. 4)"),
        field("hadamard", &F::hadamard, Rule{}, "keys rotated by Hadamard (VecInfer eq. 5)"),
        field("center", &F::center, beside(),
              "rows of a cache less one mean per KV head (tensor mean)"),
        field(
            "klt", &F::klt, beside(),
            "rows of a cache rotated by one orthogonal matrix per KV head (tensor rotation), such "
            "as the eigenvectors of their covariance"),
        field("stage_scales", &F::stage_scales, Rule{},
              "one factor per codebook and residual stage"),
        field("output_scales", &F::output_scales, Rule{}, "weights: one factor per output feature"),
        field("token_scales", &F::token_scales, silent(),
              "scalar codes: scales of a token and head, behind its codes"),
        field("group_tokens", &F::group_tokens, silent_in(0, 128),
              "scalar codes: tokens that share a scale of each channel and are encoded together"),
        field("common_scale", &F::common_scale, silent(),
              "int8 entries: one scale for all stages of a unit, and magnitudes of at most 127 / "
              "num_codebooks, so that sums of stages are bytes too"),
        field(
            "group_inputs", &F::group_inputs, silent_of(kGroupInputs),
            "weights: input features that share a scale, behind the codes of a row; 0 means none"),
        field("group_scale_bits", &F::group_scale_bits, silent_of(kGroupScaleBits),
              "group_inputs: bits of s in scales d (2 s + 1), d an f16 per 256 inputs; 0 means an "
              "f16 per group"),
        field(
            "group_minima", &F::group_minima, silent(),
            "group_inputs: a minimum beside each scale, which is subtracted; scales are then d s, "
            "or f16"),
        field("layout", &F::layout, silent(), "how rows of codes are stored"),
        field("channels", &F::channels, silent_in(0, 1023),
              "of a part: its channels of a head, in the order of its sub-vectors"),
        // Last: where it is written, it is alone.
        field("parts", &F::parts, alone(),
              "keys or values in parts: formats with their channels, without other fields than "
              "center and klt"));
  }

  bool operator==(const VqFormat&) const = default;

  bool in_parts() const { return !parts.empty(); }
  // The fields that the first part has, once the parts are there.
  void take_alone();

  // Numbers that a code may be.
  int codes() const { return 1 << index_bits; }
  // Entries of a codebook as it is stored, and the one that a code reads: for a table the code
  // itself; for the lattice its low 8 bits, the others being signs and a shift; with signs the bits
  // below them; for scalar codes the one that there is.
  int entries() const {
    return decoder == Decoder::table   ? codes()
           : decoder == Decoder::signs ? codes() >> vector_size
           : decoder == Decoder::e8p   ? kE8pEntries
                                       : 1;
  }
  std::uint32_t entry_of(std::uint32_t code) const {
    return decoder == Decoder::table ? code : code % static_cast<std::uint32_t>(entries());
  }
  // Does a code hold a number for each element, its entry being their scales?
  bool is_scalar() const {
    return decoder == Decoder::scalar || decoder == Decoder::e4m3 || decoder == Decoder::affine;
  }
  // Are entries what training finds, and not a lattice or scales?
  bool has_own_entries() const { return decoder == Decoder::table || decoder == Decoder::signs; }
  // Do scales of tokens have a zero besides, both being elements?
  bool has_zeros() const { return decoder == Decoder::affine; }
  // Elements of an entry that kernels look up at a time: all, or a piece of a wide one.
  int piece() const { return std::min(vector_size, 8); }
  bool is_wide() const { return piece() < vector_size; }
  // Bytes of an entry as kernels hold it.
  int held_bytes() const {
    return entry_type == EntryType::int8 && group_inputs == 0 ? vector_size : 2 * vector_size;
  }
  // The largest magnitude of int8 entries.
  int entry_peak() const { return common_scale ? kInt8Peak / num_codebooks : kInt8Peak; }
  // Are sums of stages bytes that one scale per unit brings to size?
  bool sums_are_bytes() const {
    return entry_type == EntryType::int8 && (common_scale || num_codebooks == 1) &&
           group_inputs == 0;
  }
  // Are entries bytes that scales of groups of inputs bring to size?
  bool has_scaled_bytes() const {
    return entry_type == EntryType::int8 && num_codebooks == 1 && group_inputs > 0 && !group_minima;
  }
  // 32-bit words of a row of so many elements, a multiple of vector_size: its codes, and the scales
  // of a token or of groups of inputs. Without the padding of the layout.
  std::int64_t row_words(std::int64_t columns) const {
    if (in_parts()) return parts_words();
    return vq::row_words(columns, vector_size, num_codebooks, index_bits) + scale_words(columns) +
           group_scales().words(columns);
  }
  std::int64_t parts_words() const;
  vq::GroupScales group_scales() const { return {group_inputs, group_scale_bits, group_minima}; }
  std::int64_t scale_words(std::int64_t columns) const {
    return group_tokens > 0 ? columns / group_tokens
           : token_scales   ? columns / scale_channels(columns)
                            : 0;
  }
  // Channels of a row that a scale of a token serves.
  std::int64_t scale_channels(std::int64_t columns) const {
    return group_channels > 0 ? group_channels : columns;
  }
  double bits_per_element() const;
  // Channels of a row that one codebook serves under scope channel_group.
  int channels_per_group() const { return group_channels > 0 ? group_channels : vector_size; }
};

// Keys or values in these parts.
VqFormat in_parts(std::vector<VqFormat> parts);
// True if rows stand in a basis of their own: less a mean, or rotated.
inline bool has_basis(const VqFormat& format) { return format.center || format.klt; }

// Calls visit(format, channels of a row) for each part, or for all where there are none.
template <class Visit>
void for_each_part(const VqFormat& format, int channels, Visit&& visit) {
  if (!format.in_parts()) visit(format, channels);
  for (const VqFormat& part : format.parts) visit(part, static_cast<int>(part.channels.size()));
}

// A field that goes against the others, and in words what is wrong and the remedy.
struct FormatFault {
  const char* field;
  std::string message;
};

// The first that the codes and entries of the format have, whatever tensor it is of.
std::optional<FormatFault> format_fault(const VqFormat& format);

// What keeps a row of so many inputs from having whole groups with scales.
std::optional<FormatFault> groups_fault(const VqFormat& format, std::int64_t inputs);

// A format's name in kernel names and reports: "d4b8", "d8b12x2", "e8px2", "int8", "int8t",
// "affine4t32", "affine4g32", "e4m3"; signs "d8b16s", scales of 32 inputs in 4 bits "d8b16sg32s4",
// with minima "d4b8g16s4m"; int8 entries "d4b8i8", with a common scale "d8b8i8cx2"; a layout
// "d4b8_l4x1"; parts "d80b16x20_and_d48b14x16".
std::string short_name(const VqFormat& format);

// The format as it applies to values, which VecInfer (eq. 8) quantizes as they are: the key
// transforms are dropped, all else stays.
VqFormat for_values(VqFormat format);

// layout_problem() for rows of this format, or of all of its parts.
std::string layout_problem(const VqFormat& format, const CodeLayout& layout);

// Keys or values with rows of codes stored so, in parts or not.
VqFormat with_layout(VqFormat format, const CodeLayout& layout);

// The format with codes stored row after row. What is said of codes and entries, such as how often
// they are read, is said of this.
VqFormat without_layout(VqFormat format);

// A part of keys as a format on its own: of all channels, with codes stored row after row.
VqFormat part_alone(VqFormat part);

// The largest number that a scalar code has: 127 or 7 of integers, 255 or 15 with a zero, 448 of
// e4m3.
float scalar_peak(const VqFormat& format);

// True if the finite `value` may be an entry of the format.
bool fits_entries(const VqFormat& format, float value);

// Description of valid entries for messages: "half-integers from 1/2 to 7/2".
std::string entry_numbers(const VqFormat& format);

// May these be the stage scales, [units][num_codebooks]? Those of a unit with a common scale are
// equal.
bool fits_stage_scales(const VqFormat& format, std::span<const float> scales);

}  // namespace vqgen
