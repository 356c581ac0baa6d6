// What a checkpoint becomes, once its headers are judged; internal to import_model.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/json/json.h"
#include "quantizer/folder_files.h"
#include "quantizer/import/import_model.h"
#include "quantizer/safetensors.h"

namespace vqgen {

// Takes bytes of a tensor, from an offset in it on.
using TakeBytes = std::function<void(std::uint64_t, std::span<const std::byte>)>;

struct ImportedTensor {
  TensorInfo info;  // as it will be: `end` is its bytes, `part` its shard
  std::function<void(const TakeBytes&)> write;
};

struct ImportPlan {
  std::vector<ImportedTensor> tensors;
  std::string config;                // text of config.json
  std::filesystem::path files_from;  // the folder of `files`
  FolderFiles files;
  Json arguments;  // what the bytes depend on
  std::vector<ImportedKind> kinds;
  std::vector<std::string> notes;

  // Adds one to what it is counted with.
  void count(const ImportedKind& one);
};

}  // namespace vqgen
