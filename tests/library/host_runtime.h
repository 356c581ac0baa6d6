// The host backend's runtime for the tests of launches, and ops that it prepared.
#pragma once

#include <memory>

#include "tests/kernel_cache.h"
#include "tests/library/trials.h"

namespace vqgen::library::test {

// One runtime for all tests, which keeps its kernels between runs.
inline vqgen_runtime* host() {
  static const std::unique_ptr<vqgen_runtime, decltype(&vqgen_runtime_destroy)> runtime(
      [] {
        vqgen_options options;
        vqgen_options_init(&options);
        options.backend = VQGEN_HOST;
        options.threads = 2;
        const std::string folder = vqgen::test::kernel_folder().value_or("").string();
        options.cache_dir = folder.c_str();
        vqgen_runtime* made = nullptr;
        EXPECT_EQ(vqgen_runtime_create(&options, &made), VQGEN_OK) << vqgen_last_error();
        return made;
      }(),
      &vqgen_runtime_destroy);
  return runtime.get();
}

struct OwnedOp {
  explicit OwnedOp(const Json& config) : op(prepared(host(), config)) {}
  OwnedOp(const OwnedOp&) = delete;
  OwnedOp& operator=(const OwnedOp&) = delete;
  ~OwnedOp() { vqgen_op_release(op); }
  vqgen_op* op;
};

}  // namespace vqgen::library::test
