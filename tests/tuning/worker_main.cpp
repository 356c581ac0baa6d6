// The test's main; with an argument, the worker that the tests start, with fake candidates or with
// real ones on the host backend.
#include <gtest/gtest.h>

#include <string_view>

#include "runtime/backend/host/host_backend.h"
#include "runtime/tuning/worker/worker_lines.h"
#include "tests/tuning/fake_workbench.h"

int main(int argc, char** argv) {
  using namespace vqgen;
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first == "--serve-fake") return serve_worker(test::fake_workbench);
  if (first == "--serve-host") {
    const std::unique_ptr<Backend> backend = make_host_backend();
    return serve_worker([&](const WorkerSetup& setup) {
      return std::make_unique<MeasurerWorkbench>(*backend, setup);
    });
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
