#include "runtime/verify/uneven_channels.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/problem/problem.h"
#include "runtime/verify/row_decoder.h"

namespace vqgen {
namespace {

enum class Kind { dead, biased, outlying };

bool scales_units(const VqFormat& keys, std::int64_t head_dim) {
  const bool scaled = keys.stage_scales || (keys.is_scalar() && keys.scale_words(head_dim) == 0);
  return scaled && !keys.in_parts() && keys.decoder != Decoder::e8p &&
         keys.scope == Scope::channel_group && keys.channels_per_group() < head_dim;
}

bool scales_numbers(const VqFormat& keys, std::int64_t head_dim) {
  return keys.group_tokens > 0 && keys.is_scalar() && keys.scale_words(head_dim) > 0;
}

std::uint16_t scaled(DType dtype, std::uint16_t bits, double by) {
  return element_from_float(dtype, static_cast<float>(element_value(dtype, bits) * by));
}

// One channel group or channel of a head, of all sequences.
class Uneven {
 public:
  Uneven(QuantizedTensor& keys, Random& random) : t_(keys), f_(keys.format), random_(random) {}

  // Changes a unit's channels from `first` on. The largest numbers are about 3 times their
  // neighbours', the largest int8 entries 8 times (make_hard_tensor()).
  void change_unit(std::int64_t head, std::int64_t first, std::int64_t channels, Kind kind) {
    const std::int64_t unit = unit_of(t_, head, 0, first);
    if (f_.is_scalar()) {
      for (std::int64_t i = 0; i < f_.vector_size; ++i) {
        auto& scale = t_.codebooks[static_cast<std::size_t>(unit * f_.vector_size + i)];
        scale = scaled(t_.dtype, scale, kind == Kind::biased ? kUneven / 3 : kUneven);
      }
      for (std::int64_t c = first; c < first + channels; ++c) put_numbers(head, c, kind);
      return;
    }
    for (std::int64_t stage = 0; stage < f_.num_codebooks; ++stage) {
      const std::int64_t book = unit * f_.num_codebooks + stage;
      const bool integers = f_.entry_type == EntryType::int8;
      const double by = kind == Kind::biased && integers ? kUneven / 8 : kUneven;
      t_.stage_scales[static_cast<std::size_t>(book)] *= static_cast<float>(by);
      const std::int64_t size = std::int64_t{f_.entries()} * f_.vector_size;
      for (std::int64_t i = book * size; i < (book + 1) * size; ++i) {
        auto& entry = t_.codebooks[static_cast<std::size_t>(i)];
        entry = element_from_float(t_.dtype, entry_of(element_value(t_.dtype, entry), stage, kind));
      }
    }
  }

  // Changes one channel of affine or scalar numbers whose scales serve groups of tokens.
  void change_words(std::int64_t head, std::int64_t channel, Kind kind) {
    const std::int64_t words = f_.scale_words(t_.columns);
    const std::int64_t row_of_group = channel / words;
    const std::int64_t word = t_.row_words - words + channel % words;
    for (std::int64_t b = 0; b < t_.batch; ++b) {
      for (std::int64_t row = row_of_group; row < t_.rows; row += f_.group_tokens) {
        std::uint32_t& pair = t_.codes[word_number(t_, b, head, row, word)];
        pair = f_.has_zeros() ? changed(pair, kind) : changed_scale(pair);
      }
    }
    if (!f_.has_zeros()) put_numbers(head, channel, kind);
  }

 private:
  float entry_of(double value, std::int64_t stage, Kind kind) {
    if (kind == Kind::dead) return 0;
    if (kind == Kind::outlying || stage > 0) return static_cast<float>(value);
    if (f_.entry_type != EntryType::int8) return static_cast<float>(1 + value / 64);
    return static_cast<float>(f_.entry_peak() - static_cast<double>(random_.below(4)));
  }

  std::uint32_t changed(std::uint32_t pair, Kind kind) const {
    auto scale = static_cast<std::uint16_t>(pair);
    auto zero = static_cast<std::uint16_t>(pair >> 16);
    if (kind == Kind::dead) scale = zero = 0;
    if (kind == Kind::biased) {
      zero =
          element_from_float(t_.dtype, static_cast<float>(element_value(t_.dtype, zero) + kUneven));
    }
    if (kind == Kind::outlying) {
      scale = scaled(t_.dtype, scale, kUneven);
      zero = scaled(t_.dtype, zero, kUneven);
    }
    return std::uint32_t{zero} << 16 | scale;
  }
  static std::uint32_t changed_scale(std::uint32_t bits) {
    return std::bit_cast<std::uint32_t>(
        static_cast<float>(static_cast<double>(std::bit_cast<float>(bits)) * kUneven));
  }

  // Writes the numbers of all tokens of a channel.
  void put_numbers(std::int64_t head, std::int64_t channel, Kind kind) {
    if (kind == Kind::outlying) return;
    const int bits = f_.index_bits / f_.vector_size;
    const auto bit = static_cast<int>(channel * bits % 32);
    const std::uint32_t mask = ((1u << bits) - 1u) << bit;
    for (std::int64_t b = 0; b < t_.batch; ++b) {
      for (std::int64_t row = 0; row < t_.rows; ++row) {
        std::uint32_t& word = t_.codes[word_number(t_, b, head, row, channel * bits / 32)];
        std::uint32_t number = 0;
        if (kind == Kind::biased) {
          number = static_cast<std::uint32_t>(scalar_peak_code() - random_.below(2));
        }
        word = (word & ~mask) | number << bit;
      }
    }
  }
  std::int64_t scalar_peak_code() const {
    if (f_.decoder == Decoder::e4m3) return 0x7e;  // 448
    return static_cast<std::int64_t>(scalar_peak(f_));
  }

  QuantizedTensor& t_;
  const VqFormat& f_;
  Random& random_;
};

// Not in a basis, where queries are rounded to elements before they meet the scales.
bool scales_parts(const VqFormat& keys) {
  return keys.parts.size() > 1 && !keys.klt &&
         std::all_of(keys.parts.begin(), keys.parts.end(),
                     [](const VqFormat& part) { return part.stage_scales; });
}

// Multiplies the scales of the part of keys that is drawn, for all heads.
void change_part(QuantizedTensor& keys, Random& random, std::vector<bool>& uneven) {
  const auto drawn =
      static_cast<std::size_t>(random.below(static_cast<std::int64_t>(keys.format.parts.size())));
  const auto stages = [&](const VqFormat& part) {
    return kv_stages(part, static_cast<int>(keys.heads), static_cast<int>(part.channels.size()));
  };
  std::int64_t first = 0;
  for (std::size_t i = 0; i < drawn; ++i) first += stages(keys.format.parts[i]);
  const VqFormat& part = keys.format.parts[drawn];
  for (std::int64_t i = first; i < first + stages(part); ++i) {
    keys.stage_scales[static_cast<std::size_t>(i)] *= static_cast<float>(kUneven);
  }
  for (std::int64_t head = 0; head < keys.heads; ++head) {
    for (const int channel : part.channels) {
      uneven[static_cast<std::size_t>(head * keys.columns + channel)] = true;
    }
  }
}

}  // namespace

bool has_channel_scales(const VqFormat& keys, std::int64_t head_dim) {
  return scales_units(keys, head_dim) || scales_numbers(keys, head_dim) || scales_parts(keys) ||
         (keys.smooth && !keys.hadamard && !keys.in_parts());
}

std::vector<bool> make_uneven(QuantizedTensor& keys, Random& random) {
  std::vector<bool> uneven(static_cast<std::size_t>(keys.heads * keys.columns), false);
  if (!has_channel_scales(keys.format, keys.columns)) return uneven;
  if (scales_parts(keys.format)) {
    change_part(keys, random, uneven);
    return uneven;
  }
  const bool by_unit = scales_units(keys.format, keys.columns);
  const std::int64_t channels = by_unit ? keys.format.channels_per_group() : 1;
  const std::int64_t groups = keys.columns / channels;
  if (groups < 4) return uneven;
  Uneven change(keys, random);
  for (std::int64_t head = 0; head < keys.heads; ++head) {
    std::int64_t group = random.below(groups);
    for (const Kind kind : {Kind::dead, Kind::biased, Kind::outlying}) {
      const std::int64_t first = group * channels;
      if (by_unit) {
        change.change_unit(head, first, channels, kind);
      } else if (scales_numbers(keys.format, keys.columns)) {
        change.change_words(head, first, kind);
      } else {  // keys of an outlying channel with one smooth factor are as the others'
        keys.smooth[static_cast<std::size_t>(head * keys.columns + first)] *=
            static_cast<float>(std::sqrt(kUneven));
      }
      const auto at = uneven.begin() + head * keys.columns + first;
      std::fill(at, at + channels, true);
      group = (group + 1 + random.below(groups / 4)) % groups;  // three differ
    }
  }
  return uneven;
}

}  // namespace vqgen
