// Host time of libvqgen: the plan of a kernel, a prepare of a known config, the choice of a bucket,
// and a launch over a backend with empty kernels, which is the time beyond the driver's own call.
// Reports the least of several runs, as other load only adds.
//
//   launch_overhead [--json]
#include <chrono>
#include <cstdio>
#include <string_view>

#include "tests/library/fake_backend.h"

namespace {

using namespace vqgen;
using namespace vqgen::library;

alignas(256) char memory[256];

// Nanoseconds a call, the least mean of 20 runs.
template <class Act>
double nanoseconds(const Act& act) {
  constexpr int kCalls = 20'000;
  double least = 1e30;
  for (int run = 0; run < 20; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) act(i);
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
    least = std::min(least, spent.count() / kCalls);
  }
  return least;
}

}  // namespace

int main(int argc, char** argv) {
  const bool json = argc == 2 && std::string_view(argv[1]) == "--json";
  if (argc > 1 && !json) {
    std::fprintf(stderr, "usage: launch_overhead [--json]\n");
    return 2;
  }
  test::FakeRuntime fake{{.max_buckets = 8}};
  const std::string text = gemv_json().dump();
  const std::string source = "config";
  vqgen_op* op = nullptr;
  if (vqgen_prepare(&fake.runtime, text.c_str(), nullptr, &op) != VQGEN_OK) {
    std::fprintf(stderr, "launch_overhead: %s\n", vqgen_last_error());
    return 1;
  }
  vqgen_linear_args args{};
  args.struct_bytes = sizeof(args);
  args.x = args.y = memory;
  args.weights.codes = args.weights.codebooks = memory;
  const std::size_t workspace = vqgen_op_workspace_bytes(op);
  std::int64_t sum = 0;
  int failures = 0;
  const double known = nanoseconds([&](int) {
    vqgen_op* again = nullptr;
    failures += vqgen_prepare(&fake.runtime, text.c_str(), nullptr, &again) != VQGEN_OK;
    vqgen_op_release(again);
  });
  const double bucket = nanoseconds([&](int i) { sum += vqgen_op_bucket(op, 1 + i % 2); });
  const double launch = nanoseconds([&](int i) {
    args.m = 1 + i % 2;
    failures += vqgen_linear_launch(op, &args, memory, workspace, nullptr) != VQGEN_OK;
  });
  const auto begin = std::chrono::steady_clock::now();
  for (int rows = 3; rows <= 8; ++rows) {
    fake.prepare(edited(gemv_json(), {{"/shape/rows", std::to_string(rows)}}));
  }
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - begin;
  const double kernels = fake.backend->compilations - 2;
  if (json) {
    const Json figures = {{"new_kernel_ms", spent.count() / kernels},
                          {"prepare_again_ns", known},
                          {"bucket_ns", bucket},
                          {"launch_ns", launch}};
    std::printf("%s\n", figures.dump().c_str());
  } else {
    std::printf("plan and text of a kernel, none compiled       %7.2f ms\n",
                spent.count() / kernels);
    std::printf("prepare of a known config (%zu bytes of text)  %7.1f ns\n", text.size(), known);
    std::printf("bucket of a row count                          %7.1f ns\n", bucket);
    std::printf("launch, rows changing, kernels that do nothing %7.1f ns\n", launch);
  }
  vqgen_op_release(op);
  return failures == 0 && sum > 0 ? 0 : 1;
}
