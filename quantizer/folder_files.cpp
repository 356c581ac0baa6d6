#include "quantizer/folder_files.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "core/files/digest.h"
#include "core/files/files.h"

namespace vqgen {
namespace {

namespace fs = std::filesystem;

// Files of weights in any form, which are not copied; and the cache's bundle, which is bound to the
// dense model.
constexpr const char* kWeightFiles[] = {".safetensors", ".safetensors.index.json",
                                        ".bin",         ".bin.index.json",
                                        ".pt",          ".pth",
                                        ".ckpt",        ".gguf",
                                        ".h5",          ".msgpack",
                                        ".npz",         ".onnx",
                                        ".bundle"};

std::set<std::string> sources_of(const SafetensorsFile& tensors) {
  std::set<std::string> paths;
  for (const TensorInfo& info : tensors.tensors()) paths.insert(tensors.source_of(info));
  return paths;
}

// The files of the folder but config.json and `sources`.
FolderFiles list_files(const fs::path& folder, const std::set<std::string>& sources) {
  FolderFiles files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == "config.json" || sources.contains(name)) continue;
    std::error_code code;
    const bool regular = entry.is_regular_file(code);
    const bool weights =
        std::ranges::any_of(kWeightFiles, [&](const char* end) { return name.ends_with(end); });
    if (!regular || weights || name.starts_with('.') || entry.file_size() > kMostSmallFile) {
      files.left_out.push_back(name);
      continue;
    }
    files.copied.push_back(name);
    files.copied_bytes += entry.file_size();
  }
  std::ranges::sort(files.copied);
  std::ranges::sort(files.left_out);
  return files;
}

}  // namespace

FolderFiles files_beside(const fs::path& folder, const SafetensorsFile& tensors) {
  std::set<std::string> sources{fs::path(tensors.source()).filename()};
  for (const std::string& path : sources_of(tensors)) sources.insert(fs::path(path).filename());
  return list_files(folder, sources);
}

FolderFiles files_beside(const fs::path& folder) { return list_files(folder, {}); }

Json identity_of(const fs::path& path) {
  constexpr std::uint64_t kSample = 1 << 20;
  const OpenFile file(path);
  Digest digest;
  for (const std::uint64_t at : {std::uint64_t{0}, file.size() / 2, file.size()}) {
    const std::uint64_t begin = std::min(at, file.size() - std::min(file.size(), kSample));
    std::string sample(static_cast<std::size_t>(std::min(kSample, file.size() - begin)), '\0');
    file.read(begin, std::as_writable_bytes(std::span(sample)));
    digest.add(sample);
  }
  return {{"file", path.filename().string()}, {"bytes", file.size()}, {"sha256", digest.hex()}};
}

Json identities_of(const SafetensorsFile& tensors) {
  Json identities = Json::array();
  for (const std::string& path : sources_of(tensors)) identities.push_back(identity_of(path));
  return identities;
}

}  // namespace vqgen
