// The safetensors file format: 8 bytes header length (little endian), a JSON header, tensor data.
// The reader believes nothing: the header is parsed strictly, and every tensor's shape, type and
// place are checked against each other and the file's size before a byte of data is touched. A
// checkpoint in shards is read as if it were one file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/format/element.h"

namespace vqgen {

// The element types that vqgen reads, and all others, whose tensors are refused where they are
// read.
enum class TensorType { f16, bf16, f32, u32, i32, u16, other };
template <>
inline constexpr auto enum_names<TensorType> =
    std::array{"F16", "BF16", "F32", "U32", "I32", "U16", "other"};

TensorType tensor_type(DType type);

struct TensorInfo {
  std::string name;
  TensorType type = TensorType::f32;
  std::string dtype;  // the type as the file spells it
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // bytes from the start of its file's data
  std::uint64_t end = 0;
  std::size_t part = 0;  // which of the files that are read as one
  std::int64_t elements() const;
};

// "[2, 2048, 128]", for messages.
std::string shape_text(std::span<const std::int64_t> shape);

// A safetensors file, or several, whose headers are read and judged, and whose tensors are read
// when they are asked for. Immutable, so safe to share between threads. All errors are
// Error(bad_input) that name file, tensor, problem and remedy.
class SafetensorsFile {
 public:
  // A file; an index of shards (model.safetensors.index.json), whose tensors are those that it
  // names; or a folder with one index, or else with one file.
  explicit SafetensorsFile(const std::filesystem::path& path);
  // Reads from bytes; `source` stands for the path in messages.
  SafetensorsFile(std::vector<std::byte> bytes, std::string source);

  const std::string& source() const { return source_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Sorted by name.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;
  // find(), but a missing tensor is an Error that names some of those present.
  const TensorInfo& at(std::string_view name) const;

  // at() for a tensor that read_floats() can read; else an Error that names its type.
  const TensorInfo& floats(std::string_view name) const;

  // The first few names and how many more, for messages.
  std::string some_names() const;

  // F16, BF16 and F32 tensors, widened without loss.
  std::vector<float> read_floats(std::string_view name) const;
  // read_floats(); Error(bad_input) with the index of the first NaN or infinity.
  std::vector<float> read_finite(std::string_view name) const;
  // The 16 raw bits of F16, BF16 and U16 tensors.
  std::vector<std::uint16_t> read_bits16(std::string_view name) const;
  std::vector<std::uint32_t> read_u32(std::string_view name) const;
  std::vector<std::int32_t> read_i32(std::string_view name) const;

  // Some bytes of a tensor of any type, from `offset` in it on, which are there.
  void read_bytes(const TensorInfo& tensor, std::uint64_t offset, std::span<std::byte> into) const;
  // Calls take(offset, bytes) for all bytes of a tensor of any type, some megabytes at a time.
  void read_pieces(
      const TensorInfo& tensor,
      const std::function<void(std::uint64_t, std::span<const std::byte>)>& take) const;
  // The file that holds the tensor: one of the shards.
  const std::string& source_of(const TensorInfo& tensor) const {
    return parts_[tensor.part].source;
  }

  // Error(bad_input) about one tensor of this file: "FILE: tensor NAME: problem".
  [[noreturn]] void fail(std::string_view tensor, std::string_view problem) const;

 private:
  // Fills the span with the file's bytes from an offset on, which are there.
  using ReadBytes = std::function<void(std::uint64_t, std::span<std::byte>)>;

  struct Part {
    std::string source;
    ReadBytes read;
    std::uint64_t data_begin = 0;
  };

  void add_file(const std::filesystem::path& path);
  // If two shards have a name, the index decides.
  void open_shards(const std::filesystem::path& index);
  // Judges the header of a file and takes its tensors, beside none of another.
  void add_part(Part part, std::uint64_t size);
  void require_whole_cover(std::uint64_t data_bytes) const;
  // The elements of a tensor that must have one of `types`, all of sizeof(T) bytes.
  template <class T>
  std::vector<T> read_as(std::string_view name, std::initializer_list<TensorType> types) const;

  std::string source_;
  std::vector<Part> parts_;
  std::map<std::string, std::string> metadata_;
  std::vector<TensorInfo> tensors_;
};

// A tensor to be written; the bytes stay the caller's and must outlive the call.
struct TensorView {
  std::string name;
  TensorType type = TensorType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

template <class T>
TensorView tensor_view(std::string name, TensorType type, std::vector<std::int64_t> shape,
                       const std::vector<T>& values) {
  return {std::move(name), type, std::move(shape), std::as_bytes(std::span(values))};
}

// What a file begins with: the length of the header, and the header, padded so that the data behind
// it is 8-byte aligned. The tensors' begins and ends cover the data without holes.
std::string safetensors_header(std::span<const TensorInfo> tensors,
                               const std::map<std::string, std::string>& metadata);

// The file's bytes: names sorted, data 8-byte aligned by header padding, and without holes. Equal
// tensors and metadata give equal bytes. Throws Error(bad_input) if a name occurs twice or a view's
// size differs from its shape's.
std::vector<std::byte> serialize_safetensors(std::vector<TensorView> tensors,
                                             const std::map<std::string, std::string>& metadata);

}  // namespace vqgen
