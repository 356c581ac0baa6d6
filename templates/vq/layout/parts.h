// Keys in parts (VQKV, section 3.1): formats share out a head's channels, each with codebooks of
// its own, as low and high frequencies of RoPE differ.
//
//   a row        | codes of part 0, padded to a whole word | codes of part 1 | ..
//   codebooks    | those of part 0, [unit][stage][entry][vector_size] | those of part 1 | ..
//
// A part's sub-vectors are its channels in the order of its list, which need not be the head's.
#pragma once

#include <vq/layout/format.h>

namespace vq {

inline constexpr int kMostKeyParts = 4;
inline constexpr int kMostPartChannels = 256;

struct KeyParts {
  int count;  // 0: the keys are in one format
  int channels[kMostKeyParts];
  FormatConfig formats[kMostKeyParts];
  u8 channel[kMostPartChannels];  // channel of the head, part after part

  VQ_HD constexpr bool none() const { return count == 0; }

  template <class Visit>
  VQ_HD static constexpr void visit(Visit&& visit) {
    using P = KeyParts;
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

// Formats that the keys are in, and each of them.
template <class Config>
VQ_HD constexpr int key_parts(const Config& c) {
  return c.parts.none() ? 1 : c.parts.count;
}
template <class Config>
VQ_HD constexpr FormatConfig key_format(const Config& c, int part) {
  return c.parts.none() ? c.keys : c.parts.formats[part];
}

VQ_HD constexpr RowPart whole_row(const FormatConfig& f, int head_dim) {
  RowPart part{};
  part.channels = head_dim;
  part.row_words = static_cast<int>(row_words(f, head_dim));
  return part;
}

// Sets each format's position in its cache; for configure(). With keys in parts, `keys` is the
// first part.
template <class Config>
VQ_HD constexpr void place_parts(Config& c) {
  c.keys.part = whole_row(c.keys, c.head_dim);
  c.values.part = whole_row(c.values, c.head_dim);
  if (c.parts.none()) return;
  RowPart next{};
  next.in_parts = true;
  for (int i = 0; i < c.parts.count; ++i) {
    FormatConfig& f = c.parts.formats[i];
    next.channels = c.parts.channels[i];
    f.part = next;
    next.first_channel += next.channels;
    next.first_word += static_cast<int>(row_words(f, next.channels));
    next.first_element += cache_units(f, c.kv_heads) * unit_codebook_elements(f);
  }
  for (int i = 0; i < c.parts.count; ++i) c.parts.formats[i].part.row_words = next.first_word;
  c.keys.part = c.parts.formats[0].part;
}

// The head's channel that is number `i` of the parts'; and the other way round.
struct ChannelTable {
  u8 at[kMostPartChannels];
};
VQ_HD constexpr ChannelTable part_channels(const KeyParts& parts) {
  ChannelTable table{};
  for (int i = 0; i < kMostPartChannels; ++i) table.at[i] = parts.channel[i];
  return table;
}
VQ_HD constexpr ChannelTable part_places(const KeyParts& parts, int head_dim) {
  ChannelTable table{};
  for (int i = 0; i < head_dim; ++i) table.at[parts.channel[i]] = static_cast<u8>(i);
  return table;
}

}  // namespace vq
