#include "runtime/tuning/worker_lines.h"

#include <cmath>
#include <limits>

#include "core/config.h"
#include "core/plan_name.h"

namespace vqgen {
namespace {

constexpr double kMostUs = 1e12;
constexpr double kInfinite = -1;  // for an error that JSON has no number for

// All that a worker may say; which fields count depends on word and step.
struct Spoken {
  Word word = Word::report;
  Step step = Step::compiling;
  std::int64_t candidate = 0;
  Outcome outcome = Outcome::timed;
  std::string why;
  double time_us = 0;
  double low_us = 0;
  double high_us = 0;
  double rel_err = 0;
  int registers = 0;
  int blocks_per_sm = 0;
  int spill_bytes = 0;
  std::int64_t shared_bytes = 0;

  static constexpr auto fields() {
    using S = Spoken;
    constexpr Rule kUs = optional_in(0, kMostUs);
    return std::make_tuple(
        field("word", &S::word, required(), "what it is about"),
        field("step", &S::step, Rule{}, "of a report"),
        field("candidate", &S::candidate, Rule{}, "its number in the job"),
        field("outcome", &S::outcome, Rule{}, "of measured"), field("why", &S::why, Rule{}, "why"),
        field("time_us", &S::time_us, kUs, "of measured and timed"),
        field("low_us", &S::low_us, kUs, "of measured"),
        field("high_us", &S::high_us, kUs, "of measured"),
        field("rel_err", &S::rel_err, optional_in(kInfinite, std::numeric_limits<double>::max()),
              "of measured; -1: infinite"),
        field("registers", &S::registers, Rule{}, "of measured"),
        field("blocks_per_sm", &S::blocks_per_sm, Rule{}, "of measured"),
        field("spill_bytes", &S::spill_bytes, Rule{}, "of measured"),
        field("shared_bytes", &S::shared_bytes, Rule{}, "of measured"));
  }
};

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string to_line(const WorkerSetup& setup) {
  return line_of({{"problem", to_json(setup.problem)},
                  {"gpu", to_json(setup.gpu)},
                  {"backend", setup.backend},
                  {"codes", setup.codes},
                  {"seed", setup.seed},
                  {"compilers", setup.compilers}});
}

std::string to_line(const Job& job) {
  Json plans = Json::array();
  for (const Plan& plan : job.plans) plans.push_back(plan_name(plan));
  return line_of({{"job", enum_name(job.kind)},
                  {"plans", plans},
                  {"serial", job.serial},
                  {"first_round", job.first_round},
                  {"rounds", job.rounds}});
}

std::string to_line(const WorkerWord& word) {
  if (word.word != Word::report) {
    return line_of({{"word", enum_name(word.word)}, {"why", word.why}});
  }
  const Report& report = word.report;
  const Measurement& m = report.measurement;
  Spoken spoken{.step = report.step,
                .candidate = static_cast<std::int64_t>(report.candidate),
                .why = m.why,
                .time_us = report.us};
  if (report.step != Step::measured) {
    return line_of({{"word", enum_name(spoken.word)},
                    {"step", enum_name(spoken.step)},
                    {"candidate", spoken.candidate},
                    {"time_us", spoken.time_us}});
  }
  spoken.outcome = m.outcome;
  spoken.time_us = m.time_us;
  spoken.low_us = m.low_us;
  spoken.high_us = m.high_us;
  spoken.rel_err = std::isfinite(m.rel_err) ? m.rel_err : kInfinite;
  spoken.registers = m.registers;
  spoken.blocks_per_sm = m.blocks_per_sm;
  spoken.spill_bytes = m.spill_bytes;
  spoken.shared_bytes = m.shared_bytes;
  return line_of(to_json(spoken));
}

WorkerSetup read_setup(const std::string& line) {
  const Json json = parse_json(line, "the setup");
  const JsonCursor root(json, "the setup");
  root.expect_object({"problem", "gpu", "backend", "codes", "seed", "compilers"});
  WorkerSetup setup;
  setup.problem = read_config(root.member("problem").value(), "the setup: /problem").problem;
  read_fields(root.member("gpu"), setup.gpu);
  constexpr std::array kBackends{"cuda", "host"};
  setup.backend = kBackends[root.member("backend").choice(kBackends)];
  setup.codes = root.member("codes").string();
  setup.seed = static_cast<std::uint64_t>(root.member("seed").integer(0, 9007199254740991.0));
  setup.compilers = static_cast<unsigned>(root.member("compilers").integer(0, 4096));
  return setup;
}

Job read_job(const std::string& line) {
  const Json json = parse_json(line, "the job");
  const JsonCursor root(json, "the job");
  root.expect_object({"job", "plans", "serial", "first_round", "rounds"});
  Job job;
  job.kind = static_cast<JobKind>(root.member("job").choice(enum_names<JobKind>));
  const JsonCursor plans = root.member("plans");
  if (!plans.value().is_array()) plans.fail("must be an array of plans' names");
  for (std::size_t i = 0; i < plans.value().size(); ++i) {
    job.plans.push_back(read_plan_name(plans.at(i)));
  }
  constexpr double kMostRounds = 1e6;
  job.serial = root.member("serial").boolean();
  job.first_round = static_cast<int>(root.member("first_round").integer(0, kMostRounds));
  job.rounds = static_cast<int>(root.member("rounds").integer(0, kMostRounds));
  return job;
}

WorkerWord read_word(const std::string& line) {
  const Json json = parse_json(line, "the worker");
  Spoken spoken;
  read_fields(JsonCursor(json, "the worker"), spoken);
  WorkerWord word{.word = spoken.word, .why = spoken.why};
  word.report.step = spoken.step;
  word.report.candidate = static_cast<std::size_t>(spoken.candidate);
  if (spoken.step == Step::timed) word.report.us = spoken.time_us;
  if (spoken.step != Step::measured) return word;
  Measurement& m = word.report.measurement;
  m.outcome = spoken.outcome;
  m.why = spoken.why;
  m.time_us = spoken.time_us;
  m.low_us = spoken.low_us;
  m.high_us = spoken.high_us;
  m.rel_err = spoken.rel_err < 0 ? std::numeric_limits<double>::infinity() : spoken.rel_err;
  m.registers = spoken.registers;
  m.blocks_per_sm = spoken.blocks_per_sm;
  m.spill_bytes = spoken.spill_bytes;
  m.shared_bytes = spoken.shared_bytes;
  return word;
}

}  // namespace vqgen
