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

// The backend of the sweep: VQGEN_TEST_BACKEND=cuda asks for a GPU, race for the host with its race
// checker, otherwise the host. Null if a GPU is asked for and there is none. `number` sets the
// host's lane order: forward, reverse or random.
Backend* sweep_backend(std::size_t number = 0);

// A host backend that compiles without optimisation and keeps its kernels (tests/kernel_cache.h).
std::unique_ptr<Backend> test_host(HostOptions options);

// A fixture for tests on sweep_backend().
template <class Base = testing::Test>
class SweepTest : public Base {
 protected:
  void SetUp() override {
    if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
  }
};

// The GPU for which plans are made: the backend's if it is a GPU, else an H200.
GpuSpec sweep_gpu();

// A compiled and loaded kernel, which can run repeatedly.
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
  std::vector<std::uint16_t> run(const WeightRowsData& data, Misalignment misalignment = {});
  const KernelSource& source() const { return source_; }
  // Launches all entries in order with these arguments.
  void launch(std::span<const std::byte> args) { launch_all(backend_, *loaded_, source_, args); }

 private:
  Backend& backend_;
  Problem problem_;
  Plan plan_;
  KernelSource source_;
  std::unique_ptr<LoadedKernel> loaded_;
};

// Runs the case and judges it by the reference; returns what is wrong, or "" if it is right.
std::string failure_of(const SweepCase& sweep_case, Backend& backend, const GpuSpec& gpu);

// The reference result for is_right().
AttentionResult reference_of(const AttentionDecode& op, const AttentionData& data);

// True if `output` is `reference` within the element type's tolerances.
testing::AssertionResult is_right(const AttentionResult& reference, const AttentionOutput& output,
                                  DType dtype);
testing::AssertionResult is_right(const std::vector<double>& reference,
                                  const std::vector<std::uint16_t>& y, DType dtype);

// A test name from words: "fragments, last block" becomes fragments__last_block.
std::string test_name(std::string_view words);

// The kernel with the first `place` of its text replaced; fails the test if the text lacks it.
KernelSource with_fault(KernelSource right, std::string_view place, std::string_view instead);

// True if a seeded fault is found: by `right`, which runs the faulty kernel and judges the result,
// or by the race checker. Other errors propagate.
bool fault_is_found(const std::function<bool()>& right);

// A place in the text of the right kernel, and its replacement in a wrong one.
struct Fault {
  const char* place;
  const char* instead;
};

// Expects each faulty kernel (a third of them in the short run) to be wrong by `right`, or to have
// a race.
void expect_faults_found(const Problem& problem, const Plan& plan, std::span<const Fault> faults,
                         const std::function<bool(Kernel& faulty)>& right);

// Changes each word of the codes of tokens that are raw or past their sequence's length.
void change_unread_codes(AttentionData& data, void (*change)(std::uint32_t& word));

void expect_same_bits(const AttentionOutput& a, const AttentionOutput& b);

}  // namespace vqgen::test
