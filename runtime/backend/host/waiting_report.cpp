#include "runtime/backend/host/waiting_report.h"

#include <array>
#include <cstring>
#include <utility>
#include <vector>

namespace vqgen::host {

bool same_place(const Wait& a, const Wait& b) {
  return a.collective == b.collective && a.site.line == b.site.line &&
         (a.site.file == b.site.file || std::strcmp(a.site.file, b.site.file) == 0);
}

std::string name_of(const Wait& wait) {
  constexpr std::array kNames = {"sync_block", "sync_warp", "shuffle_xor", "shuffle",      "mma",
                                 "ldmatrix",   "movmatrix", "any_of_warp", "warpgroup_mma"};
  return std::string(kNames[static_cast<std::size_t>(wait.collective)]) + " (" + wait.site.file +
         ":" + std::to_string(wait.site.line) + ")";
}

std::string thread_list(std::span<const int> threads) {
  constexpr int kMostRanges = 6;
  std::string out = threads.size() == 1 ? "thread " : "threads ";
  int ranges = 0;
  for (std::size_t i = 0; i < threads.size(); ++ranges) {
    std::size_t last = i;
    while (last + 1 < threads.size() && threads[last + 1] == threads[last] + 1) ++last;
    if (ranges == kMostRanges) return out + " and others";
    if (ranges > 0) out += ", ";
    out += std::to_string(threads[i]);
    if (last > i) out += "-" + std::to_string(threads[last]);
    i = last + 1;
  }
  return out;
}

std::string who_waits_where(std::span<const ThreadState> states, std::span<const Wait> waits) {
  std::vector<std::pair<Wait, std::vector<int>>> places;
  std::vector<int> returned;
  for (std::size_t thread = 0; thread < states.size(); ++thread) {
    if (states[thread] == ThreadState::returned) returned.push_back(static_cast<int>(thread));
    if (states[thread] != ThreadState::waiting) continue;
    std::size_t place = 0;
    while (place < places.size() && !same_place(places[place].first, waits[thread])) ++place;
    if (place == places.size()) places.push_back({waits[thread], {}});
    places[place].second.push_back(static_cast<int>(thread));
  }
  std::string out;
  for (const auto& [wait, threads] : places) {
    if (!out.empty()) out += ", ";
    out +=
        thread_list(threads) + (threads.size() == 1 ? " waits at " : " wait at ") + name_of(wait);
  }
  if (!returned.empty()) {
    if (!out.empty()) out += ", ";
    out += thread_list(returned) + (returned.size() == 1 ? " has" : " have") + " returned";
  }
  return out;
}

}  // namespace vqgen::host
