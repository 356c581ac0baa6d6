// GGUF files, versions 2 and 3: "GGUF", version, counts, metadata, headers of tensors, data. The
// reader believes nothing: each length, type, shape and place is judged against the file's size
// before a byte of data is touched. A model in splits (NAME-00001-of-00003.gguf) is read as if it
// were one file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/files.h"
#include "core/json/json.h"
#include "quantizer/import/dequantize.h"

namespace vqgen {

struct GgufTensor {
  std::string name;
  const GgufType* type = nullptr;   // one that is decoded
  std::vector<std::int64_t> shape;  // the outermost first, as safetensors has it
  std::uint64_t begin = 0;          // in its file
  std::uint64_t bytes = 0;
  std::size_t part = 0;  // which of the splits

  std::int64_t rows() const;  // of shape.back() weights
  std::uint64_t row_bytes() const { return bytes / static_cast<std::uint64_t>(rows()); }
};

// Immutable. All errors are Error(bad_input) that name file, tensor or key, problem and remedy.
class GgufFile {
 public:
  // A file, or the first of the splits of one.
  explicit GgufFile(const std::filesystem::path& path);

  const std::string& source() const { return parts_.front().source; }
  std::vector<std::filesystem::path> paths() const;
  // Numbers, booleans and texts by their keys; null in the place of arrays.
  JsonCursor metadata() const { return {metadata_, source()}; }
  // The tensors of all parts, by name.
  const std::map<std::string, GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find(const std::string& name) const;

  // Some bytes of a tensor, from `offset` in it on, which are there.
  void read_bytes(const GgufTensor& tensor, std::uint64_t offset, std::span<std::byte> into) const;
  [[noreturn]] void fail(const std::string& tensor, std::string_view problem) const;

 private:
  struct Part {
    std::string source;
    std::unique_ptr<const OpenFile> file;
  };

  // Judges one file, takes its tensors, and returns its metadata.
  Json add_part(const std::filesystem::path& path);
  void add_splits(const std::filesystem::path& first);

  std::vector<Part> parts_;
  Json metadata_ = Json::object();
  std::map<std::string, GgufTensor> tensors_;
};

}  // namespace vqgen
