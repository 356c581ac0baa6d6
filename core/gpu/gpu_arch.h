// What a GPU's architecture says of it, whatever the product: facts that a profile, often one of
// the user's own, may get wrong, and that would otherwise show in a compiler or driver far from it.
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

// PTX ISA, griddepcontrol: requires sm_90. A kernel's blocks begin before those of the last one
// end.
inline bool has_dependent_launches(std::string_view arch) { return has_bulk_copies(arch); }

// PTX ISA, barrier.cluster: requires sm_90. The same.
inline bool has_clusters(std::string_view arch) { return has_bulk_copies(arch); }

// Multiprocessors that clusters of so many blocks use at once, a block each. A cluster lies within
// a GPC, and these are not all as large. What the driver gives of an H100's 132 multiprocessors
// (cudaOccupancyMaxActiveClusters) is taken in proportion, less one cluster, since cards differ.
inline int cluster_sms(const GpuSpec& gpu, int blocks) {
  constexpr std::array kAtOnce = {132, 66, 39, 30, 22, 17, 15, 15};
  if (blocks <= 2) return gpu.sms;
  const int known = kAtOnce[static_cast<std::size_t>(std::min(blocks, 8)) - 1];
  return std::max(1, known * gpu.sms / kAtOnce.front() - 1) * blocks;
}

// Error(bad_input) at the field of `cursor` whose value no GPU of spec.arch has. The limits are
// those of the shipped profiles of that architecture; where none is, only products of tensor
// cores and what contradicts itself are judged.
void require_facts_of_arch(const JsonCursor& cursor, const GpuSpec& spec);

// Gives `spec`, read off a device, what the driver left 0 (virtual GPUs report no clocks): from the
// shipped profile of that name, else from the one that is nearest by architecture and number of
// multiprocessors. `sources` says so.
void complete_unreported(GpuSpec& spec);

}  // namespace vqgen
