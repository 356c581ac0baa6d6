// The journal of a tuning: what an evaluator answered, a line each, so that a search that was
// killed goes on where it was. Its trick is that it is an evaluator itself: the search is run anew,
// and gets from the file, in no time and at the recorded cost, what was measured before. So a
// killed and resumed search takes the same steps, and ends in the same row, as one that was not.
//
//   {"vqgen_journal": 1, "problem": ..., "gpu": ..., "policy": ..., "environment": ..., "code":
//   ...}
//   {"incumbent": NAME}
//   {"cost_us": 250000, "screen": {"plan": NAME, "outcome": "timed", "time_us": 8.1, ...}}
//   {"cost_us": 1700000, "finals": {"plans": [NAME, ...], "rounds": 21, "times": [...]}}
//
// A kill may cut the last line; it is dropped, and the file is cut there. Lines are written at once
// and synced once a batch. Strategy, seed and budget are not in the header: a longer budget goes on
// from what a shorter one measured. The incumbent is the one that the tuning began with, not what a
// table says when it goes on: by then that may be this tuning's own row.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "core/gpu/gpu_spec.h"
#include "core/plan/tuned_row.h"
#include "runtime/tuning/evaluator.h"

namespace vqgen {

// The lines of a journal: what was asked, what came of it, and what it cost.

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

// Microseconds, above 0. Error(bad_input).
double read_time(const JsonCursor& cursor);
// The cursor. Error(bad_input) where it is at no array.
const JsonCursor& require_array(const JsonCursor& cursor);
// In one line; bytes that are no UTF-8, as a compiler may say, become replacement characters.
std::string text_of(const Json& json);

// A measurement as an object, its plan by name, for a worker's lines too; figures stand where it is
// timed, its times only where it has some, else why it is not.
Json to_json(const Measurement& measurement);
Measurement read_measurement(const JsonCursor& cursor);

// What answers depend on: with another of these they are not the same. `code` is a digest of what
// kernels are made from.
Json journal_header(const Problem& problem, const GpuSpec& gpu, const MeasurePolicy& policy,
                    const TuneEnvironment& environment, const std::string& code);

class JournaledEvaluator : public Evaluator {
 public:
  // Goes on with the file, or makes it with this incumbent; with `restart` what it holds is
  // dropped. Until the first answer the file stays as it was; one that was made and got none goes
  // again. `inner` must outlive it. Error(bad_input) that says what to do where the file cannot
  // be written, another process has it open, it is no journal, its header is another, or a line but
  // the last is damaged.
  JournaledEvaluator(Evaluator& inner, const std::filesystem::path& path, const Json& header,
                     const std::optional<Plan>& incumbent = std::nullopt, bool restart = false);
  ~JournaledEvaluator() override;
  JournaledEvaluator(const JournaledEvaluator&) = delete;
  JournaledEvaluator& operator=(const JournaledEvaluator&) = delete;

  // FileError where the file takes no more; it is then as it was before these answers.
  std::vector<Measurement> screen(std::span<const Plan> plans) override;
  std::vector<FinalTimes> finals(std::span<const Plan> plans, int rounds) override;
  // Of what was answered since it was made, from the file or not.
  double spent_s() const override;

  // That the journal began with.
  const std::optional<Plan>& incumbent() const { return incumbent_; }
  // Answers that the file held when it was opened.
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
  bool made_ = false;     // the file, by this
  std::size_t size_ = 0;  // of what is kept of the file
  std::string first_;     // what stands before the first answer and is not in the file yet
  std::map<std::string, ScreenLine> screened_;  // by plan_name()
  std::map<std::string, FinalsLine> finals_;    // by rounds and names
  std::size_t recorded_ = 0;
  std::int64_t spent_us_ = 0;
};

}  // namespace vqgen
