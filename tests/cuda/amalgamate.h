// The texts of these tests as the generator would make them: the machine layer's headers inlined
// once, in order, and the kernel appended.
#pragma once

#include <sstream>
#include <string>
#include <string_view>

#include "core/files.h"
#include "core/kernel_source.h"

namespace vqgen::test {

inline std::string without_includes(const std::string& header) {
  std::istringstream lines(header);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("#include") && !line.starts_with("#pragma once")) text += line + '\n';
  }
  return text;
}

inline std::string amalgamate(std::string_view kernel) {
  const std::string templates = VQGEN_SOURCE_DIR "/templates/";
  std::string text;
  for (const char* header :
       {"machine/cuda/vq/annotations.h", "vq/types.h", "machine/cuda/vq/machine.cuh"}) {
    text += without_includes(read_text(templates + header));
  }
  return text + "#line 1 \"kernel.cuh\"\n" + std::string(kernel);
}

// A source of one entry, one block.
inline KernelSource one_kernel(std::string_view kernel, const std::string& name,
                               const std::string& arch, unsigned threads, std::int64_t shared_bytes,
                               std::int64_t args_bytes) {
  KernelSource source;
  source.op = "test";
  source.arch = arch;
  source.text = amalgamate(kernel);
  source.entries = {{name, Dim3{}, threads, shared_bytes}};
  source.args_bytes = args_bytes;
  return source;
}

}  // namespace vqgen::test
