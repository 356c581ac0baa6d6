// Compiles and runs one case on a backend.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/gpu/gpu_spec.h"
#include "runtime/backend/host/host_backend.h"
#include "runtime/execute.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/verify/compare.h"
#include "tests/sweep/cases.h"
#include "tests/thirds.h"

namespace vqgen::test {

// The backend that the sweep runs on: VQGEN_TEST_BACKEND=cuda asks for a GPU, race for the host
// with its race checker, else the host. Null where a GPU is asked for and there is none. On the
// host, lanes run forward, in reverse or at random, by `number`.
Backend* sweep_backend(std::size_t number = 0);

// A host backend that compiles without optimisation and keeps its kernels (tests/kernel_cache.h).
std::unique_ptr<Backend> test_host(HostOptions options);

// A fixture of tests on sweep_backend().
template <class Base = testing::Test>
class SweepTest : public Base {
 protected:
  void SetUp() override {
    if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
  }
};

// The GPU that plans are made for: the backend's device where it is a GPU, else an H200.
GpuSpec sweep_gpu();

// Compiled and loaded, ready to run again and again.
class Kernel {
 public:
  Kernel(Backend& backend, const Problem& problem, const Plan& plan, const GpuSpec& gpu);
  Kernel(Backend& backend, const Problem& problem, const Plan& plan, KernelSource source);
  AttentionOutput run(const AttentionData& data, Misalignment misalignment = {});
  AppendResult run(const AppendData& data, Misalignment misalignment = {});
  DequantizeOutput run_dequantize(const AttentionData& data, Misalignment misalignment = {});
  AttentionOutput run(const MergeData& data, Misalignment misalignment = {});
  ScalarResult run(const ScalarData& data, Misalignment misalignment = {});
  std::vector<std::uint16_t> run(const LinearData& data, Misalignment misalignment = {});
  const KernelSource& source() const { return source_; }
  // All entries in order, with these arguments.
  void launch(std::span<const std::byte> args) { launch_all(backend_, *loaded_, source_, args); }

 private:
  Backend& backend_;
  Problem problem_;
  Plan plan_;
  KernelSource source_;
  std::unique_ptr<LoadedKernel> loaded_;
};

// Runs the case and judges it by the reference; an empty string where it is right, else what is
// not.
std::string failure_of(const SweepCase& sweep_case, Backend& backend, const GpuSpec& gpu);

// What the reference gives, for is_right().
AttentionResult reference_of(const AttentionDecode& op, const AttentionData& data);

// Whether `output` is `reference` within the element type's tolerances.
testing::AssertionResult is_right(const AttentionResult& reference, const AttentionOutput& output,
                                  DType dtype);
testing::AssertionResult is_right(const std::vector<double>& reference,
                                  const std::vector<std::uint16_t>& y, DType dtype);

// A name in words as that of a test: "fragments, last block" becomes fragments__last_block.
std::string test_name(std::string_view words);

// The kernel with the first `place` of its text replaced; a failure of the test where it has none.
KernelSource with_fault(KernelSource right, std::string_view place, std::string_view instead);

// Whether a seeded fault is found: by `right`, which runs the kernel that has it and judges the
// result, or by the race checker. Other errors go on.
bool fault_is_found(const std::function<bool()>& right);

// A place of the text of `right`, and what a wrong kernel has there.
struct Fault {
  const char* place;
  const char* instead;
};

// Each kernel of the problem and plan that has one of the faults, a third of them in the short run,
// is wrong by `right`, or has a race.
void expect_faults_found(const Problem& problem, const Plan& plan, std::span<const Fault> faults,
                         const std::function<bool(Kernel& faulty)>& right);

// Changes each word of the codes of tokens that are past their sequence's length or raw.
void change_unread_codes(AttentionData& data, void (*change)(std::uint32_t& word));

void expect_same_bits(const AttentionOutput& a, const AttentionOutput& b);

}  // namespace vqgen::test
