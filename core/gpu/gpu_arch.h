// Facts that follow from a GPU's architecture, whatever the product. A profile, often the user's
// own, may contradict them, which would otherwise surface far away in a compiler or driver.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "core/gpu/gpu_spec.h"
#include "core/json/json.h"

namespace vqgen {

// The number in "sm_90a"; 0 where the arch is malformed.
int arch_number(std::string_view arch);

// wgmma is Hopper's alone: neither before nor in Blackwell (PTX ISA, wgmma.mma_async).
inline bool has_warpgroup_products(const std::string& arch) { return arch == "sm_90a"; }

// PTX ISA, mma: .bf16 requires sm_80.
inline bool has_bf16_products(std::string_view arch) { return arch_number(arch) >= 80; }

// PTX ISA, mma: .m16n8k32 of .s8 and .u8 requires sm_80. The host emulates it.
inline bool has_byte_products(std::string_view arch) {
  return arch == "host" || arch_number(arch) >= 80;
}

// PTX ISA, cp.async.bulk: requires sm_90. The host emulates them.
inline bool has_bulk_copies(std::string_view arch) {
  return arch == "host" || arch_number(arch) >= 90;
}

// PTX ISA, griddepcontrol: requires sm_90. A kernel's blocks may begin before those of the previous
// one end.
inline bool has_dependent_launches(std::string_view arch) { return has_bulk_copies(arch); }

// PTX ISA, barrier.cluster: requires sm_90.
inline bool has_clusters(std::string_view arch) { return has_bulk_copies(arch); }

// SMs that clusters of `blocks` blocks use at once, one block each. A cluster lies within a GPC,
// and GPCs differ in size: the driver's values for 132 SMs (cudaOccupancyMaxActiveClusters) are
// scaled, less one cluster, as cards differ.
inline int cluster_sms(const GpuSpec& gpu, int blocks) {
  constexpr std::array kAtOnce = {132, 66, 39, 30, 22, 17, 15, 15};
  if (blocks <= 2) return gpu.sms;
  const int known = kAtOnce[static_cast<std::size_t>(std::min(blocks, 8)) - 1];
  return std::max(1, known * gpu.sms / kAtOnce.front() - 1) * blocks;
}

// Throws Error(bad_input) at the field of `cursor` whose value no GPU of spec.arch has. The limits
// come from the shipped profiles of that architecture; without one only tensor-core rates and
// contradictions are checked.
void require_facts_of_arch(const JsonCursor& cursor, const GpuSpec& spec);

// Completes `spec`, read from a device, where the driver left 0 (virtual GPUs report no clocks):
// from the shipped profile of that name, else the nearest by architecture and number of SMs.
// `sources` says so.
void complete_unreported(GpuSpec& spec);

}  // namespace vqgen
