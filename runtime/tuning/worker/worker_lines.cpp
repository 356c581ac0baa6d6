#include "runtime/tuning/worker/worker_lines.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>

#include "core/files/files.h"
#include "core/json/leftovers.h"
#include "core/parallel.h"
#include "core/plan/plan_name.h"
#include "core/problem/config.h"
#include "runtime/code_distribution.h"
#include "runtime/tuning/journal/journal.h"

namespace vqgen {
namespace {

MeasureOptions screen_options(const WorkerSetup& setup) {
  MeasureOptions options;
  options.compilers = setup.compilers;
  options.replays = kScreenReplays;
  options.codebooks = setup.codebooks;
  options.input = hard_input(read_codes(setup.codes), setup.seed, setup.problem);
  return setup.backend == "host" ? on_host(std::move(options)) : options;
}

// What Measurer::compile() would return for it again.
CompiledPlan compiled_again(const CompiledPlan& candidate) {
  CompiledPlan again;
  again.measurement = candidate.measurement;
  again.measurement.time_us = again.measurement.low_us = again.measurement.high_us = 0;
  again.source = candidate.source;
  again.artifact = candidate.artifact;
  return again;
}

constexpr std::size_t kMostJobBytes = std::size_t{1} << 26;

// The tuner is gone, so nobody waits for this process.
[[noreturn]] void leave() {
  end_leftovers();
  ::_exit(0);
}

// Standard input and output, moved out of reach of prints and of child processes.
class Talk {
 public:
  Talk()
      : in_(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)),
        out_(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)) {
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing < 0 || in_ < 0 || out_ < 0) {
      throw Error(ErrorKind::device, "the worker has no standard input and output");
    }
    ::dup2(nothing, STDIN_FILENO);
    ::close(nothing);
    std::thread([in = in_] {
      pollfd gone{in, POLLRDHUP, 0};
      while (::poll(&gone, 1, -1) < 0 && errno == EINTR) {
      }
      leave();
    }).detach();
  }

  std::optional<std::string> line() {
    for (;;) {
      if (std::optional<std::string> next = lines_.take()) return next;
      if (lines_.overflows()) {
        throw Error(ErrorKind::bad_input, "the job is longer than a line may be");
      }
      std::vector<char> bytes(65536);  // threads may have a stack this small
      const ssize_t got = ::read(in_, bytes.data(), bytes.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return std::nullopt;
      lines_.add(std::string_view(bytes.data(), static_cast<std::size_t>(got)));
    }
  }

  void say(const WorkerWord& word) const {
    const std::string line = to_line(word) + '\n';
    if (write_all(out_, std::as_bytes(std::span(line))) != 0) leave();  // the tuner is gone
  }

 private:
  int in_;
  int out_;
  LineBuffer lines_{kMostJobBytes};
};

}  // namespace

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

MeasurerWorkbench::MeasurerWorkbench(Backend& backend, const WorkerSetup& setup)
    : measurer_(backend, setup.gpu, setup.problem, screen_options(setup)),
      keeps_(setup.backend == "host") {}

void MeasurerWorkbench::compile(std::span<const Plan> plans, bool serial,
                                const CompileWatch& watch) {
  candidates_.clear();
  candidates_.resize(plans.size());
  in_parallel(plans.size(), serial ? 1 : measurer_.compilers(), [&](std::size_t i) {
    watch.begun(i);
    const auto kept = kept_.find(plan_name(plans[i]));
    if (kept != kept_.end()) {
      candidates_[i] = compiled_again(kept->second);
    } else {
      candidates_[i] = measurer_.compile(plans[i]);
    }
    watch.ended(i);
  });
}

Measurement MeasurerWorkbench::screen(std::size_t candidate) {
  CompiledPlan& each = candidates_.at(candidate);
  if (seat(candidate).outcome == Outcome::timed) measurer_.time(each);
  each.kernel.reset();
  if (keeps_ && each.measurement.outcome == Outcome::timed) {
    kept_.insert_or_assign(plan_name(each.measurement.plan), compiled_again(each));
  }
  each.artifact.reset();
  return each.measurement;
}

Measurement MeasurerWorkbench::seat(std::size_t candidate) {
  CompiledPlan& each = candidates_.at(candidate);
  if (each.artifact) measurer_.verify(each);
  return each.measurement;
}

double MeasurerWorkbench::round_us(std::size_t candidate) {
  const std::vector<double> times = measurer_.time_us(candidates_.at(candidate));
  return times[times.size() / 2];
}

int serve_worker(const MakeWorkbench& make) {
  Talk talk;
  try {
    const std::optional<std::string> first = talk.line();
    if (!first) return 0;
    const std::unique_ptr<Workbench> bench = make(read_setup(*first));
    talk.say({.word = Word::ready});
    while (const std::optional<std::string> line = talk.line()) {
      do_job(*bench, read_job(*line), [&](const Report& report) { talk.say({.report = report}); });
      talk.say({.word = Word::done});
    }
    return 0;
  } catch (const Error& error) {
    talk.say({.word = Word::failed, .why = error.what()});
    return error.exit_code();
  } catch (const std::exception& error) {
    talk.say({.word = Word::failed, .why = std::string("unexpected: ") + error.what()});
    return static_cast<int>(ErrorKind::device);
  }
}

}  // namespace vqgen
