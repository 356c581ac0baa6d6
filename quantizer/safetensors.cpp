#include "quantizer/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>

#include "core/error.h"
#include "core/files/files.h"
#include "core/json/json.h"
#include "quantizer/foreign.h"

namespace vqgen {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little endian");

// Requires a type other than TensorType::other.
std::int64_t type_bytes(TensorType type) {
  constexpr std::array kTypeBytes{2, 2, 4, 4, 4, 2};
  return kTypeBytes[static_cast<std::size_t>(type)];
}

// Any name in the format's spelling: which types there are grows with the format.
std::string read_dtype(const JsonCursor& cursor) {
  constexpr std::size_t kLongest = 32;
  std::string name = cursor.string();
  const auto spelt = [](unsigned char c) {
    return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (name.empty() || name.size() > kLongest || !std::all_of(name.begin(), name.end(), spelt)) {
    cursor.fail("must be the name of a type, such as F16; write the file again");
  }
  return name;
}

TensorType type_of(const std::string& dtype) {
  const auto& names = enum_names<TensorType>;
  return static_cast<TensorType>(std::find(names.begin(), names.end() - 1, dtype) - names.begin());
}

constexpr std::size_t kLengthBytes = 8;                 // of the header's length, which precedes it
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // limit of the format's own implementation
constexpr double kMaxSize = 9e15;                       // whole numbers that a double holds exactly

TensorInfo read_info(const std::string& name, const JsonCursor& entry) {
  entry.expect_object({"dtype", "shape", "data_offsets"});
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.has(key)) entry.fail(fmt::format("'{}' is missing; write the file again", key));
  }
  TensorInfo info;
  info.name = name;
  info.dtype = read_dtype(entry.at("dtype"));
  info.type = type_of(info.dtype);
  const bool sized = info.type != TensorType::other;

  const JsonCursor shape = entry.at("shape");
  if (!shape.value().is_array()) shape.fail("must be an array of sizes");
  std::int64_t bytes = sized ? type_bytes(info.type) : 1;
  for (std::size_t i = 0; i < shape.value().size(); ++i) {
    info.shape.push_back(shape.at(i).integer(0, kMaxSize));
    if (__builtin_mul_overflow(bytes, info.shape.back(), &bytes)) {
      shape.fail("the number of elements overflows 64 bits; no file holds such a tensor");
    }
  }

  const JsonCursor offsets = entry.at("data_offsets");
  if (!offsets.value().is_array() || offsets.value().size() != 2) {
    offsets.fail("must be [begin, end]");
  }
  info.begin = static_cast<std::uint64_t>(offsets.at(std::size_t{0}).integer(0, kMaxSize));
  info.end = static_cast<std::uint64_t>(offsets.at(std::size_t{1}).integer(0, kMaxSize));
  if (info.end < info.begin) {
    offsets.fail(fmt::format("{} is before {}; write the file again", info.end, info.begin));
  }
  if (sized && info.end - info.begin != static_cast<std::uint64_t>(bytes)) {
    offsets.fail(fmt::format("{} to {} is not the {} bytes of {} {}; write the file again",
                             info.begin, info.end, bytes, info.dtype, shape_text(info.shape)));
  }
  return info;
}

constexpr std::size_t kHeaderAlignment = 8;

void sort_by_name(std::vector<TensorInfo>& tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
}

}  // namespace

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

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) {
  const std::filesystem::path place = tensors_at(path);
  source_ = place.string();
  if (is_shard_index(place)) {
    open_shards(place);
  } else {
    add_file(place);
  }
}

SafetensorsFile::SafetensorsFile(std::vector<std::byte> bytes, std::string source)
    : source_(source) {
  const auto held = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  add_part({std::move(source),
            [held](std::uint64_t offset, std::span<std::byte> into) {
              std::copy_n(held->begin() + static_cast<std::ptrdiff_t>(offset), into.size(),
                          into.begin());
            }},
           held->size());
}

void SafetensorsFile::add_file(const std::filesystem::path& path) {
  const auto file = std::make_shared<const OpenFile>(path);
  add_part({path.string(),
            [file](std::uint64_t offset, std::span<std::byte> into) { file->read(offset, into); }},
           file->size());
}

void SafetensorsFile::open_shards(const std::filesystem::path& index) {
  const std::map<std::string, std::string> shard_of = read_shard_index(index);
  std::set<std::string> shards;
  for (const auto& [name, shard] : shard_of) shards.insert(shard);
  std::vector<TensorInfo> named;
  for (const std::string& shard : shards) {
    add_file(index.parent_path() / shard);
    for (TensorInfo& info : tensors_) {
      const auto place = shard_of.find(info.name);
      if (place != shard_of.end() && place->second == shard) named.push_back(std::move(info));
    }
    tensors_.clear();
  }
  metadata_.clear();  // each shard has its own
  tensors_ = std::move(named);
  sort_by_name(tensors_);
  for (const auto& [name, shard] : shard_of) {
    if (find(name) == nullptr) {
      fail(name, fmt::format("is not in {}, where the index has it; fetch both again", shard));
    }
  }
}

void SafetensorsFile::add_part(Part part, std::uint64_t size) {
  const auto fail_file = [&](const std::string& problem) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: not a whole safetensors file: {}; fetch or write it again",
                            part.source, problem));
  };
  std::string begin(static_cast<std::size_t>(std::min(size, kForeignBytes)), '\0');
  part.read(0, std::as_writable_bytes(std::span(begin)));
  refuse_foreign(begin, part.source);
  if (size < kLengthBytes) {
    fail_file(fmt::format("{} bytes are too few for a header", size));
  }
  std::uint64_t length = 0;
  static_assert(sizeof length == kLengthBytes);
  std::memcpy(&length, begin.data(), kLengthBytes);
  if (length > kMaxHeaderBytes || length > size - kLengthBytes) {
    fail_file(
        fmt::format("a header of {} bytes does not fit the {} bytes of the file", length, size));
  }
  part.data_begin = kLengthBytes + length;
  std::string text(static_cast<std::size_t>(length), '\0');
  part.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  const Json header = parse_json(text, part.source);
  const JsonCursor root(header, part.source);
  if (!header.is_object()) root.fail("the header must be an object of tensors");
  for (const auto& [name, unused] : header.items()) {
    // A name with control characters would break messages over lines.
    if (std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < ' '; })) {
      fail_file("a tensor's name holds a control character");
    }
    if (name == "__metadata__") {
      read_value(root.at(name), Rule{}, metadata_);
    } else {
      tensors_.push_back(read_info(name, root.at(name)));
      tensors_.back().part = parts_.size();
    }
  }
  sort_by_name(tensors_);
  parts_.push_back(std::move(part));
  require_whole_cover(size - parts_.back().data_begin);
}

// The data must be covered without holes or overlaps, so that each byte is some tensor's.
void SafetensorsFile::require_whole_cover(std::uint64_t data_bytes) const {
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& info : tensors_) order.push_back(&info);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
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
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: not a whole safetensors file: {} bytes after the last tensor "
                            "belong to none; fetch or write it again",
                            parts_.back().source, data_bytes - covered));
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
  const TensorInfo* const info = find(tensor);
  throw Error(ErrorKind::bad_input,
              fmt::format("{}: tensor '{}': {}",
                          info == nullptr ? source_ : parts_[info->part].source, tensor, problem));
}

void SafetensorsFile::read_bytes(const TensorInfo& tensor, std::uint64_t offset,
                                 std::span<std::byte> into) const {
  const Part& part = parts_[tensor.part];
  part.read(part.data_begin + tensor.begin + offset, into);
}

void SafetensorsFile::read_pieces(
    const TensorInfo& tensor,
    const std::function<void(std::uint64_t, std::span<const std::byte>)>& take) const {
  constexpr std::uint64_t kPiece = 1 << 22;
  const std::uint64_t size = tensor.end - tensor.begin;
  std::vector<std::byte> bytes(static_cast<std::size_t>(std::min(kPiece, size)));
  for (std::uint64_t at = 0; at < size; at += bytes.size()) {
    bytes.resize(static_cast<std::size_t>(std::min(kPiece, size - at)));
    read_bytes(tensor, at, bytes);
    take(at, bytes);
  }
}

template <class T>
std::vector<T> SafetensorsFile::read_as(std::string_view name,
                                        std::initializer_list<TensorType> types) const {
  const TensorInfo& info = at(name);
  if (std::find(types.begin(), types.end(), info.type) == types.end()) {
    std::vector<std::string_view> wanted;
    for (const TensorType type : types) wanted.push_back(enum_name(type));
    fail(name, fmt::format("is {} where {} is wanted; convert it", info.dtype,
                           fmt::join(wanted, " or ")));
  }
  std::vector<T> values(static_cast<std::size_t>(info.end - info.begin) / sizeof(T));
  read_bytes(info, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

const TensorInfo& SafetensorsFile::floats(std::string_view name) const {
  const TensorInfo& info = at(name);
  const bool known =
      info.type == TensorType::f16 || info.type == TensorType::bf16 || info.type == TensorType::f32;
  if (known) return info;
  fail(name, fmt::format("is {} where F16, BF16 or F32 is wanted; convert it", info.dtype));
}

std::vector<float> SafetensorsFile::read_floats(std::string_view name) const {
  const TensorInfo& info = floats(name);
  if (info.type == TensorType::f16 || info.type == TensorType::bf16) {
    const DType dtype = info.type == TensorType::f16 ? DType::f16 : DType::bf16;
    const std::vector<std::uint16_t> bits = read_bits16(name);
    std::vector<float> values(bits.size());
    std::transform(bits.begin(), bits.end(), values.begin(),
                   [dtype](std::uint16_t element) { return element_to_float(dtype, element); });
    return values;
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

std::vector<float> SafetensorsFile::read_finite(std::string_view name) const {
  std::vector<float> values = read_floats(name);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    fail(name, fmt::format("element {} is {}; remove such values before quantizing", i, values[i]));
  }
  return values;
}

std::string safetensors_header(std::span<const TensorInfo> tensors,
                               const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  for (const TensorInfo& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  std::string length(kLengthBytes, '\0');
  const std::uint64_t count = text.size();
  std::memcpy(length.data(), &count, kLengthBytes);
  return length + text;
}

std::vector<std::byte> serialize_safetensors(std::vector<TensorView> tensors,
                                             const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& tensor = tensors[i];
    if (i > 0 && tensors[i - 1].name == tensor.name) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("tensor '{}' would be written twice; rename one", tensor.name));
    }
    const std::int64_t elements = TensorInfo{"", tensor.type, "", tensor.shape}.elements();
    if (static_cast<std::int64_t>(tensor.bytes.size()) != elements * type_bytes(tensor.type)) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("tensor '{}': {} bytes are not {} {}; give the shape of the data",
                              tensor.name, tensor.bytes.size(), enum_name(tensor.type),
                              shape_text(tensor.shape)));
    }
  }

  std::vector<TensorInfo> placed;
  std::uint64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    const std::uint64_t end = offset + tensor.bytes.size();
    placed.push_back(
        {tensor.name, tensor.type, std::string(enum_name(tensor.type)), tensor.shape, offset, end});
    offset = end;
  }
  const std::string header = safetensors_header(placed, metadata);
  std::vector<std::byte> bytes(header.size() + static_cast<std::size_t>(offset));
  std::memcpy(bytes.data(), header.data(), header.size());
  std::byte* place = bytes.data() + header.size();
  for (const TensorView& tensor : tensors) {
    place = std::copy(tensor.bytes.begin(), tensor.bytes.end(), place);
  }
  return bytes;
}

}  // namespace vqgen
