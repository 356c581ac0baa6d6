// A compiler that only counts, and a temporary folder.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>

#include "core/files/digest.h"
#include "runtime/cache/artifact_cache.h"
#include "tests/in_folder.h"

namespace vqgen::test {

inline KernelSource some_source() {
  KernelSource source;
  source.op = "gemv";
  source.arch = "sm_90a";
  source.text = "extern \"C\" void gemv_a() {}\n";
  source.entries = {{"gemv_a", Dim3{8, 1, 1}, 128, 1024}, {"gemv_b", Dim3{}, 32, 0}};
  source.args_bytes = 64;
  return source;
}

// "Compiles" the text to its own bytes, many times over.
class CountingBackend final : public NoDevice {
 public:
  std::string_view name() const override { return "counting"; }
  Machine machine() const override { return Machine::cuda; }
  CompilerIdentity compiler(const KernelSource& source) const override {
    return {compiler_name, {"--arch=" + source.arch, "-O3"}};
  }
  CompilerIdentity opened_compiler(const KernelSource& source) const override {
    CompilerIdentity identity = compiler(source);
    if (!opened_name.empty()) identity.name = opened_name;
    return identity;
  }
  Artifact compile(const KernelSource& source) const override {
    ++compilations;
    Artifact artifact;
    for (int i = 0; i < 64; ++i) {
      for (const char c : source.text) artifact.binary.push_back(static_cast<std::byte>(c));
    }
    for (const KernelEntry& entry : source.entries) {
      artifact.kernels.push_back({entry.name, 40, 16, 8});
      if (describe) describe(source, artifact.kernels.back());
    }
    artifact.compile_ms = 12.5;
    return artifact;
  }

  bool may_compile() const override { return may; }

  mutable std::atomic<int> compilations{0};
  bool may = true;
  std::string compiler_name = "counting 1.0";
  std::string opened_name = {};  // set if the opened compiler says another
  // The compiler's identity for an entry, if it must not be the same for all.
  std::function<void(const KernelSource&, KernelResources&)> describe;
};

inline bool same(const Artifact& a, const Artifact& b) {
  return a.binary == b.binary && a.kernels == b.kernels && a.compile_ms == b.compile_ms;
}

// One kernel: its text, its key, and the artifact of its compilation.
class WithKernel : public InFolder {
 protected:
  void SetUp() override {
    InFolder::SetUp();
    source_ = some_source();
    key_ = artifact_key(source_, backend_.compiler(source_));
    artifact_ = backend_.compile(source_);
    backend_.compilations = 0;
  }

  CountingBackend backend_;
  KernelSource source_;
  ArtifactKey key_;
  Artifact artifact_;
};

// All files below the folder, relative, sorted.
inline std::vector<std::string> files_below(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_directory()) names.push_back(entry.path().lexically_relative(folder).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace vqgen::test
