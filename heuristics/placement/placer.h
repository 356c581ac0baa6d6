// The state of place() while it decides, level after level: shared memory first, then registers,
// then copies. For place.cpp alone.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "heuristics/occupancy.h"
#include "heuristics/placement/conflicts.h"
#include "heuristics/placement/place.h"

namespace vqgen {

inline constexpr const char* kReorder = "number them hot-first with `vqgen reorder`";

// Numbered hot-first as far as it matters: the first `boundary` entries catch nearly what the
// hottest would. Orders from other data of the same kind pass (docs/quantizing.md: 43.2 of 44.3 %).
bool hot_first_below(const HotnessProfile& profile, int boundary);

// Holds references to what it is made of.
class Placer {
 public:
  Placer(const Plan& plan, const Problem& problem, const GpuSpec& gpu,
         std::span<const HotnessProfile> profiles, const PlaceOptions& options);

  Placed run();
  // Copies alone, onto the plan as it is.
  Placed run_copies(double below);

 private:
  struct Known {
    OperandUse use;
    const HotnessProfile* profile;
    Accesses accesses;
  };

  Placed refused(const Verdict& verdict);
  // The plan with these operands' codebooks wholly shared, the first choice that fits: all, then
  // each alone in order.
  void share_whole();
  // As many entries as the slack holds, the smaller codebooks first, which take no more than their
  // share of it.
  void share_by_slack();
  void share_within(std::size_t i, std::int64_t budget);

  // Entries above mean + 3 sigma that the register slack holds.
  void hold_in_registers(std::size_t i);
  // A warp compares and selects for each entry held, 4 instructions a cycle of an SM; what it saves
  // is passes through shared memory, one a cycle.
  bool registers_pay(std::size_t i, int count, const std::string& limits);

  // Copies of whole codebooks, as many as lanes meet or fewer, else of the hottest entries, where
  // they leave fewer than `below` times the passes.
  void copy(double below);
  void copy(std::size_t i, double below);
  std::vector<Placement> copied(std::size_t i, const Placement& once) const;
  bool warps_stay(std::size_t i, const Placement& candidate) const;

  int registers() const { return options_.registers.value_or(kAssumedRegisters); }
  // Blocks that an SM holds at once and the grid has for it.
  int resident(const Plan& plan) const;
  Slack slack_left() const;
  Placement& placement(std::size_t i) {
    return *placement_of(placed_.plan, operands_[i].use.operand);
  }
  int entries(std::size_t i) const { return vq::entries(operands_[i].use.format); }
  template <class... Args>
  void say(std::size_t i, fmt::format_string<Args...> text, Args&&... args) {
    placed_.operands[i].reasons.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  const Problem& problem_;
  const GpuSpec& gpu_;
  const PlaceOptions& options_;
  Placed placed_;
  std::vector<Known> operands_;
  int needed_ = 0;          // resident blocks that are to stay
  int held_registers_ = 0;  // a thread, by entries
};

}  // namespace vqgen
