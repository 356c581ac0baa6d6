#include "core/plan/placement.h"

#include <fmt/format.h>

namespace vqgen {

std::string short_name(const Placement& placement, int entries) {
  std::string name;
  int reached = placement.registers;
  if (placement.registers > 0) name += fmt::format("r{}", placement.registers);
  if (placement.replicated > reached) {
    reached = placement.replicated;
    name += fmt::format("c{}", placement.copies);
    if (reached < entries) name += fmt::format("x{}", reached);
  }
  if (placement.shared > reached) {
    reached = placement.shared;
    name += "s";
    if (reached < entries) name += std::to_string(reached);
  }
  return reached < entries ? name + "g" : name;
}

}  // namespace vqgen
