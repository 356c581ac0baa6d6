#include "heuristics/traffic.h"

#include <algorithm>

#include "heuristics/placement/conflicts.h"

namespace vqgen {
namespace {

constexpr double kSectorBytes = 32;

OperandTraffic traffic_of(OperandUse use, const Accesses& accesses) {
  const vq::FormatConfig format = use.format;
  const auto share = [&](vq::EntryRange range) { return accesses.share(range.begin, range.end); };
  const vq::EntryRange once = vq::shared_range(format);
  OperandTraffic traffic{.operand = use.operand};
  traffic.code_bytes = use.code_bytes;
  traffic.code_l2_bytes = use.code_bytes * use.code_reads;
  traffic.codebook_bytes = static_cast<double>(use.codebook_bytes());
  traffic.fill_l2_bytes = use.fills * static_cast<double>(use.stored_row_bytes()) * once.end;
  traffic.lookups = use.lookups;
  traffic.in_registers = share(vq::register_range(format));
  traffic.replicated = share(vq::replicated_range(format));
  traffic.shared = share(once);
  traffic.global = share(vq::global_range(format));
  traffic.lookup_bytes = use.lookups * (traffic.replicated + traffic.shared) * use.entry_bytes();
  traffic.lookup_l2_bytes = use.lookups * traffic.global * kSectorBytes;
  traffic.conflict_factor = conflict_factor(use, accesses);
  use.format.placement = all_shared(vq::entries(format));
  traffic.conflict_factor_once = conflict_factor(use, accesses);
  return traffic;
}

}  // namespace

std::vector<OperandTraffic> expected_traffic(const Plan& plan, const Problem& problem,
                                             std::span<const AccessCounts> profiles) {
  std::vector<OperandTraffic> all;
  for (const OperandUse& use : plan_use(plan, problem).operands) {
    all.push_back(traffic_of(use, accesses_of(profiles, use)));
    all.back().profiled = profile_of(profiles, use.operand) != nullptr;
  }
  return all;
}

Residency expected_residency(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
                             int registers) {
  const PlanUse use = plan_use(plan, problem);
  Residency residency{registers, use.shared_bytes, use.threads, use.blocks, {}, {}};
  residency.occupancy = occupancy(gpu, use.threads, registers, use.shared_bytes);
  const auto blocks = static_cast<int>(
      std::min<std::int64_t>(residency.occupancy.blocks, residency.blocks_an_sm(gpu)));
  residency.slack = slack(gpu, use.threads, registers, use.shared_bytes, blocks);
  return residency;
}

}  // namespace vqgen
