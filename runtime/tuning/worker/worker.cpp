#include "runtime/tuning/worker/worker.h"

#include <fmt/format.h>

#include <algorithm>

namespace vqgen {
namespace {

Clock::time_point after(Clock::time_point begin, double seconds) {
  return begin +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

WorkerEvaluator::WorkerEvaluator(const WorkerSetup& setup, WorkerOptions options)
    : setup_(to_line(setup)), options_(std::move(options)) {}

std::vector<Measurement> WorkerEvaluator::screen(std::span<const Plan> plans) {
  const Stopwatch stopwatch(spent_s_);
  return supervise_screen(plans,
                          [&](const Job& job, Ledger& ledger) { return attempt(job, ledger); });
}

std::vector<FinalTimes> WorkerEvaluator::finals(std::span<const Plan> plans, int rounds) {
  const Stopwatch stopwatch(spent_s_);
  return supervise_finals(plans, rounds,
                          [&](const Job& job, Ledger& ledger) { return attempt(job, ledger); });
}

double WorkerEvaluator::limit_s(Step step) const {
  return step == Step::compiling ? options_.compile_s : options_.run_s;
}

// The earliest deadline of all candidates in flight; between candidates, that of a start, which is
// the longest.
Clock::time_point WorkerEvaluator::deadline(const Ledger& ledger) const {
  Clock::time_point first = after(Clock::now(), options_.start_s);
  for (const auto& [candidate, flight] : ledger.in_flight()) {
    first = std::min(first, after(flight.since, limit_s(flight.step)));
  }
  return first;
}

// Suspects all candidates in flight; a death without one is counted.
Death WorkerEvaluator::died(std::string why, const Ledger& ledger) {
  child_.reset();
  Death death{Outcome::crashed, std::move(why), {}};
  for (const auto& [candidate, flight] : ledger.in_flight()) death.suspects.push_back(candidate);
  if (death.suspects.empty()) count_death(death.why);
  return death;
}

Death WorkerEvaluator::hung(const Ledger& ledger) {
  child_.reset();
  Death death{Outcome::hung, "", {}};
  const Clock::time_point now = Clock::now();
  for (const auto& [candidate, flight] : ledger.in_flight()) {
    if (now < after(flight.since, limit_s(flight.step))) continue;
    death.suspects.push_back(candidate);
    death.why = fmt::format("{} for more than {} s", enum_name(flight.step), limit_s(flight.step));
  }
  if (death.suspects.empty()) count_death("the worker said nothing while it was at no candidate");
  return death;
}

void WorkerEvaluator::count_death(const std::string& why) {
  if (++deaths_ < options_.most_deaths) return;
  throw Error(
      ErrorKind::device,
      fmt::format("tuning: {} workers died one after another at no candidate, the last: {}; "
                  "see that the device is well",
                  deaths_, why));
}

// The child's next word; nullopt, with the reason, if it says nothing valid. `silent`: it said
// nothing until the deadline.
std::optional<WorkerWord> WorkerEvaluator::hear(Clock::time_point deadline, std::string& why,
                                                bool& silent) {
  std::optional<std::string> line;
  while (!(line = child_->lines.take())) {
    if (child_->lines.overflows()) {
      why = "the worker answered without an end";
      return std::nullopt;
    }
    std::string bytes;
    const ChildTalk::Got got = child_->talk.receive(bytes, deadline);
    silent = got == ChildTalk::Got::nothing;
    if (got == ChildTalk::Got::end) why = "the worker " + child_->talk.last_words();
    if (got != ChildTalk::Got::bytes) return std::nullopt;
    child_->lines.add(bytes);
  }
  try {
    return read_word(*line);
  } catch (const Error& error) {
    why = fmt::format("the worker answered garbage: {}", error.what());
    return std::nullopt;
  }
}

// Sends the setup and waits until the child is ready. Returns false, and why, if it does not get
// there.
bool WorkerEvaluator::greet(std::string& why) {
  const Clock::time_point until = after(Clock::now(), options_.start_s);
  bool silent = false;
  const bool sent = child_->talk.send(setup_ + '\n', until);
  const std::optional<WorkerWord> word = hear(until, why, silent);
  if (word && word->word == Word::ready && sent) return true;
  if (silent) why = fmt::format("the worker was not ready in {} s", options_.start_s);
  if (word) why = word->word == Word::failed ? word->why : "the worker answered garbage";
  if (word && word->word == Word::failed && !greeted_) throw Error(ErrorKind::device, why);
  return false;
}

void WorkerEvaluator::start() {
  const Clock::time_point begin = Clock::now();
  while (!child_) {
    child_ = std::make_unique<Worker>(options_.command);
    ++started_;
    std::string why;
    if (greet(why)) {
      if (!greeted_) first_start_s_ = std::chrono::duration<double>(Clock::now() - begin).count();
      greeted_ = true;
      return;
    }
    child_.reset();
    count_death(why);
  }
}

std::optional<Death> WorkerEvaluator::attempt(const Job& job, Ledger& ledger) {
  try {
    start();
    return follow(job, ledger);
  } catch (...) {
    child_.reset();
    throw;
  }
}

std::optional<Death> WorkerEvaluator::follow(const Job& job, Ledger& ledger) {
  if (!child_->talk.send(to_line(job) + '\n', deadline(ledger))) {
    return died("the worker " + child_->talk.last_words(), ledger);
  }
  for (;;) {
    std::string why;
    bool silent = false;
    const std::optional<WorkerWord> word = hear(deadline(ledger), why, silent);
    if (silent) return hung(ledger);
    if (!word) return died(std::move(why), ledger);
    if (word->word == Word::failed) return died(word->why, ledger);
    if (word->word == Word::done && ledger.whole()) return std::nullopt;
    if (word->word != Word::report || !ledger.take(word->report)) {
      return died("the worker answered out of turn, or a time that is not one", ledger);
    }
    const Step step = word->report.step;
    if (step == Step::measured || step == Step::timed) deaths_ = 0;
  }
}

}  // namespace vqgen
