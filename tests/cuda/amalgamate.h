// The texts of these tests as the generator would make them: the machine layer's headers inlined
// once, in order, and the kernel appended.
#pragma once

#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>

#include "core/files/files.h"
#include "core/plan/kernel_source.h"
#include "tests/cuda/bulk_copy_kernel.h"
#include "tests/cuda/cluster_kernel.h"
#include "tests/cuda/collectives_kernel.h"
#include "tests/cuda/warpgroup_kernel.h"
#include "tests/source_folder.h"

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
  const std::filesystem::path templates = source_folder() / "templates";
  std::string text;
  for (const char* header : {"machine/cuda/vq/annotations.h", "vq/types.h",
                             "vq/layout/core_matrices.h", "machine/cuda/vq/cuda_tensor.h",
                             "machine/cuda/vq/cuda_bulk.h", "machine/cuda/vq/cuda_cluster.h",
                             "machine/cuda/vq/cuda_warpgroup.h", "machine/cuda/vq/machine.cuh"}) {
    text += without_includes(read_text(templates / header));
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

// The kernels of collectives_kernel.h: one per element type, then the last block's.
inline KernelSource collectives_source(const std::string& arch) {
  std::string kernels(kCollectivesText);
  kernels += R"(
struct Args { const vq::u32* in; vq::u32* out; };
VQ_KERNEL(vq_collectives_f16, 32, Args) { vq::collectives<vq::Element::f16>(args.in, args.out); }
VQ_KERNEL(vq_collectives_bf16, 32, Args) { vq::collectives<vq::Element::bf16>(args.in, args.out); }
VQ_KERNEL(vq_last_block, 64, Args) { vq::last_block(args.in, args.out); }
)";
  KernelSource source = one_kernel(kernels, "vq_collectives_f16", arch, 32, kCollectivesSharedBytes,
                                   2 * sizeof(void*));
  source.entries.push_back({"vq_collectives_bf16", Dim3{}, 32, kCollectivesSharedBytes});
  source.entries.push_back({"vq_last_block", Dim3{kLastBlocks, 1, 1}, 64, 4});
  return source;
}

// A kernel `trial` from words to words.
inline KernelSource trial_source(std::string_view text, const std::string& arch, unsigned threads,
                                 std::int64_t shared_bytes) {
  return one_kernel("struct Args { const vq::u32* in; vq::u32* out; };\n" + std::string(text),
                    "trial", arch, threads, shared_bytes, 2 * sizeof(void*));
}

inline KernelSource bulk_source(const std::string& arch) {
  return trial_source(kBulkText, arch, kBulkThreads, kBulkSharedBytes);
}

inline KernelSource made_source(const std::string& arch) {
  return trial_source(kMadeText, arch, kMadeThreads, kBulkSharedBytes);
}

inline KernelSource cluster_source(const std::string& arch) {
  KernelSource source = trial_source(kClusterText, arch, kClusterThreads, kClusterSharedBytes);
  source.entries[0].grid = kClusterGrid;
  return source;
}

inline KernelSource group_source(const GroupProduct& product, const std::string& arch) {
  return one_kernel(std::string(kWarpgroupText) +
                        "struct Args { const vq::u32* in; vq::u32* out; };\nVQ_KERNEL(" +
                        product.name() + ", 256, Args) { " + product.call() + " }\n",
                    product.name(), arch, kGroupThreads, product.shared_bytes(), 2 * sizeof(void*));
}

}  // namespace vqgen::test
