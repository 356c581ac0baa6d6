#include "core/former_names.h"

#include <algorithm>

namespace vqgen {
namespace {

struct Renamed {
  std::string_view former, present;
};
constexpr Renamed kRenamed[] = {{"window", "recent_tokens"},
                                {"window_batch", "flush_block"},
                                {"residuals", "num_codebooks"},
                                {"independent", "batch_invariant"},
                                {"hotness", "access_counts"},
                                {"rows", "m"},
                                {"splits_by", "schedule"},
                                {"sequence", "per_sequence"},
                                {"length", "balanced"},
                                {"x_before", "prepack_x"},
                                {"making_warps", "producer_warps"},
                                {"idle_warps", "fetch_only_warps"},
                                {"steps_ahead", "prefetch_steps"},
                                {"rounds_in_flight", "pipeline_stages"},
                                {"lanes", "simt"},
                                {"fragments", "mma"},
                                {"bytes", "int8_mma"},
                                {"tables", "lut"},
                                {"bins", "histogram"},
                                {"slices", "sliced_codebook"},
                                {"warpgroups", "wgmma"},
                                {"bytegroups", "int8_wgmma"},
                                {"rowgroups", "wgmma_large_m"},
                                {"products", "gemm"},
                                {"kv_decode", "kv_dequantize"},
                                {"scalar_quantize", "int8_quantize"},
                                {"scalar_dequantize", "int8_dequantize"},
                                {"million", "million-d2b8"},
                                {"profile", "count-accesses"},
                                {"--chooser", "--planner"},
                                {"--turns", "--interactive"},
                                {"--most", "--max-candidates"},
                                {"--touched-experts", "--active-experts"},
                                {"--codes", "--code-distribution"},
                                {"--strategy", "--search"},
                                {"--strategy", "--placement"},
                                {"--hotness", "--access-counts"},
                                {"--profile", "--access-counts"},
                                {"--space", "--sample"},
                                {"--likely", "--top"},
                                {"--placement", "--codebooks-in"}};

}  // namespace

const std::string* present_name(std::string_view former, std::span<const std::string> names) {
  for (const Renamed& each : kRenamed) {
    if (each.former != former) continue;
    const auto found = std::find(names.begin(), names.end(), each.present);
    if (found != names.end()) return &*found;
  }
  return nullptr;
}

}  // namespace vqgen
