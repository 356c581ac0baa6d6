#include "core/gpu/gpu_arch.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <utility>

#include "core/gpu/least_arch.h"
#include "core/profiles.h"

namespace vqgen {
namespace {

// Facts that are equal for all GPUs of an architecture.
constexpr std::array<std::pair<const char*, int GpuSpec::*>, 5> kFactsOfArch{{
    {"registers_per_sm", &GpuSpec::registers_per_sm},
    {"max_threads_per_sm", &GpuSpec::max_threads_per_sm},
    {"max_blocks_per_sm", &GpuSpec::max_blocks_per_sm},
    {"shared_bytes_per_sm", &GpuSpec::shared_bytes_per_sm},
    {"shared_bytes_per_block", &GpuSpec::shared_bytes_per_block},
}};

}  // namespace

int arch_number(std::string_view arch) {
  if (!arch.starts_with("sm_")) return 0;
  arch.remove_prefix(3);
  if (arch.ends_with('a') || arch.ends_with('f')) arch.remove_suffix(1);
  int number = 0;
  const char* const end = arch.data() + arch.size();
  const auto parsed = std::from_chars(arch.data(), end, number);
  return parsed.ec == std::errc{} && parsed.ptr == end ? number : 0;
}

std::string unsupported_arch(std::string_view arch) {
  const int number = arch_number(arch);
  if (number == 0 || number >= kLeastArch) return "";
  return fmt::format("{} is not supported; take a GPU of sm_{} or newer (vqgen list gpus)", arch,
                     kLeastArch);
}

void require_facts_of_arch(const JsonCursor& cursor, const GpuSpec& spec) {
  if (spec.warpgroup_products && !has_warpgroup_products(spec.arch)) {
    cursor.at("warpgroup_products")
        .fail(fmt::format("{} has no wgmma, which sm_90a alone has; set false, or correct arch",
                          spec.arch));
  }
  for (const std::string& name : gpu_names()) {
    const GpuSpec known = find_gpu(name);
    if (arch_number(known.arch) != arch_number(spec.arch)) continue;
    if (spec.bf16_products && !known.bf16_products) {
      cursor.at("bf16_products")
          .fail(fmt::format("{} has no mma in bf16; set false, or correct arch", spec.arch));
    }
    for (const auto& [field, member] : kFactsOfArch) {
      if (spec.*member <= known.*member) continue;
      cursor.at(field).fail(fmt::format("{} is more than the {} of {}; lower it, or correct arch",
                                        spec.*member, known.*member, spec.arch));
    }
    break;  // others of the same architecture say the same
  }
  if (spec.shared_bytes_per_block + spec.shared_bytes_reserved > spec.shared_bytes_per_sm) {
    cursor.at("shared_bytes_per_block")
        .fail(fmt::format("{} and the {} of shared_bytes_reserved are more than the {} of "
                          "shared_bytes_per_sm; lower it",
                          spec.shared_bytes_per_block, spec.shared_bytes_reserved,
                          spec.shared_bytes_per_sm));
  }
}

void complete_unreported(GpuSpec& spec) {
  if (spec.memory_gbps > 0 && spec.sm_clock_mhz > 0) return;
  std::optional<GpuSpec> likest = gpu_of_class(spec.name);
  if (!likest) {
    const auto distance = [&](const GpuSpec& gpu) {
      return std::pair(std::abs(arch_number(gpu.arch) - arch_number(spec.arch)),
                       std::abs(gpu.sms - spec.sms));
    };
    for (const std::string& name : gpu_names()) {
      GpuSpec gpu = find_gpu(name);
      if (!likest || distance(gpu) < distance(*likest)) likest = std::move(gpu);
    }
  }
  const auto complete = [&](double GpuSpec::*member, const char* field) {
    if (spec.*member > 0) return;
    spec.*member = (*likest).*member;
    spec.sources[field] = fmt::format("not reported by the driver: as {} has it", likest->name);
  };
  complete(&GpuSpec::memory_gbps, "memory_gbps");
  complete(&GpuSpec::sm_clock_mhz, "sm_clock_mhz");
}

}  // namespace vqgen
