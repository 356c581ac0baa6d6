#include "quantizer/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <memory>

#include "core/error.h"
#include "core/files/files.h"
#include "core/json/json.h"

namespace vqgen {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little endian");

struct TypeFacts {
  const char* name;
  std::int64_t bytes;
};
constexpr std::array kTypes{TypeFacts{"F16", 2},  TypeFacts{"BF16", 2},    TypeFacts{"F32", 4},
                            TypeFacts{"U32", 4},  TypeFacts{"I32", 4},     TypeFacts{"U16", 2},
                            TypeFacts{"U8", 1},   TypeFacts{"I8", 1},      TypeFacts{"I16", 2},
                            TypeFacts{"U64", 8},  TypeFacts{"I64", 8},     TypeFacts{"F64", 8},
                            TypeFacts{"BOOL", 1}, TypeFacts{"F8_E4M3", 1}, TypeFacts{"F8_E5M2", 1}};
constexpr auto kTypeNames = [] {
  std::array<const char*, kTypes.size()> names{};
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kTypes[i].name;
  return names;
}();

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // as the format's own implementation
constexpr double kMaxSize = 9e15;                       // whole numbers that a double holds exactly

// Such names would break messages over lines.
bool has_control_character(std::string_view name) {
  return std::any_of(name.begin(), name.end(),
                     [](char c) { return static_cast<unsigned char>(c) < ' '; });
}

TensorInfo read_info(const std::string& name, const JsonCursor& entry) {
  entry.expect_object({"dtype", "shape", "data_offsets"});
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.has(key)) entry.fail(fmt::format("'{}' is missing; write the file again", key));
  }
  TensorInfo info;
  info.name = name;
  info.type = static_cast<TensorType>(entry.at("dtype").choice(kTypeNames));

  const JsonCursor shape = entry.at("shape");
  if (!shape.value().is_array()) shape.fail("must be an array of sizes");
  std::int64_t bytes = type_bytes(info.type);
  for (std::size_t i = 0; i < shape.value().size(); ++i) {
    info.shape.push_back(shape.at(i).integer(0, kMaxSize));
    if (__builtin_mul_overflow(bytes, info.shape.back(), &bytes)) {
      shape.fail("the product of the sizes overflows; no file holds such a tensor");
    }
  }

  const JsonCursor offsets = entry.at("data_offsets");
  if (!offsets.value().is_array() || offsets.value().size() != 2) {
    offsets.fail("must be [begin, end]");
  }
  info.begin = static_cast<std::uint64_t>(offsets.at(std::size_t{0}).integer(0, kMaxSize));
  info.end = static_cast<std::uint64_t>(offsets.at(std::size_t{1}).integer(0, kMaxSize));
  if (info.end < info.begin || info.end - info.begin != static_cast<std::uint64_t>(bytes)) {
    offsets.fail(fmt::format("{} to {} is not the {} bytes of {} {}; write the file again",
                             info.begin, info.end, bytes, type_name(info.type),
                             shape_text(info.shape)));
  }
  return info;
}

}  // namespace

std::string_view type_name(TensorType type) { return kTypes[static_cast<std::size_t>(type)].name; }
std::int64_t type_bytes(TensorType type) { return kTypes[static_cast<std::size_t>(type)].bytes; }
TensorType tensor_type(DType type) {
  return type == DType::f16 ? TensorType::f16 : TensorType::bf16;
}

std::int64_t TensorInfo::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : source_(path.string()) {
  const auto file = std::make_shared<const OpenFile>(path);
  read_ = [file](std::uint64_t offset, std::span<std::byte> into) { file->read(offset, into); };
  parse_header(file->size());
}

SafetensorsFile::SafetensorsFile(std::vector<std::byte> bytes, std::string source)
    : source_(std::move(source)) {
  const auto held = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  read_ = [held](std::uint64_t offset, std::span<std::byte> into) {
    std::copy_n(held->begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
  };
  parse_header(held->size());
}

void SafetensorsFile::parse_header(std::uint64_t size) {
  const auto fail_file = [&](const std::string& problem) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: not a whole safetensors file: {}; fetch or write it again",
                            source_, problem));
  };
  if (size < kSafetensorsLengthBytes) {
    fail_file(fmt::format("{} bytes are too few for a header", size));
  }
  std::uint64_t length = 0;
  static_assert(sizeof length == kSafetensorsLengthBytes);
  read_(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > kMaxHeaderBytes || length > size - kSafetensorsLengthBytes) {
    fail_file(
        fmt::format("a header of {} bytes does not fit the {} bytes of the file", length, size));
  }
  data_begin_ = kSafetensorsLengthBytes + length;
  std::string text(static_cast<std::size_t>(length), '\0');
  read_(kSafetensorsLengthBytes, std::as_writable_bytes(std::span(text)));
  const Json header = parse_json(text, source_);
  const JsonCursor root(header, source_);
  if (!header.is_object()) root.fail("the header must be an object of tensors");
  for (const auto& [name, unused] : header.items()) {
    if (has_control_character(name)) fail_file("a tensor's name holds a control character");
    if (name == "__metadata__") {
      read_value(root.at(name), Rule{}, metadata_);
    } else {
      tensors_.push_back(read_info(name, root.at(name)));
    }
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });

  // The data must be covered without holes or overlaps, so that each byte is some tensor's.
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& info : tensors_) order.push_back(&info);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  const std::uint64_t data_bytes = size - data_begin_;
  std::uint64_t covered = 0;
  for (const TensorInfo* info : order) {
    if (info->end > data_bytes) {
      fail(info->name, fmt::format("ends at byte {} of {} bytes of data; the file is cut short",
                                   info->end, data_bytes));
    }
    if (info->begin != covered) {
      fail(info->name,
           fmt::format("begins at byte {} where the tensor before it ends at {}: {}; "
                       "write the file again",
                       info->begin, covered, info->begin < covered ? "they overlap" : "a hole"));
    }
    covered = info->end;
  }
  if (covered != data_bytes) {
    fail_file(fmt::format("{} bytes after the last tensor belong to none", data_bytes - covered));
  }
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto place = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const TensorInfo& info, std::string_view key) { return info.name < key; });
  return place != tensors_.end() && place->name == name ? &*place : nullptr;
}

const TensorInfo& SafetensorsFile::at(std::string_view name) const {
  if (const TensorInfo* info = find(name)) return *info;
  fail(name, fmt::format("is not there; the file has {}", some_names()));
}

std::string SafetensorsFile::some_names() const {
  constexpr std::size_t kNamed = 8;
  std::string names = tensors_.empty() ? "none" : "";
  for (std::size_t i = 0; i < std::min(kNamed, tensors_.size()); ++i) {
    names += (i > 0 ? ", " : "") + tensors_[i].name;
  }
  if (tensors_.size() > kNamed) names += fmt::format(" and {} more", tensors_.size() - kNamed);
  return names;
}

void SafetensorsFile::fail(std::string_view tensor, std::string_view problem) const {
  throw Error(ErrorKind::bad_input, fmt::format("{}: tensor '{}': {}", source_, tensor, problem));
}

template <class T>
std::vector<T> SafetensorsFile::read_as(std::string_view name,
                                        std::initializer_list<TensorType> types) const {
  const TensorInfo& info = at(name);
  if (std::find(types.begin(), types.end(), info.type) == types.end()) {
    std::vector<std::string_view> wanted;
    for (const TensorType type : types) wanted.push_back(type_name(type));
    fail(name, fmt::format("is {} where {} is wanted; convert it", type_name(info.type),
                           fmt::join(wanted, " or ")));
  }
  std::vector<T> values(static_cast<std::size_t>(info.end - info.begin) / sizeof(T));
  read_(data_begin_ + info.begin, std::as_writable_bytes(std::span(values)));
  return values;
}

std::vector<float> SafetensorsFile::read_floats(std::string_view name) const {
  const TensorInfo& info = at(name);
  if (info.type == TensorType::f16 || info.type == TensorType::bf16) {
    const DType dtype = info.type == TensorType::f16 ? DType::f16 : DType::bf16;
    const std::vector<std::uint16_t> bits = read_bits16(name);
    std::vector<float> values(bits.size());
    std::transform(bits.begin(), bits.end(), values.begin(),
                   [dtype](std::uint16_t element) { return element_to_float(dtype, element); });
    return values;
  }
  if (info.type != TensorType::f32) {
    fail(name,
         fmt::format("is {} where F16, BF16 or F32 is wanted; convert it", type_name(info.type)));
  }
  return read_as<float>(name, {TensorType::f32});
}

std::vector<std::uint16_t> SafetensorsFile::read_bits16(std::string_view name) const {
  return read_as<std::uint16_t>(name, {TensorType::f16, TensorType::bf16, TensorType::u16});
}

std::vector<std::uint32_t> SafetensorsFile::read_u32(std::string_view name) const {
  return read_as<std::uint32_t>(name, {TensorType::u32});
}

std::vector<std::int32_t> SafetensorsFile::read_i32(std::string_view name) const {
  return read_as<std::int32_t>(name, {TensorType::i32});
}

void require_finite(std::span<const float> values, std::string_view source,
                    std::string_view tensor) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: tensor '{}': element {} is {}; remove such values before "
                            "quantizing",
                            source, tensor, i, values[i]));
  }
}

}  // namespace vqgen
