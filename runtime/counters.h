// Reads the GPU's counters for one call of a plan through NVIDIA's profiler ncu: the figures of
// VQ-LLM's Fig. 4. ncu runs `vqgen run` on the plan, one verified call, and its table is read back.
// If that fails, one line says why.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "core/problem/config.h"

namespace vqgen {

struct CounterMetric {
  const char* name;    // ours
  const char* metric;  // ncu's, for sm_70 and later
  bool sums;           // summed over the kernels of a call; else the first kernel's
};
inline constexpr CounterMetric kCounterMetrics[] = {
    // wavefronts through shared memory beyond the first of a request
    {"bank_conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", true},
    // wavefronts through shared memory, 128 bytes each
    {"shared_passes", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", true},
    {"l1_bytes", "l1tex__t_bytes.sum", true},   // requested from L1 by global accesses
    {"l2_bytes", "lts__t_bytes.sum", true},     // requested from L2
    {"memory_bytes", "dram__bytes.sum", true},  // moved by device memory
    // resident warps on average, as a share of what an SM can hold
    {"occupancy_percent", "sm__warps_active.avg.pct_of_peak_sustained_active", false},
};

struct Counters {
  std::map<std::string, double> values;  // by CounterMetric::name
  std::string why;                       // why, if there are no values
};

// Reads the text of `ncu --csv --print-units base --log-file`. Returns all metrics or none.
Counters parse_ncu(std::string_view text);

struct CounterOptions {
  std::filesystem::path tool;  // this program
  std::string gpu;             // the --gpu option; may be empty
  std::uint64_t seed = 1;
  std::string ncu = "ncu";  // looked for in PATH
};

// Counts one call of the plan, on codes drawn uniformly. Takes seconds. Throws Error(device) if no
// scratch folder can be made.
Counters count(const Problem& problem, const Plan& plan, const CounterOptions& options);

}  // namespace vqgen
