// The watchdog over a worker whose candidates misbehave in every way: each is survived and marked,
// and all others are measured.
#include "runtime/tuning/worker/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "core/files/files.h"
#include "core/problem/config.h"
#include "core/profiles.h"
#include "runtime/tuning/journal/journal.h"
#include "tests/core/support.h"
#include "tests/in_folder.h"
#include "tests/tuning/fake_workbench.h"

namespace vqgen::test {
namespace {

using testing::HasSubstr;

// Only hanging candidates wait for this limit: the others answer or end at once.
constexpr double kHangSeconds = 0.8;

WorkerSetup setup_of(const std::string& codes = "uniform") {
  return {.problem = read_config(gemv_json(), "gemv").problem,
          .gpu = find_gpu("h200"),
          .backend = "host",
          .codes = codes};
}

WorkerOptions options_of(double hang_s = 60) {
  return {.command = {std::filesystem::read_symlink("/proc/self/exe").string(), "--serve-fake"},
          .start_s = 60,
          .compile_s = hang_s,
          .run_s = hang_s};
}

void expect_measured(const Measurement& m, int splits) {
  EXPECT_EQ(m.outcome, Outcome::timed) << m.why;
  EXPECT_EQ(m.time_us, 10 + splits);
  EXPECT_EQ(m.rel_err, 0.1 + 0.001 * splits);
  EXPECT_EQ(m.shared_bytes, 1 << 20);
  EXPECT_EQ(m.why, "");
}

std::size_t open_files() {
  std::size_t count = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    count += each.exists() || each.is_symlink();
  }
  return count;
}

void expect_no_children() {
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

struct Crime {
  Deed deed;
  Outcome outcome;
  std::string why;
};

// Each misbehaving candidate is between two healthy ones, and all of them are in one batch.
TEST(Worker, EveryDeedIsSurvivedAndMarked) {
  const std::vector<Crime> crimes{
      {Deed::segfault, Outcome::crashed, "ended by signal 11 (Segmentation fault)"},
      {Deed::abort, Outcome::crashed, "ended by signal 6 (Aborted)"},
      {Deed::exit_0, Outcome::crashed, "ended with status 0"},
      {Deed::garbage, Outcome::crashed, "answered garbage"},
      {Deed::endless_line, Outcome::crashed, "answered without an end"},
      {Deed::half_a_line, Outcome::crashed, "ended with status 0"},
      {Deed::out_of_turn, Outcome::crashed, "out of turn"},
      {Deed::closes_and_stays, Outcome::crashed, "had to be ended"},
      {Deed::device_fault, Outcome::crashed, "an illegal address was met"},
      {Deed::says_and_aborts, Outcome::crashed, "signal 6 (Aborted): a print that is no answer"},
      {Deed::not_a_time, Outcome::crashed, "answered garbage"},
      {Deed::zero_time, Outcome::crashed, "out of turn"},
      {Deed::wrong, Outcome::wrong, "bytes \xef\xbf\xbd and a \n break"},
  };
  const std::size_t files = open_files();
  {
    WorkerEvaluator evaluator(setup_of(), options_of());
    std::vector<Plan> plans{plan_that(Deed::healthy, 1)};
    for (const Crime& crime : crimes) {
      plans.push_back(plan_that(crime.deed));
      plans.push_back(plan_that(Deed::healthy, static_cast<int>(plans.size())));
    }
    const std::vector<Measurement> results = evaluator.screen(plans);
    ASSERT_EQ(results.size(), plans.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].plan, plans[i]);
      if (i % 2 == 0) {
        expect_measured(results[i], i == 0 ? 1 : static_cast<int>(i));
        continue;
      }
      const Crime& crime = crimes[i / 2];
      EXPECT_EQ(results[i].outcome, crime.outcome) << i << ": " << results[i].why;
      EXPECT_THAT(results[i].why, HasSubstr(crime.why)) << i;
    }
    EXPECT_EQ(evaluator.started(), static_cast<int>(crimes.size()));  // the last deed is no death
    EXPECT_GT(evaluator.spent_s(), 0);
    EXPECT_EQ(open_files(), files + 2);
  }
  EXPECT_EQ(open_files(), files);
  expect_no_children();
}

TEST(Worker, WhatHangsIsKilledAndMarked) {
  WorkerEvaluator evaluator(setup_of(), options_of(kHangSeconds));
  const std::vector<Plan> plans{plan_that(Deed::healthy, 1), plan_that(Deed::hang),
                                plan_that(Deed::late, 2), plan_that(Deed::hang_in_compile),
                                plan_that(Deed::healthy, 3)};
  const std::vector<Measurement> results = evaluator.screen(plans);
  EXPECT_EQ(results[1].outcome, Outcome::hung);
  EXPECT_EQ(results[1].why, "running for more than 0.8 s");
  EXPECT_EQ(results[3].outcome, Outcome::hung);
  EXPECT_EQ(results[3].why, "compiling for more than 0.8 s");
  expect_measured(results[0], 1);
  expect_measured(results[2], 2);
  expect_measured(results[4], 3);
  EXPECT_GE(evaluator.spent_s(), 2 * kHangSeconds);
  const double before = evaluator.spent_s();
  expect_measured(evaluator.screen(std::vector{plan_that(Deed::healthy, 5)}).front(), 5);
  EXPECT_GE(evaluator.spent_s(), before);
}

// Several are compiling when one of them ends the process; only that one is marked.
TEST(Worker, ACrashOfTheCompilerIsOfOneCandidate) {
  WorkerEvaluator evaluator(setup_of(), options_of());
  const std::vector<Measurement> results = evaluator.screen(
      std::vector{plan_that(Deed::slow_compile, 1), plan_that(Deed::abort_in_compile),
                  plan_that(Deed::slow_compile, 2), plan_that(Deed::healthy, 3)});
  expect_measured(results[0], 1);
  EXPECT_EQ(results[1].outcome, Outcome::crashed);
  EXPECT_THAT(results[1].why, HasSubstr("signal 6"));
  expect_measured(results[2], 2);
  expect_measured(results[3], 3);
}

class InWorkerFolder : public InFolder {};

TEST_F(InWorkerFolder, WhatACandidateStartedEndsWithIt) {
  const std::string place = (folder_ / "pid").string();
  WorkerEvaluator evaluator(setup_of(place), options_of(kHangSeconds));
  EXPECT_EQ(evaluator.screen(std::vector{plan_that(Deed::leaves_a_child)}).front().outcome,
            Outcome::hung);
  const std::string stat = "/proc/" + read_text(place) + "/stat";
  std::string state;  // "" once it is gone, which may happen at any time
  const auto ended = [&] {
    std::ifstream file(stat);
    state.clear();
    std::getline(file, state);
    return state.empty() || state.find(") Z ") != std::string::npos;  // and nobody reaps it
  };
  for (int i = 0; i < 500 && !ended(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(ended()) << state;
}

TEST(Worker, FinalsGoOnWithoutThoseWhoFail) {
  WorkerEvaluator evaluator(setup_of(), options_of(kHangSeconds));
  const std::vector<FinalTimes> results = evaluator.finals(
      std::vector{plan_that(Deed::healthy, 100), plan_that(Deed::abort_in_round, 200),
                  plan_that(Deed::wrong_when_seated), plan_that(Deed::healthy, 300),
                  plan_that(Deed::segfault), plan_that(Deed::hang_in_compile)},
      7);
  ASSERT_EQ(results.size(), 6u);
  for (const std::size_t i : {0u, 3u}) {
    ASSERT_EQ(results[i].us.size(), 7u) << results[i].why;
    EXPECT_EQ(results[i].outcome, Outcome::timed);
    for (const double us : results[i].us) EXPECT_NEAR(us, i == 0 ? 110 : 310, 1);
  }
  EXPECT_EQ(results[1].outcome, Outcome::crashed);
  EXPECT_EQ(results[1].us.size(), 2u);
  EXPECT_EQ(results[2].outcome, Outcome::wrong);
  EXPECT_EQ(results[4].outcome, Outcome::crashed);
  EXPECT_EQ(results[5].outcome, Outcome::hung);
}

// The fake's clock counts turns and moves of the data: in each round all have a turn, in varying
// order, and data moves once per batch.
TEST(Worker, RoundsRotateAndBatchesMove) {
  WorkerEvaluator evaluator(setup_of(), options_of());
  const std::vector<FinalTimes> results =
      evaluator.finals(std::vector{plan_that(Deed::healthy, 100), plan_that(Deed::healthy, 200),
                                   plan_that(Deed::healthy, 300)},
                       4);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(results[i].us.size(), 4u) << results[i].why;
    for (std::size_t round = 0; round < 4; ++round) {
      const double moved = kMovedUs * batch_of(static_cast<int>(round), 4);
      const double turn =
          (results[i].us[round] - 10 - 100.0 * static_cast<double>(i + 1) - moved) / 0.001;
      const std::size_t place = (i + 3 - round % 3) % 3;
      EXPECT_NEAR(turn, static_cast<double>(3 * round + place), 0.01) << i << " " << round;
    }
  }
  EXPECT_EQ(evaluator.started(), 1);
}

TEST(Worker, AWorldThatCannotMeasureIsAnError) {
  const std::vector<Plan> plan{plan_that(Deed::healthy)};
  WorkerEvaluator none(setup_of("no device"), options_of());
  EXPECT_EQ(device_error([&] { none.screen(plan); }), "there is no device here");
  EXPECT_EQ(none.started(), 1);

  WorkerEvaluator dies(setup_of("dies"), options_of());
  EXPECT_THAT(device_error([&] { dies.screen(plan); }),
              testing::AllOf(HasSubstr("3 workers died"), HasSubstr("signal 6")));
  EXPECT_EQ(dies.started(), 3);

  WorkerOptions impatient = options_of();
  impatient.start_s = 0.1;
  WorkerEvaluator stays(setup_of("stays"), impatient);
  EXPECT_THAT(device_error([&] { stays.finals(plan, 1); }), HasSubstr("not ready in 0.1 s"));

  WorkerEvaluator between(setup_of(), options_of());
  EXPECT_THAT(
      device_error([&] { between.screen(std::vector{plan_that(Deed::abort_after_compile)}); }),
      HasSubstr("died one after another at no candidate"));

  WorkerOptions nowhere = options_of();
  nowhere.command = {"/nowhere/vqgen"};
  WorkerEvaluator missing(setup_of(), nowhere);
  EXPECT_THAT(device_error([&] { missing.screen(plan); }), HasSubstr("/nowhere/vqgen"));
  nowhere.command = {"true"};
  WorkerEvaluator deaf(setup_of(), nowhere);
  EXPECT_THAT(device_error([&] { deaf.screen(plan); }), HasSubstr("ended with status 0"));
  expect_no_children();
}

TEST(Worker, NothingToDoStartsNoChild) {
  WorkerEvaluator evaluator(setup_of("dies"), options_of());
  EXPECT_TRUE(evaluator.screen({}).empty());
  EXPECT_TRUE(evaluator.finals({}, 5).empty());
  EXPECT_EQ(evaluator.finals(std::vector{plan_that(Deed::healthy)}, 0).front().us.size(), 0u);
  EXPECT_EQ(evaluator.started(), 0);
}

Clock::time_point in_seconds(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// No signal is raised in this process, and neither side waits for the other for longer than it
// wants.
TEST(ChildTalk, TakesAndGivesInBoundedTime) {
  std::string bytes;
  {
    ChildTalk gone({.command = {"true"}});
    EXPECT_EQ(gone.receive(bytes, in_seconds(60)), ChildTalk::Got::end);
    EXPECT_FALSE(gone.send("who is there\n", in_seconds(60)));
    EXPECT_EQ(gone.last_words(), "ended with status 0");
  }
  {
    ChildTalk deaf({.command = {"sleep", "1000"}});
    EXPECT_EQ(deaf.receive(bytes, in_seconds(0.05)), ChildTalk::Got::nothing);
    EXPECT_FALSE(deaf.send(std::string(std::size_t{16} << 20, 'x'), in_seconds(0.05)));
  }
  {
    ChildTalk echo({.command = {"cat"}});
    LineBuffer lines(std::size_t{1} << 20);
    for (const std::size_t size : {0u, 1u, 4095u, 4096u, 100000u}) {
      const std::string text(size, 'x');
      EXPECT_TRUE(echo.send(text + '\n', in_seconds(60)));
      std::optional<std::string> line;
      while (!(line = lines.take())) {
        bytes.clear();
        ASSERT_EQ(echo.receive(bytes, in_seconds(60)), ChildTalk::Got::bytes);
        lines.add(bytes);
      }
      EXPECT_EQ(*line, text);
    }
  }
  {
    ChildTalk loud({.command = {"sh", "-c", "while :; do echo noise >&2; done"}});
    EXPECT_EQ(loud.receive(bytes, in_seconds(0.05)), ChildTalk::Got::nothing);
  }
  expect_no_children();
}

// To the worker, a tuner that goes away is only a socket that closes, whatever the worker is doing.
TEST(Worker, EndsWithItsTuner) {
  int talk[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, talk), 0);
  const std::string program = options_of().command.front();
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(talk[1], 0);
    ::dup2(talk[1], 1);
    ::execl(program.c_str(), program.c_str(), "--serve-fake", nullptr);
    ::_exit(98);
  }
  ::close(talk[1]);
  const std::string words =
      to_line(setup_of()) + "\n" + to_line(Job{.plans = {plan_that(Deed::hang)}}) + "\n";
  ASSERT_EQ(::write(talk[0], words.data(), words.size()), static_cast<ssize_t>(words.size()));
  std::string heard;
  char byte = 0;
  while (heard.find("running") == std::string::npos && ::read(talk[0], &byte, 1) == 1)
    heard += byte;
  EXPECT_THAT(heard, HasSubstr("running"));
  ::close(talk[0]);
  int status = -1;
  pid_t ended = 0;
  for (int i = 0; i < 1000 && ended == 0; ++i) {
    ended = ::waitpid(child, &status, WNOHANG);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(ended, child) << "the worker goes on alone";
  if (ended != child) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(Worker, LinesSayWhatTheyAreGiven) {
  WorkerSetup setup = setup_of("zipf:1.5");
  setup.codebooks = CodebookCaching::warm;
  const WorkerSetup back = read_setup(to_line(setup));
  EXPECT_EQ(back.problem, setup.problem);
  EXPECT_EQ(back.gpu, setup.gpu);
  EXPECT_EQ(back.codes, setup.codes);
  EXPECT_EQ(back.codebooks, setup.codebooks);
  const Job job{JobKind::finals, {plan_that(Deed::hang, 7)}, true, 3, 9};
  const Job same = read_job(to_line(job));
  EXPECT_EQ(same.kind, job.kind);
  EXPECT_EQ(same.plans, job.plans);
  EXPECT_EQ(same.first_round, 3);
  EXPECT_EQ(same.rounds, 9);
  EXPECT_TRUE(same.serial);
}

// A report has a measurement's fields as in a journal's line, and no times if there are none yet.
TEST(Worker, ReportsSayAMeasurementAsJournalsDo) {
  Measurement m;
  m.plan = plan_that(Deed::late, 3);
  m.rel_err = 0.1 + 0.02;
  m.registers = 40;
  m.shared_bytes = std::int64_t{1} << 33;
  for (const double us : {0.0, 8.25}) {
    m.time_us = m.low_us = m.high_us = us;
    const std::string line = to_line(WorkerWord{.report = {Step::measured, 5, m}});
    EXPECT_THAT(line, HasSubstr(to_json(m).dump()));
    const Report back = read_word(line).report;
    EXPECT_EQ(back.candidate, 5u);
    EXPECT_EQ(to_json(back.measurement), to_json(m));
    EXPECT_EQ(back.measurement.plan, m.plan);
    EXPECT_EQ(back.measurement.time_us, us);
  }
  m.outcome = Outcome::wrong;
  m.why = "rel_err inf";
  m.rel_err = std::numeric_limits<double>::infinity();
  const Report back = read_word(to_line(WorkerWord{.report = {Step::measured, 5, m}})).report;
  EXPECT_EQ(back.measurement.outcome, Outcome::wrong);
  EXPECT_EQ(back.measurement.why, m.why);
}

TEST(Worker, BadLinesAreRefused) {
  for (const char* line :
       {"", "{}", "[]", "null", "{\"word\": \"report\", \"word\": \"done\"}",
        "{\"word\": \"hello\"}",
        "{\"word\": \"report\", \"step\": \"measured\", \"candidate\": -1}",
        "{\"word\": \"report\", \"step\": \"measured\", \"candidate\": 1.5}",
        "{\"word\": \"report\", \"step\": \"timed\", \"candidate\": 0}",
        "{\"word\": \"report\", \"step\": \"timed\", \"candidate\": 0, \"us\": null}",
        "{\"word\": \"report\", \"step\": \"timed\", \"candidate\": 0, \"us\": 1e400}",
        "{\"word\": \"report\", \"step\": \"measured\", \"candidate\": 0}",
        "{\"word\": \"report\", \"step\": \"measured\", \"candidate\": 0, "
        "\"measurement\": {\"plan\": \"linear_simt/\", \"outcome\": \"timed\", \"rel_err\": 0, "
        "\"registers\": 99999999999}}",
        "{\"word\": \"done\", \"more\": 1}"}) {
    EXPECT_THAT(message_of([&] { read_word(line); }), HasSubstr("the worker")) << line;
  }
  EXPECT_NE(message_of([] { read_job("{\"job\": \"screen\"}"); }), "");
  EXPECT_NE(message_of([] {
              read_job(R"({"job": "screen", "plans": ["linear_simt/splits=0"], "serial": false,
                           "first_round": 0, "rounds": 0})");
            }),
            "");
  EXPECT_NE(message_of([] { read_setup("{}"); }), "");
}

}  // namespace
}  // namespace vqgen::test
