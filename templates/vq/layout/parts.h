// Keys or values in parts: formats share out a head's channels, each with codebooks of its own, as
// low and high frequencies of RoPE differ (VQKV, section 3.1), or the variance of rotated channels.
//
//   a row        | codes of part 0, padded to a whole word | codes of part 1 | ..
//   codebooks    | those of part 0, [unit][stage][entry][vector_size] | those of part 1 | ..
//   scales       | those of part 0, [unit][stage] | those of part 1 | ..
//
// A part's sub-vectors are its channels in the order of its list, which need not be the head's.
#pragma once

#include <vq/layout/format.h>

namespace vq {

inline constexpr int kMostRowParts = 4;
inline constexpr int kMostPartChannels = 256;

struct Parts {
  int count;  // 0: all channels are in one format
  int channels[kMostRowParts];
  FormatConfig formats[kMostRowParts];
  u8 channel[kMostPartChannels];  // channel of the head, part after part

  VQ_HD constexpr bool none() const { return count == 0; }

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = Parts;
    visit("count", &P::count);
    visit("channels", &P::channels);
    visit("formats", &P::formats);
    visit("channel", &P::channel);
  }
};

// Copies `from` and fills the rest with zeros.
template <class T, u64 kSize, class From, u64 kCount>
VQ_HD constexpr void assign(T (&to)[kSize], const From (&from)[kCount]) {
  for (u64 i = 0; i < kCount; ++i) to[i] = static_cast<T>(from[i]);
}

// Codebook sets of a tensor with so many heads.
VQ_HD constexpr i64 cache_units(const FormatConfig& f, int kv_heads) {
  return f.per_head ? i64{kv_heads} * (f.part.channels / f.unit_elements) : i64{1};
}

// Channels of a row of keys, or of values.
template <class Config>
VQ_HD constexpr int row_dim(const Config& c, bool values) {
  return values ? c.value_dim : c.head_dim;
}
// True if rows of values have another size than rows of keys.
template <class Config>
VQ_HD constexpr bool rows_differ(const Config& c) {
  return c.value_dim != c.head_dim;
}

// Formats that the keys, or the values, are in, and each of them.
template <class Config>
VQ_HD constexpr int key_formats(const Config& c) {
  return c.key_parts.none() ? 1 : c.key_parts.count;
}
template <class Config>
VQ_HD constexpr int value_formats(const Config& c) {
  return c.value_parts.none() ? 1 : c.value_parts.count;
}
template <class Config>
VQ_HD constexpr FormatConfig key_format(const Config& c, int part) {
  return c.key_parts.none() ? c.keys : c.key_parts.formats[part];
}
template <class Config>
VQ_HD constexpr FormatConfig value_format(const Config& c, int part) {
  return c.value_parts.none() ? c.values : c.value_parts.formats[part];
}

// Calls visit(format) for each of them, keys first.
template <class Config, class Visit>
VQ_HD constexpr void for_each_format(const Config& c, Visit&& visit) {
  for (int i = 0; i < key_formats(c); ++i) visit(key_format(c, i));
  for (int i = 0; i < value_formats(c); ++i) visit(value_format(c, i));
}

// Sets each format's position in its cache. `whole` is then the first part.
VQ_HD constexpr void place_parts(FormatConfig& whole, Parts& parts, int channels, int kv_heads,
                                 bool of_values) {
  RowPart next{};
  next.of_values = of_values;
  if (parts.none()) {
    next.channels = channels;
    next.row_words = static_cast<int>(row_words(whole, channels));
    whole.part = next;
    return;
  }
  next.in_parts = true;
  for (int i = 0; i < parts.count; ++i) {
    FormatConfig& f = parts.formats[i];
    next.channels = parts.channels[i];
    f.part = next;
    next.first_channel += next.channels;
    next.first_word += static_cast<int>(row_words(f, next.channels));
    next.first_element += cache_units(f, kv_heads) * unit_codebook_elements(f);
    next.first_scale += cache_units(f, kv_heads) * f.num_codebooks;
  }
  for (int i = 0; i < parts.count; ++i) parts.formats[i].part.row_words = next.first_word;
  whole = parts.formats[0];
}

// For configure().
template <class Config>
VQ_HD constexpr void place_parts(Config& c) {
  place_parts(c.keys, c.key_parts, c.head_dim, c.kv_heads, false);
  place_parts(c.values, c.value_parts, c.value_dim, c.kv_heads, true);
}

// The head's channel that is number `i` of the parts'; and the other way round.
struct ChannelTable {
  u8 at[kMostPartChannels];
};
VQ_HD constexpr ChannelTable part_channels(const Parts& parts) {
  ChannelTable table{};
  for (int i = 0; i < kMostPartChannels; ++i) table.at[i] = parts.channel[i];
  return table;
}
VQ_HD constexpr ChannelTable part_places(const Parts& parts, int head_dim) {
  ChannelTable table{};
  for (int i = 0; i < head_dim; ++i) table.at[parts.channel[i]] = static_cast<u8>(i);
  return table;
}

}  // namespace vq
