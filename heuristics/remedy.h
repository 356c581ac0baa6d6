// Refusals of a dataflow that a config names: their remedy is one that works.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "core/suggest.h"

namespace vqgen {

// check()'s reason against a plan, where `can` are the dataflows that do the problem
// (runnable_dataflows()): a "use dataflow X or Y" of which
// one is none of them gives way to their list.
inline std::string with_remedy(std::string reason, std::span<const std::string> can) {
  constexpr std::string_view kUse = "use dataflow ";
  const std::size_t at = reason.find(kUse);
  if (at != std::string::npos) {
    constexpr std::string_view kOr = " or ";
    bool works = true;
    for (std::size_t name = at + kUse.size(), end = name; works; name = end + kOr.size()) {
      end = std::min(reason.find_first_of(" ,;", name), reason.size());
      works = std::ranges::find(can, reason.substr(name, end - name)) != can.end();
      if (works && reason.compare(end, kOr.size(), kOr) != 0) return reason;
    }
    reason.erase(std::min(reason.rfind(';', at), at));
  }
  return can.empty() ? reason : fmt::format("{}; dataflows that can: {}", reason, few_of(can));
}

}  // namespace vqgen
