#include "runtime/tuning/worker/worker_lines.h"

#include "core/plan/plan_name.h"
#include "core/problem/config.h"
#include "runtime/tuning/journal/journal_lines.h"

namespace vqgen {
std::string to_line(const WorkerSetup& setup) {
  return text_of({{"problem", to_json(setup.problem)},
                  {"gpu", to_json(setup.gpu)},
                  {"backend", setup.backend},
                  {"codes", setup.codes},
                  {"seed", setup.seed},
                  {"compilers", setup.compilers},
                  {"codebooks", enum_name(setup.codebooks)}});
}

std::string to_line(const Job& job) {
  Json plans = Json::array();
  for (const Plan& plan : job.plans) plans.push_back(plan_name(plan));
  return text_of({{"job", enum_name(job.kind)},
                  {"plans", plans},
                  {"serial", job.serial},
                  {"first_round", job.first_round},
                  {"rounds", job.rounds}});
}

std::string to_line(const WorkerWord& word) {
  Json json = {{"word", enum_name(word.word)}};
  if (word.word == Word::failed) json["why"] = word.why;
  if (word.word != Word::report) return text_of(json);
  const Report& report = word.report;
  json["step"] = enum_name(report.step);
  json["candidate"] = report.candidate;
  if (report.step == Step::measured) json["measurement"] = to_json(report.measurement);
  if (report.step == Step::timed) json["us"] = report.us;
  return text_of(json);
}

WorkerSetup read_setup(const std::string& line) {
  const Json json = parse_json(line, "the setup");
  const JsonCursor root(json, "the setup");
  root.expect_object({"problem", "gpu", "backend", "codes", "seed", "compilers", "codebooks"});
  WorkerSetup setup;
  setup.problem = read_config(root.member("problem").value(), "the setup: /problem").problem;
  read_fields(root.member("gpu"), setup.gpu);
  constexpr std::array kBackends{"cuda", "host"};
  setup.backend = kBackends[root.member("backend").choice(kBackends)];
  setup.codes = root.member("codes").string();
  setup.seed = static_cast<std::uint64_t>(root.member("seed").integer(0, 9007199254740991.0));
  setup.compilers = static_cast<unsigned>(root.member("compilers").integer(0, 4096));
  setup.codebooks =
      static_cast<CodebookCaching>(root.member("codebooks").choice(enum_names<CodebookCaching>));
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
  const JsonCursor root(json, "the worker");
  root.expect_object({"word", "why", "step", "candidate", "measurement", "us"});
  WorkerWord word{.word = static_cast<Word>(root.member("word").choice(enum_names<Word>))};
  if (word.word == Word::failed) word.why = root.member("why").string();
  if (word.word != Word::report) return word;
  constexpr double kMostCandidates = 1e9;
  constexpr double kMostUs = 1e12;
  Report& report = word.report;
  report.step = static_cast<Step>(root.member("step").choice(enum_names<Step>));
  report.candidate = static_cast<std::size_t>(root.member("candidate").integer(0, kMostCandidates));
  if (report.step == Step::measured) {
    report.measurement = read_measurement(root.member("measurement"));
  }
  if (report.step == Step::timed) report.us = root.member("us").number(0, kMostUs);
  return word;
}

}  // namespace vqgen
