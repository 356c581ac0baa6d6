// GpuSpec: the facts of one GPU that decisions rest on, from profiles/gpus/*.json, where each value
// has its source, or read from the device. An SM's allocation granules are optional: their defaults
// hold from sm_80 to sm_121. core/gpu/gpu_arch.h refuses what no GPU of an architecture has.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/json/fields.h"

namespace vqgen {

struct GpuSpec {
  std::string name;
  std::string arch;
  int sms = 0;
  int registers_per_sm = 0;
  int registers_granule = 256;
  int sm_partitions = 4;
  int max_threads_per_sm = 0;
  int max_blocks_per_sm = 0;
  int shared_bytes_per_sm = 0;
  int shared_bytes_per_block = 0;
  int shared_bytes_reserved = 0;
  int shared_bytes_granule = 128;
  std::int64_t l2_bytes = 0;
  std::int64_t memory_bytes = 0;
  double memory_gbps = 0;
  double sm_clock_mhz = 0;
  bool warpgroup_products = false;
  bool bf16_products = true;
  std::map<std::string, std::string> sources;

  static constexpr auto fields() {
    using G = GpuSpec;
    return std::make_tuple(
        field("name", &G::name, required(), "name, as the driver says it"),
        field("arch", &G::arch, required(), "compile target, such as sm_90a"),
        field("sms", &G::sms, required(1, 1024), "SMs"),
        field("registers_per_sm", &G::registers_per_sm, required(1, 1 << 20), "32-bit registers"),
        field("registers_granule", &G::registers_granule, optional_in(32, 65536),
              "registers that a warp is given at a time"),
        field("sm_partitions", &G::sm_partitions, optional_in(1, 16),
              "parts of an SM, each with its share of warps and registers"),
        field("max_threads_per_sm", &G::max_threads_per_sm, required(32, 4096), "resident threads"),
        field("max_blocks_per_sm", &G::max_blocks_per_sm, required(1, 128), "resident blocks"),
        field("shared_bytes_per_sm", &G::shared_bytes_per_sm, required(1, 1 << 24),
              "shared memory of an SM"),
        field("shared_bytes_per_block", &G::shared_bytes_per_block, required(1, 1 << 24),
              "most that one block may opt in to"),
        field("shared_bytes_reserved", &G::shared_bytes_reserved, optional_in(0, 65536),
              "what the system takes of each block's share"),
        field("shared_bytes_granule", &G::shared_bytes_granule, optional_in(1, 65536),
              "shared memory that a block is given at a time"),
        field("l2_bytes", &G::l2_bytes, required(1, 1e12), "L2 cache"),
        field("memory_bytes", &G::memory_bytes, required(1, 1e15), "device memory"),
        field("memory_gbps", &G::memory_gbps, required(1, 1e6), "device memory, 10^9 bytes/s"),
        field("sm_clock_mhz", &G::sm_clock_mhz, required(1, 1e5), "boost clock"),
        field("warpgroup_products", &G::warpgroup_products, Rule{},
              "has wgmma, which Hopper alone has"),
        field("bf16_products", &G::bf16_products, Rule{},
              "has mma in bf16, as GPUs since sm_80 do; by default what arch says"),
        field("sources", &G::sources, Rule{}, "field name to where its value comes from"));
  }
  bool operator==(const GpuSpec&) const = default;
};

}  // namespace vqgen
