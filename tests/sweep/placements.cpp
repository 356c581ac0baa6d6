#include <algorithm>

#include "tests/sweep/cases.h"

namespace vqgen::test {

void fix_placement(Placement& placement, const VqFormat& format, int variant) {
  const int entries = format.entries();
  switch (variant) {
    case 1:
      placement = all_global();
      break;
    case 2:
      placement = {.registers = 1, .shared = entries};
      break;
    case 3:
      placement = {.registers = std::min(8, entries), .shared = entries};
      break;
    case 4:
      placement = {.shared = entries / 2};
      break;
    case 5:
      placement = {.replicated = entries / 2, .copies = 4, .shared = entries};
      break;
    case 6:
      placement = {.registers = 1, .replicated = 2, .copies = 8, .shared = 3};
      break;
    case 7:
      placement = all_replicated(entries, 16);
      break;
    default:
      break;
  }
}

}  // namespace vqgen::test
