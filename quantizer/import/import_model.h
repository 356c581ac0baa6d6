// Turns a checkpoint of another tool into a model folder of vqgen (quantizer/model_folder.h), or, a
// GGUF file without codes that a kernel reads, into one of dense 16-bit weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/format/element.h"

namespace vqgen {

// Tensors of one type, or linear layers of one method, and what they become.
struct ImportedKind {
  std::string from;              // "aqlm 2x8", "F16"
  std::string to;                // "d8b8x2", "F16"
  const char* unit = "tensors";  // or "linear layers": what is counted
  std::size_t count = 0;
  std::uint64_t bytes_before = 0;
  std::uint64_t bytes_after = 0;
};

struct ImportReport {
  std::vector<ImportedKind> kinds;    // in the order of the first of each
  std::vector<std::string> left_out;  // files and folders that are not copied
  std::vector<std::string> notes;     // what else is not carried over, and how to get it
};

struct ImportRequest {
  std::filesystem::path source;
  std::filesystem::path out;
  // These three go with GGUF files: a folder with config.json and tokenizer of the unquantized
  // model, or empty; the type of the weights, by default bf16 if some of the file are, else f16;
  // and whether layers whose codes a kernel reads become dense too.
  std::filesystem::path like = {};
  std::optional<DType> dtype = {};
  bool dense = false;
  // Called before the first write. May be empty.
  std::function<void(const ImportReport& report)> judged = {};
  // Called with the share that is done, 0 to 1, and the tensor that is next. May be empty.
  std::function<void(double share, const std::string& tensor)> progress = {};
};

// Judges the headers of all tensors, the config and the disk before it writes. Holds some megabytes
// of a tensor at a time, and its codebooks. A run that was killed leaves OUT.partial; an equal
// request begins anew and ends with the bytes of a run that was not. Error(bad_input) on bad
// checkpoints, Error(infeasible) if no kernel reads the result; neither leaves a file.
ImportReport import_model(const ImportRequest& request);

}  // namespace vqgen
