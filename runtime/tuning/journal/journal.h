// The journal of a tuning: an evaluator's answers, one per line, so that a killed search can be
// resumed. The journal is itself an evaluator: the search runs again, and gets what was measured
// before from the file, at the recorded cost. So it takes the same steps and ends in the same row.
//
//   {"vqgen_journal": 1, "problem": ..., "gpu": ..., "policy": ..., "environment": ...,
//    "code": ...}
//   {"incumbent": NAME}
//   {"cost_us": 250000, "screen": {"plan": NAME, "outcome": "timed", "time_us": 8.1, ...}}
//   {"cost_us": 1700000, "finals": {"plans": [NAME, ...], "rounds": 21, "times": [...]}}
//
// A kill may cut the last line; it is dropped, and the file is cut there. Strategy, seed and budget
// are not in the header, so that a longer budget can resume. The incumbent is the one that the
// tuning began with: a table may by then hold this tuning's own row.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "core/gpu/gpu_spec.h"
#include "core/plan/tuned_row.h"
#include "runtime/tuning/evaluator.h"

namespace vqgen {

// A line of a journal: what was asked, the answer, and its cost.

// Costs are whole microseconds, so that their sum does not depend on the order of addition.
struct ScreenLine {
  Measurement measurement;
  std::int64_t cost_us = 0;
};
struct FinalsLine {
  std::vector<std::string> plans;  // names
  int rounds = 0;
  std::vector<FinalTimes> times;  // times of each plan
  std::int64_t cost_us = 0;
};

// A line's text, with its line break.
std::string incumbent_line(const std::optional<Plan>& incumbent);
std::string to_line(const ScreenLine& line);
std::string to_line(const FinalsLine& line);

// Writes or reads {"incumbent": NAME or null}; throws Error(bad_input) as below.
std::optional<Plan> read_incumbent_line(const JsonCursor& cursor);
bool is_finals_line(const JsonCursor& cursor);
// Throws Error(bad_input) at the cursor for fields unknown, missing or out of range, NaN included.
ScreenLine read_screen_line(const JsonCursor& cursor);
FinalsLine read_finals_line(const JsonCursor& cursor);

// Reads microseconds above 0. Throws Error(bad_input).
double read_time(const JsonCursor& cursor);
// Returns the cursor. Throws Error(bad_input) if it is not at an array.
const JsonCursor& require_array(const JsonCursor& cursor);
// The text in one line; bytes that are not UTF-8 (from a compiler) become replacement characters.
std::string text_of(const Json& json);

// A measurement as an object, with its plan by name, also for a worker's lines. It has figures if
// it is timed, times only if there are some, and otherwise the reason.
Json to_json(const Measurement& measurement);
Measurement read_measurement(const JsonCursor& cursor);

// What answers depend on: with other values they are not comparable. `code` is a digest of the
// sources of kernels.
Json journal_header(const Problem& problem, const GpuSpec& gpu, const MeasurePolicy& policy,
                    const TuneEnvironment& environment, const std::string& code);

class JournaledEvaluator : public Evaluator {
 public:
  // Resumes the file, or makes it with this incumbent; `restart` drops its contents. The file is
  // unchanged until the first answer; one made and unused is removed. `inner` must outlive it.
  // Throws Error(bad_input) if it is unwritable, open elsewhere, of another header, or damaged.
  JournaledEvaluator(Evaluator& inner, const std::filesystem::path& path, const Json& header,
                     const std::optional<Plan>& incumbent = std::nullopt, bool restart = false);
  ~JournaledEvaluator() override;
  JournaledEvaluator(const JournaledEvaluator&) = delete;
  JournaledEvaluator& operator=(const JournaledEvaluator&) = delete;

  // Throws FileError if the file takes no more; it is then as it was before these answers.
  std::vector<Measurement> screen(std::span<const Plan> plans) override;
  std::vector<FinalTimes> finals(std::span<const Plan> plans, int rounds) override;
  // Seconds of all answers since construction, recorded or not.
  double spent_s() const override;

  // The incumbent that the journal began with.
  const std::optional<Plan>& incumbent() const { return incumbent_; }
  // The number of answers that the file held when it was opened.
  std::size_t recorded() const { return recorded_; }

 private:
  void open();
  void make();
  void close();
  void read(const std::string& header, bool restart);
  void read_line(const std::string& text, std::size_t number);
  void append(const std::string& text);
  std::int64_t cost_since(double before_s) const;

  Evaluator& inner_;
  std::filesystem::path path_;
  std::optional<Plan> incumbent_;
  int file_ = -1;
  bool made_ = false;     // bytes of the file, written by this process
  std::size_t size_ = 0;  // bytes of the file that are kept
  std::string first_;     // precedes the first answer and is not in the file yet
  std::map<std::string, ScreenLine> screened_;  // by plan_name()
  std::map<std::string, FinalsLine> finals_;    // by rounds and names
  std::size_t recorded_ = 0;
  std::int64_t spent_us_ = 0;
};

}  // namespace vqgen
