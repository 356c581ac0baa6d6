// The cache of the tests' kernels (tests/kernel_cache.h): a run with it equals one without, and a
// damaged file is compiled again.
#include "tests/kernel_cache.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/profiles.h"
#include "runtime/backend/host/host_backend.h"
#include "tests/in_folder.h"
#include "tests/sweep/cases.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

// Counts what it compiles.
class CountingBackend final : public ForwardingBackend {
 public:
  CountingBackend(HostOptions options, int& count)
      : ForwardingBackend(make_host_backend(std::move(options))), count_(count) {}
  Artifact compile(const KernelSource& source) const override {
    ++count_;
    return ForwardingBackend::compile(source);
  }

 private:
  int& count_;
};

class KernelCache : public InFolder {
 protected:
  // The bits of a GEMM in a process that has just begun, and the number of its compilations.
  std::pair<std::vector<std::uint16_t>, int> run(bool cached, bool check_races = false) {
    Gemv op;
    op.shape = {.rows = 2, .out_features = 40, .in_features = 512};
    op.weights = {.vector_size = 8, .index_bits = 6, .scope = Scope::tensor};
    const auto plan = rules_plan<LinearSimt>(op, find_gpu("h200"));
    int count = 0;
    std::unique_ptr<Backend> backend = std::make_unique<CountingBackend>(
        HostOptions{.check_races = check_races, .optimize = false}, count);
    if (cached) backend = std::make_unique<CachingBackend>(std::move(backend), folder_);
    Kernel kernel(*backend, op, plan, find_gpu("h200"));
    const std::vector<std::uint16_t> y = kernel.run(make_linear_data(op, HardInput{.seed = 3}));
    return {y, count};
  }
};

TEST_F(KernelCache, GivesTheBitsOfARunWithoutIt) {
  const auto [right, compiled] = run(false);
  EXPECT_EQ(compiled, 1);
  for (const int expected : {1, 0}) {
    const auto [y, count] = run(true);
    EXPECT_EQ(y, right);
    EXPECT_EQ(count, expected);
  }
  // Other options give another kernel.
  EXPECT_EQ(run(true, true), std::pair(right, 1));
  EXPECT_EQ(run(true, true), std::pair(right, 0));
}

TEST_F(KernelCache, CompilesWhatIsDamagedAnew) {
  const auto [right, compiled] = run(true);
  EXPECT_EQ(compiled, 1);
  std::vector<std::filesystem::path> files;
  for (const auto& each : std::filesystem::recursive_directory_iterator(folder_)) {
    if (each.is_regular_file()) files.push_back(each.path());
  }
  ASSERT_EQ(files.size(), 1u);
  const auto size = std::filesystem::file_size(files[0]);
  std::fstream file(files[0], std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(size / 2)).write("damaged", 7);
  file.close();
  EXPECT_EQ(run(true), std::pair(right, 1));
  EXPECT_EQ(run(true), std::pair(right, 0));
}

}  // namespace
}  // namespace vqgen::test
