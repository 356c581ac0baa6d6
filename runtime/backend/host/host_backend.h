// The host backend: compiles the generated text with the system's C++ compiler against the host
// machine layer and runs it on the CPU, each CUDA thread a fiber, as an unkind GPU would: shared
// memory starts as NaN, asynchronous copies land at the wait, lanes run in the order asked for, and
// every fault is an Error(device) that names kernel, block, thread, file and line.
//
// Built with -fsanitize=address, it compiles its kernels with ASan and UBSan too.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "runtime/backend/backend.h"

namespace vqgen {

// Order in which ready lanes of a block and blocks of a grid run. A correct kernel gives the same
// bits in every order.
enum class LaneOrder { forward, reverse, random };

struct HostOptions {
  std::string compiler = {};  // a program or its path; empty tries g++, then c++, on PATH
  LaneOrder order = LaneOrder::forward;
  std::uint64_t seed = 0;  // of LaneOrder::random
  unsigned threads = 1;    // CPU threads that share the blocks of a grid
  // Reports races between threads that no barrier orders, even where the order that ran was
  // harmless; see docs/internals/host-backend.md. Compiles other code, slower, and runs it on one
  // CPU thread.
  bool check_races = false;
  // False: kernels compile faster and run slower.
  bool optimize = true;
  std::filesystem::path scratch = {};  // folder of short-lived files; empty: the system's
};

// Launches run at once, in launch() and enqueue(), which throw their faults; the backend stays
// usable after one. Thread-safe but for time_us(): one grid runs at a time.
std::unique_ptr<Backend> make_host_backend(HostOptions options = {});

}  // namespace vqgen
