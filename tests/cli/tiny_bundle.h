// A small KV cache and a small matrix, their configs, and the bundles that vqgen makes of them.
#pragma once

#include "tests/cli/tool.h"

namespace vqgen {

// Configs of both ops that fit the bundles below.
Json tiny_attention();
Json tiny_gemv();

// The tensors in one safetensors file: layer0.k and .v [2, 128, 64], layer0.q [4, 3, 64], f16;
// w [64, 128] and x [2, 128], f32.
std::string write_tiny_tensors(const Folder& folder);

// Runs vqgen quantize with the formats of the configs, which exits with 0 and writes `out`.
Arguments quantize_tiny_cache(const std::string& input, const std::string& out);
Arguments quantize_tiny_matrix(const std::string& input, const std::string& out);

// Tests of this fixture are skipped without a vqgen that can train and a host compiler.
class TinyBundle : public testing::Test {
 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite();
  void SetUp() override;

  // `vqgen run CONFIG --data BUNDLE --backend host`; the config is written to `folder`.
  Arguments run_arguments(const Json& config, const std::string& bundle) const;

  static const std::string& cache_bundle() { return files_->cache; }
  static const std::string& matrix_bundle() { return files_->matrix; }
  static const std::string& tensors() { return files_->tensors; }

  Folder folder;

 private:
  struct Files {
    Folder folder;
    std::string tensors, cache, matrix, why_not;
  };
  static Files* files_;
};

}  // namespace vqgen
