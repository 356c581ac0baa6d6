// What a tuning has asked so far and what came of it: all that a strategy goes by.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace vqgen {

struct Answer {
  std::size_t place = 0;     // of the candidate
  std::optional<double> us;  // nothing where it failed
};

struct History {
  std::vector<Answer> answers;  // in the order of asking
  std::vector<bool> asked;      // by place

  explicit History(std::size_t candidates) : asked(candidates, false) {}
  void add(std::size_t place, std::optional<double> us) {
    answers.push_back({place, us});
    asked[place] = true;
  }
};

}  // namespace vqgen
