// A compiler that only counts, and a folder that goes away.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>

#include "core/digest.h"
#include "runtime/backend/backend.h"
#include "runtime/cache/artifact_cache.h"

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
class CountingBackend final : public Backend {
 public:
  std::string_view name() const override { return "counting"; }
  Machine machine() const override { return Machine::cuda; }
  std::optional<GpuSpec> device() const override { return std::nullopt; }
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
  std::unique_ptr<LoadedKernel> load(const Artifact&, const KernelSource&) override { return {}; }
  void* allocate(std::size_t) override { return nullptr; }
  void release(void*) noexcept override {}
  void upload(void*, std::span<const std::byte>) override {}
  void download(std::span<std::byte>, const void*) override {}
  std::optional<int> resident_blocks(LoadedKernel&, const KernelSource&,
                                     std::size_t) const override {
    return std::nullopt;
  }
  void launch(LoadedKernel&, const KernelSource&, std::size_t,
              std::span<const std::byte>) override {}
  void synchronize() override {}
  std::vector<double> time_us(std::span<const Launch>, int) override { return {}; }

  bool may_compile() const override { return may; }

  mutable std::atomic<int> compilations{0};
  bool may = true;
  std::string compiler_name = "counting 1.0";
  std::string opened_name = {};  // where the compiler, once opened, says another
  // What the compiler says of an entry, where that is not to be the same for all.
  std::function<void(const KernelSource&, KernelResources&)> describe;
};

inline bool same(const Artifact& a, const Artifact& b) {
  return a.binary == b.binary && a.kernels == b.kernels && a.compile_ms == b.compile_ms;
}

class InFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name =
        (std::filesystem::path(::testing::TempDir()) / "vqgen_cache_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};

// One kernel: its text, its key, and what its compilation gives.
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
