// The lines of a journal: what was asked, what came of it, and what it cost.
#pragma once

#include <cstdint>
#include <optional>

#include "core/json/json.h"
#include "runtime/tuning/evaluator.h"

namespace vqgen {

// Costs are whole microseconds, so that their sum is the same in whatever parts it was added.
struct ScreenLine {
  Measurement measurement;
  std::int64_t cost_us = 0;
};
struct FinalsLine {
  std::vector<std::string> plans;  // names
  int rounds = 0;
  std::vector<FinalTimes> times;  // of each plan
  std::int64_t cost_us = 0;
};

// A line's text, with its line break.
std::string incumbent_line(const std::optional<Plan>& incumbent);
std::string to_line(const ScreenLine& line);
std::string to_line(const FinalsLine& line);

// {"incumbent": NAME or null}; Error(bad_input) as below.
std::optional<Plan> read_incumbent_line(const JsonCursor& cursor);
bool is_finals_line(const JsonCursor& cursor);
// Error(bad_input) at the cursor for fields unknown, missing or out of range, NaN among them.
ScreenLine read_screen_line(const JsonCursor& cursor);
FinalsLine read_finals_line(const JsonCursor& cursor);

// In one line; bytes that are no UTF-8, as a compiler may say, become replacement characters.
std::string text_of(const Json& json);

// A measurement as an object, its plan by name, for a worker's lines too; figures stand where it is
// timed, its times only where it has some, else why it is not.
Json to_json(const Measurement& measurement);
Measurement read_measurement(const JsonCursor& cursor);

}  // namespace vqgen
