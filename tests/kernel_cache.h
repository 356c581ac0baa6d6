// Keeps the kernels that tests compile, between tests and runs, in the folder `kernels` of the
// build tree. VQGEN_TEST_CACHE names another folder; if it is empty, nothing is kept.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "runtime/cache/artifact_cache.h"
#include "tests/forwarding_backend.h"

namespace vqgen::test {

// Above this bound the oldest kernels are removed; a whole run of all tests makes half as much.
inline constexpr std::uint64_t kKernelCacheBytes = std::uint64_t{1} << 30;

// The folder of this process's kernels: next to the folder of its program.
inline std::optional<std::filesystem::path> kernel_folder() {
  if (const char* const given = std::getenv("VQGEN_TEST_CACHE")) {
    if (*given == '\0') return std::nullopt;
    return given;
  }
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "kernels";
}

// The key is that of the product's cache: text, compiler, options with their sanitizers. A damaged
// file is a miss.
class CachingBackend final : public ForwardingBackend {
 public:
  CachingBackend(std::unique_ptr<Backend> compiling, std::filesystem::path folder)
      : ForwardingBackend(std::move(compiling)),
        cache_({.folder = std::move(folder), .max_bytes = kKernelCacheBytes}) {}
  Artifact compile(const KernelSource& source) const override {
    return compile_cached(to(), source, &cache_).artifact;
  }

 private:
  mutable ArtifactCache cache_;
};

// The backend, with its kernels kept in kernel_folder().
inline std::unique_ptr<Backend> keeping_kernels(std::unique_ptr<Backend> backend) {
  const std::optional<std::filesystem::path> folder = kernel_folder();
  if (!folder) return backend;
  return std::make_unique<CachingBackend>(std::move(backend), *folder);
}

}  // namespace vqgen::test
