#include "quantizer/import/gguf_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/problem/check.h"
#include "quantizer/group_scales.h"
#include "quantizer/import/little_endian.h"
#include "quantizer/model_folder.h"
#include "quantizer/pack.h"

namespace vqgen {
namespace {

// Bits of an index.
int number_bits(const IqFormat& iq) {
  const std::size_t entries = iq.grid().size() / static_cast<std::size_t>(iq.vector_size);
  return static_cast<int>(std::bit_width(entries - 1));
}

// A code with an offset of +-1/8 has a bit for it above its index. Its entry is 8 times what the
// grid has, plus or minus 1.
int parts(const IqFormat& iq) { return iq.offset ? 8 : 1; }
int rise(const IqFormat& iq) { return iq.offset ? 1 : 0; }

constexpr int kQ2KTogether = 4;  // numbers of 2 bits in a code

VqFormat q2_k_format() {
  VqFormat format;
  format.vector_size = kQ2KTogether;
  format.index_bits = 2 * kQ2KTogether;
  format.group_inputs = 16;
  format.group_scale_bits = 4;
  format.group_minima = true;
  return format;
}

}  // namespace

std::optional<VqFormat> gguf_codes_format(const GgufType& type) {
  if (type.id == kQ2KType) return q2_k_format();
  const IqFormat* const iq = type.iq;
  if (iq == nullptr) return {};
  VqFormat format;
  format.vector_size = iq->vector_size;
  format.index_bits = number_bits(*iq) + (iq->offset ? 1 : iq->vector_size);
  format.decoder = iq->offset ? Decoder::table : Decoder::signs;
  format.entry_type = EntryType::int8;
  format.stage_scales = true;
  format.group_inputs = iq->group;
  format.group_scale_bits = iq->offset ? 3 : 4;
  return format;
}

std::string no_kernel_reads(const VqFormat& format, DType dtype, std::int64_t out_features,
                            std::int64_t in_features) {
  try {
    weight_sizes(format, dtype, out_features, in_features, "its codes");
  } catch (const Error& error) {
    return error.what();
  }
  return check(Gemv{{dtype, {1, out_features, in_features}, format}}).reason;
}

GgufCodes::GgufCodes(GgufRows rows, DType dtype)
    : rows_(std::move(rows)), iq_(rows_.tensor().type->iq) {
  const GgufTensor& tensor = rows_.tensor();
  if (iq_ != nullptr) {
    unit_ = iq_->unit / static_cast<float>(parts(*iq_));
    peak_ = static_cast<float>(parts(*iq_) * *std::ranges::max_element(iq_->grid()) + rise(*iq_));
  }
  sizes_ = weight_sizes(gguf_codes_format(*tensor.type).value(), dtype, rows_.rows(),
                        rows_.columns(), tensor.name);
}

void GgufCodes::write(std::string_view suffix, const TakeBytes& take) const {
  if (suffix == ".codes") {
    rows_.write(
        static_cast<std::size_t>(sizes_.row_words) * 4,
        [this](std::span<const std::byte> blocks, std::span<std::byte> into) {
          convert(blocks, into);
        },
        take);
  } else if (suffix == ".codebooks") {
    std::vector<std::uint16_t> entries;
    const auto add = [&](int number) {
      entries.push_back(element_from_float(sizes_.dtype, static_cast<float>(number)));
    };
    const auto add_grid = [&](int above) {
      for (const std::int8_t number : iq_->grid()) add(parts(*iq_) * number + above);
    };
    if (iq_ == nullptr) {
      for (int code = 0; code < sizes_.format.codes(); ++code) {
        for (int i = 0; i < kQ2KTogether; ++i) add(code >> 2 * i & 3);
      }
    } else {
      add_grid(rise(*iq_));
      if (iq_->offset) add_grid(-rise(*iq_));
    }
    take(0, std::as_bytes(std::span(entries)));
  } else {
    take(0, std::as_bytes(std::span(&unit_, 1)));
  }
}

// A row's codes, and its scales behind them.
void GgufCodes::convert(std::span<const std::byte> blocks, std::span<std::byte> into) const {
  const VqFormat& format = sizes_.format;
  const auto block_bytes = static_cast<std::size_t>(rows_.tensor().type->bytes);
  Row row;
  for (std::size_t at = 0; at < blocks.size(); at += block_bytes) {
    iq_ == nullptr ? add_q2_k(row, blocks.data() + at) : add_iq(row, blocks.data() + at);
  }
  std::vector<std::uint32_t> words(static_cast<std::size_t>(sizes_.row_words));
  pack_row(row.codes, format.index_bits, words);
  const auto of_scales = static_cast<std::size_t>(format.group_scales().words(sizes_.columns));
  put_group_factors(format, row.numbers, row.halves, std::span(words).last(of_scales));
  std::memcpy(into.data(), words.data(), into.size());
}

void GgufCodes::add_iq(Row& row, const std::byte* at) const {
  const auto size = static_cast<std::size_t>(iq_->vector_size);
  const auto index_bits = static_cast<unsigned>(number_bits(*iq_));
  const std::uint32_t all_signs = (1u << size) - 1;
  IqBlock block;
  iq_->split(at, block);
  const auto groups =
      std::span(block.sub_scales).first(kIqBlock / static_cast<std::size_t>(iq_->group));
  const int largest = *std::ranges::max_element(groups);
  require_finite(block.scale * (static_cast<float>(2 * largest + 1) * unit_ * peak_));
  for (std::size_t i = 0; i < kIqBlock; i += size) {
    const std::uint32_t upper = iq_->offset ? static_cast<std::uint32_t>(block.below[i / 8])
                                            : block.signs[i / 8] >> (i % 8) & all_signs;
    row.codes.push_back(block.index[i / size] | upper << index_bits);
  }
  row.numbers.insert(row.numbers.end(), groups.begin(), groups.end());
  row.halves.push_back(element_from_float(DType::f16, block.scale));
}

// A group's byte has the scale in its low half and the minimum in the other, as our words do.
void GgufCodes::add_q2_k(Row& row, const std::byte* at) const {
  const float scale = f16_at(at + 80), minimum = f16_at(at + 82);
  for (int group = 0; group < kIqBlock / sizes_.format.group_inputs; ++group) {
    const unsigned both = byte_at(at, group);
    const float below = minimum * static_cast<float>(both >> 4);
    require_finite(below);
    require_finite(scale * static_cast<float>(3 * (both & 15)) - below);
    row.numbers.push_back(both);
  }
  for (int i = 0; i < kIqBlock; i += kQ2KTogether) {
    std::uint32_t code = 0;
    for (int n = 0; n < kQ2KTogether; ++n) code |= q2_k_number(at, i + n) << 2 * n;
    row.codes.push_back(code);
  }
  for (const int half : {80, 82})
    row.halves.push_back(static_cast<std::uint16_t>(u16_at(at + half)));
}

// As dense weights, all of which the element type has to hold.
void GgufCodes::require_finite(float weight) const {
  const std::uint16_t bits = element_from_float(sizes_.dtype, weight);
  if (!std::isfinite(element_to_float(sizes_.dtype, bits))) rows_.fail_beyond(sizes_.dtype);
}

}  // namespace vqgen
