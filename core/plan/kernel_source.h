// KernelSource: what the generator hands to a backend. Self-contained text and launch shapes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vqgen {

// The machine layer that the text is amalgamated with.
enum class Machine { cuda, host };

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  bool operator==(const Dim3&) const = default;
};

// One __global__ function of the text. All entries of one text take the same argument struct.
struct KernelEntry {
  std::string name;               // extern "C" name, shows the plan
  Dim3 grid;                      // blocks
  unsigned threads = 0;           // per block, one-dimensional
  std::int64_t shared_bytes = 0;  // dynamic shared memory per block
};

// Entries are launched in order on one stream; each sees the writes of those before it.
struct KernelSource {
  std::string op;  // "attention_decode", ...
  Machine machine = Machine::cuda;
  std::string arch;                  // "sm_90a"; "host" for Machine::host
  std::string text;                  // C++17 device code, no includes
  std::vector<KernelEntry> entries;  // at least one
  std::int64_t args_bytes = 0;       // sizeof the argument struct
};

}  // namespace vqgen
