#include "core/format/code_layout.h"

#include <fmt/format.h>

namespace vqgen {

std::string layout_problem(const CodeLayout& layout) {
  const auto fine = [](int n) { return n == 1 || n == 2 || n == 4; };
  if (fine(layout.rows) && fine(layout.words) && layout.rows * layout.words <= kMostRunWords) {
    return "";
  }
  return fmt::format(
      "no kernel reads groups of {} rows in runs of {} words; use 1, 2 or 4 of each, {} in all at "
      "most",
      layout.rows, layout.words, kMostRunWords);
}

}  // namespace vqgen
