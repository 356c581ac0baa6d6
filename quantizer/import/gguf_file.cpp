#include "quantizer/import/gguf_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "core/error.h"
#include "quantizer/import/gguf_header.h"
#include "quantizer/safetensors.h"

namespace vqgen {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostTensors = 1 << 20;
constexpr std::uint64_t kMostKeys = 1 << 16;
constexpr std::size_t kMostName = 512;
constexpr std::uint32_t kMostAxes = 4;
constexpr std::uint64_t kMostAlignment = 1 << 20;

// "-00001-of-00003.gguf": which of how many.
struct SplitName {
  std::string stem;
  std::int64_t number = 0, count = 0;

  fs::path path(std::int64_t each) const {
    return fmt::format("{}-{:05}-of-{:05}.gguf", stem, each, count);
  }
};

std::optional<SplitName> split_name(const fs::path& path) {
  constexpr std::size_t kEnd = std::string_view("-00001-of-00003.gguf").size();
  const std::string text = path.string();
  if (text.size() <= kEnd) return {};
  const std::string_view end = std::string_view(text).substr(text.size() - kEnd);
  if (end[0] != '-' || end.substr(6, 4) != "-of-" || end.substr(15) != ".gguf") return {};
  SplitName name{text.substr(0, text.size() - kEnd)};
  const auto read = [&](std::size_t at, std::int64_t& number) {
    const auto result = std::from_chars(end.data() + at, end.data() + at + 5, number);
    return result.ec == std::errc() && result.ptr == end.data() + at + 5;
  };
  return read(1, name.number) && read(10, name.count) ? std::optional(name) : std::nullopt;
}

GgufTensor read_tensor(GgufHeader& header) {
  GgufTensor tensor;
  tensor.name = header.text("a tensor's name", kMostName);
  const auto fail = [&](const std::string& problem) {
    header.fail(fmt::format("tensor '{}': {}", tensor.name, problem));
  };
  if (tensor.name.empty()) fail("has no name; fetch the file again");
  const auto axes = header.number<std::uint32_t>();
  if (axes < 1 || axes > kMostAxes) {
    fail(fmt::format("has {} axes, and 1 to {} are read; fetch the file again", axes, kMostAxes));
  }
  std::int64_t elements = 1;
  for (std::uint32_t axis = 0; axis < axes; ++axis) {
    const auto size = header.number<std::uint64_t>();
    const bool fits = size >= 1 && size <= std::uint64_t{1} << 48;
    if (!fits || __builtin_mul_overflow(elements, static_cast<std::int64_t>(size), &elements)) {
      fail(fmt::format("has an axis of {}, which no file holds; fetch the file again", size));
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(size));
  }
  const auto type = header.number<std::uint32_t>();
  tensor.type = find_gguf_type(type);
  if (tensor.type == nullptr) {
    fail(
        fmt::format("has the unknown type {}; update vqgen, or take a file of another type", type));
  }
  if (tensor.type->decode == nullptr) {
    fail(fmt::format("is {}, which is not read; take a file of another type", tensor.type->name));
  }
  const std::int64_t blocks = tensor.shape.back() / tensor.type->block;
  if (tensor.shape.back() % tensor.type->block != 0) {
    fail(fmt::format("has rows of {} weights, and {} has blocks of {}; fetch the file again",
                     tensor.shape.back(), tensor.type->name, tensor.type->block));
  }
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(elements / tensor.shape.back() * blocks),
                             static_cast<std::uint64_t>(tensor.type->bytes), &bytes)) {
    fail(fmt::format("has shape {}, which no file holds; fetch the file again",
                     shape_text(tensor.shape)));
  }
  tensor.bytes = bytes;
  tensor.begin = header.number<std::uint64_t>();
  return tensor;
}

// Numbers that the reader of metadata may ask for are bounded by it; this is for what is placed.
std::uint64_t alignment_of(const Json& metadata, const std::string& source) {
  constexpr std::uint64_t kDefault = 32;
  const JsonCursor root(metadata, source);
  if (!root.has("general.alignment")) return kDefault;
  const JsonCursor cursor = root.at("general.alignment");
  const std::int64_t alignment = cursor.integer(0, 9e15);
  if (!std::has_single_bit(static_cast<std::uint64_t>(alignment)) ||
      static_cast<std::uint64_t>(alignment) > kMostAlignment) {
    cursor.fail(
        fmt::format("is {}, and an alignment is a power of two up to {}; fetch the file "
                    "again",
                    alignment, kMostAlignment));
  }
  return static_cast<std::uint64_t>(alignment);
}

// Each tensor within the file, aligned, and none over another.
void place_tensors(std::vector<GgufTensor>& tensors, const GgufHeader& header,
                   std::uint64_t alignment) {
  const std::uint64_t data = (header.at() + alignment - 1) / alignment * alignment;
  const std::uint64_t size = header.size() > data ? header.size() - data : 0;
  std::ranges::sort(tensors, {}, [](const GgufTensor& each) { return each.begin; });
  std::uint64_t free = 0;
  for (GgufTensor& tensor : tensors) {
    const auto fail = [&](const std::string& problem) {
      header.fail(fmt::format("tensor '{}': {}; fetch the file again", tensor.name, problem));
    };
    if (tensor.begin % alignment != 0) {
      fail(fmt::format("begins at byte {}, which the alignment {} does not divide", tensor.begin,
                       alignment));
    }
    if (tensor.begin > size || tensor.bytes > size - tensor.begin) {
      fail(fmt::format(
          "{} {} at byte {} takes {} bytes, and the file has {} bytes of data: it is "
          "cut short",
          tensor.type->name, shape_text(tensor.shape), tensor.begin, tensor.bytes, size));
    }
    if (tensor.begin < free) {
      fail(fmt::format("begins at byte {}, where the tensor before it ends at {}: they overlap",
                       tensor.begin, free));
    }
    free = tensor.begin + tensor.bytes;
    tensor.begin += data;
  }
}

}  // namespace

std::int64_t GgufTensor::rows() const {
  std::int64_t rows = 1;
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) rows *= shape[axis];
  return rows;
}

GgufFile::GgufFile(const fs::path& path) {
  if (const std::optional<SplitName> name = split_name(path); name && name->count > 1) {
    if (name->number != 1) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{}: is split {} of {}; give the first, {}", path.string(),
                              name->number, name->count, name->path(1).string()));
    }
    add_splits(path);
    return;
  }
  metadata_ = add_part(path);
  const JsonCursor root = metadata();
  if (root.has("split.count") && root.at("split.count").integer(0, 65535) > 1) {
    root.at("split.count")
        .fail(
            "is of a file in splits, whose names end in -00001-of-0000N.gguf; give them these "
            "names, and the first to vqgen");
  }
}

void GgufFile::add_splits(const fs::path& first) {
  const SplitName name = *split_name(first);
  for (std::int64_t number = 1; number <= name.count; ++number) {
    const fs::path path = name.path(number);
    std::error_code code;
    if (!fs::exists(path, code)) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{}: is not there, and the model has {} splits; fetch it",
                              path.string(), name.count));
    }
    Json metadata = add_part(path);
    const JsonCursor root(metadata, path.string());
    const std::pair<const char*, std::int64_t> told[] = {{"split.no", number - 1},
                                                         {"split.count", name.count}};
    for (const auto& [key, expected] : told) {
      const JsonCursor each = root.member(key, "; fetch the file again");
      if (const std::int64_t value = each.integer(0, 65535); value != expected) {
        each.fail(fmt::format("is {} where the file's name says {}; fetch the splits again", value,
                              expected));
      }
    }
    if (number == 1) metadata_ = std::move(metadata);
  }
  const JsonCursor all = metadata();
  if (!all.has("split.tensors.count")) return;
  const std::int64_t told = all.at("split.tensors.count").integer(0, kMostTensors);
  if (told != std::ssize(tensors_)) {
    all.at("split.tensors.count")
        .fail(
            fmt::format("is {}, and the splits hold {}; fetch them again", told, tensors_.size()));
  }
}

Json GgufFile::add_part(const fs::path& path) {
  const std::size_t number = parts_.size();
  parts_.push_back({path.string(), std::make_unique<const OpenFile>(path)});
  GgufHeader header(*parts_.back().file, parts_.back().source);
  header.begin();
  const auto count = header.count("tensors", kMostTensors);
  const auto keys = header.count("keys of metadata", kMostKeys);
  Json metadata = Json::object();
  for (std::uint64_t i = 0; i < keys; ++i) header.read_key(metadata);
  std::vector<GgufTensor> tensors;
  for (std::uint64_t i = 0; i < count; ++i) {
    tensors.push_back(read_tensor(header));
    tensors.back().part = number;
  }
  place_tensors(tensors, header, alignment_of(metadata, parts_.back().source));
  for (GgufTensor& tensor : tensors) {
    const std::string name = tensor.name;
    if (tensors_.contains(name)) {
      header.fail(fmt::format("tensor '{}': is there twice; fetch the file again", name));
    }
    tensors_[name] = std::move(tensor);
  }
  return metadata;
}

std::vector<fs::path> GgufFile::paths() const {
  std::vector<fs::path> paths;
  for (const Part& part : parts_) paths.emplace_back(part.source);
  return paths;
}

const GgufTensor* GgufFile::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void GgufFile::read_bytes(const GgufTensor& tensor, std::uint64_t offset,
                          std::span<std::byte> into) const {
  parts_[tensor.part].file->read(tensor.begin + offset, into);
}

void GgufFile::fail(const std::string& tensor, std::string_view problem) const {
  const GgufTensor* const found = find(tensor);
  throw Error(
      ErrorKind::bad_input,
      fmt::format("{}: tensor '{}': {}", found == nullptr ? source() : parts_[found->part].source,
                  tensor, problem));
}

}  // namespace vqgen
