// Runs one hand-written kernel on the host backend. Its text follows the host machine layer and
//
//   struct Args { const vq::u32* in; vq::u32* out; };
//
// and defines VQ_KERNEL(trial, threads, Args). #line makes its first line trial.cu:1.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/backend/host/host_backend.h"

namespace vqgen::host_test {

struct Trial {
  std::string text;
  unsigned threads = 64;
  std::int64_t shared_bytes = 0;
  Dim3 grid = {};
  std::vector<std::uint32_t> in = {};
  std::size_t out_words = 64;
};

KernelSource source_of(const Trial& trial);

// The kernel's `out`. Throws what the backend throws. A text is compiled once.
std::vector<std::uint32_t> run(const Trial& trial, const HostOptions& options = {});

// The message of the Error(device) that run() throws; "" and a test failure if it throws none.
std::string fault_of(const Trial& trial, const HostOptions& options = {});

// Forward, reverse and a few random orders, and two workers.
std::vector<HostOptions> all_orders(bool check_races = false);

}  // namespace vqgen::host_test
