#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/files/files.h"
#include "core/json/json.h"
#include "quantizer/safetensors.h"

namespace vqgen {
namespace {

constexpr std::size_t kHeaderAlignment = 8;

void require_whole(const std::vector<TensorView>& sorted) {
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const TensorView& tensor = sorted[i];
    if (i > 0 && sorted[i - 1].name == tensor.name) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("tensor '{}' would be written twice; rename one", tensor.name));
    }
    TensorInfo info{tensor.name, tensor.type, tensor.shape};
    if (static_cast<std::int64_t>(tensor.bytes.size()) !=
        info.elements() * type_bytes(tensor.type)) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("tensor '{}': {} bytes are not {} {}; give the shape of the data",
                              tensor.name, tensor.bytes.size(), type_name(tensor.type),
                              shape_text(tensor.shape)));
    }
  }
}

}  // namespace

std::vector<std::byte> serialize_safetensors(std::vector<TensorView> tensors,
                                             const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  require_whole(tensors);

  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    const std::uint64_t end = offset + tensor.bytes.size();
    header[tensor.name] = {{"dtype", type_name(tensor.type)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');

  std::vector<std::byte> bytes(kSafetensorsLengthBytes + text.size() +
                               static_cast<std::size_t>(offset));
  const std::uint64_t length = text.size();
  std::memcpy(bytes.data(), &length, kSafetensorsLengthBytes);
  std::memcpy(bytes.data() + kSafetensorsLengthBytes, text.data(), text.size());
  std::byte* place = bytes.data() + kSafetensorsLengthBytes + text.size();
  for (const TensorView& tensor : tensors) {
    place = std::copy(tensor.bytes.begin(), tensor.bytes.end(), place);
  }
  return bytes;
}

void write_safetensors(const std::filesystem::path& path, std::vector<TensorView> tensors,
                       const std::map<std::string, std::string>& metadata) {
  publish_file(path, serialize_safetensors(std::move(tensors), metadata));
}

}  // namespace vqgen
