// Journals: a tuning killed at any byte of its journal and resumed ends in the row of an
// uninterrupted one and measures nothing twice; files that are not this tuning's journal are
// refused.
#include "runtime/tuning/journal/journal.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <regex>

#include "core/files/files.h"
#include "tests/in_folder.h"
#include "tests/message_of.h"
#include "tests/tuning/landscape.h"

namespace vqgen {
namespace {

constexpr const char* kNoIncumbent = "{\"incumbent\":null}\n";

class Journal : public test::InFolder {
 protected:
  Journal() : land_(test::landscape(test::gemv_problem("aqlm-2x8", {1, 256, 512}), 5)) {
    // Some of each fault are among the cheapest plans, so that the tuning meets them.
    constexpr std::array kFaults{Outcome::hung, Outcome::crashed, Outcome::wrong,
                                 Outcome::compile_failed};
    for (std::size_t i = 1; i < 12; i += 3) {
      Measurement& m = land_.recorded[land_.space.by_cost[i]];
      m.outcome = kFaults[i / 3];
      m.why = "seeded \"fault\"\n with a line";
    }
  }

  Json header(const std::string& code = "c0de") const {
    return journal_header(land_.problem, land_.gpu, {}, {"H200", "1", "nvrtc", "0"}, code);
  }
  std::filesystem::path path() const { return folder_ / "journal"; }
  NoisyReplay replay() const {
    return NoisyReplay(land_.recorded, {.sigma = 0.02, .candidate_s = 0.1, .round_s = 0.01});
  }
  // Row, seconds and trials of a tuning with the current journal, as text.
  std::string tuned(std::vector<std::string>* asked = nullptr,
                    const std::optional<Plan>& incumbent = std::nullopt) const {
    NoisyReplay inner = replay();
    test::Counting counting(inner);
    JournaledEvaluator journal(counting, path(), header(), incumbent);
    TuneOptions options = test::options_of(StrategyName::model, 0);
    options.incumbent = journal.incumbent();
    options.batch = 5;
    options.budget_s = 6;
    options.rounds = 7;
    const TuneResult result = tune(land_.problem, land_.gpu, journal, options);
    if (asked != nullptr) *asked = counting.names;
    Json trials = Json::array();
    for (const Trial& each : result.trials) {
      trials.push_back({plan_name(each.measurement.plan), each.at_s, each.finalist});
    }
    return Json{{"row", to_json(result.row)}, {"spent", result.spent_s}, {"trials", trials}}.dump();
  }
  std::string refusal(const std::string& text) const {
    publish_text(path(), text);
    return message_of([&] {
      NoisyReplay inner = replay();
      JournaledEvaluator journal(inner, path(), header());
    });
  }

  test::Landscape land_;
};

TEST_F(Journal, IsKilledAtAnyByteAndEndsTheSame) {
  const std::string whole_run = tuned();
  const std::string text = read_text(path());
  std::vector<std::size_t> cuts{
      0, 1, text.find('\n') / 2, text.find('\n'), text.size() - 1, text.size()};
  for (std::size_t at = text.find('\n'); at < text.size() - 1; at = text.find('\n', at + 1)) {
    const std::size_t end = text.find('\n', at + 1);
    cuts.insert(cuts.end(), {at + 1, at + 2, (at + end) / 2, end - 1, end});
  }
  std::size_t lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  ASSERT_GT(lines, 20u);
  EXPECT_EQ(cuts.size(), 6 + 5 * (lines - 1));
  for (const std::size_t cut : cuts) {
    SCOPED_TRACE(cut);
    publish_text(path(), text.substr(0, cut));
    std::vector<std::string> asked;
    ASSERT_EQ(tuned(&asked), whole_run);
    for (const std::string& name : asked) {
      const std::string quoted = Json(name).dump();
      const std::size_t line = text.find("\"plan\":" + quoted);
      ASSERT_NE(line, std::string::npos) << name;
      EXPECT_GE(text.find('\n', line), cut) << name << " was recorded and measured again";
    }
    ASSERT_EQ(read_text(path()), text);
  }
}

TEST_F(Journal, AnswersAllOfASecondRun) {
  const std::string first = tuned();
  const std::string text = read_text(path());
  std::vector<std::string> asked;
  EXPECT_EQ(tuned(&asked), first);
  EXPECT_TRUE(asked.empty());
  EXPECT_EQ(read_text(path()), text);
}

TEST_F(Journal, OfAnotherTuningIsRefusedAndRestarted) {
  tuned();
  NoisyReplay inner = replay();
  const std::string message =
      message_of([&] { JournaledEvaluator journal(inner, path(), header("0the7")); });
  EXPECT_NE(message.find("--restart"), std::string::npos) << message;
  EXPECT_NE(message.find(path().string()), std::string::npos) << message;
  JournaledEvaluator journal(inner, path(), header("0the7"), std::nullopt, /*restart=*/true);
  EXPECT_EQ(journal.recorded(), 0u);
  journal.screen(std::vector{land_.space.candidates[0].plan});
  const std::string text = read_text(path());
  EXPECT_TRUE(text.starts_with(header("0the7").dump() + "\n" + kNoIncumbent + "{\"cost_us\""));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
}

// When a tuning is resumed, its own row may already be in the table.
TEST_F(Journal, GoesOnWithTheIncumbentThatItBeganWith) {
  const std::string first = tuned();
  const std::string text = read_text(path());
  const Plan other = land_.recorded[land_.space.by_cost.back()].plan;
  std::vector<std::string> asked;
  EXPECT_EQ(tuned(&asked, other), first);
  EXPECT_TRUE(asked.empty());
  publish_text(path(), text.substr(0, text.size() / 2));
  EXPECT_EQ(tuned(nullptr, other), first);
  // The journal of a tuning with an incumbent contains it, and the incumbent is measured.
  publish_text(path(), "");
  const std::string with = tuned(&asked, other);
  EXPECT_EQ(asked.at(1), plan_name(other));
  EXPECT_NE(with, first);
  EXPECT_EQ(tuned(), with);
  EXPECT_NE(refusal(header().dump() + "\n{\"incumbent\":3}\n").find(":2"), std::string::npos);
}

TEST_F(Journal, IsOfOneProcessAtATime) {
  NoisyReplay inner = replay();
  JournaledEvaluator journal(inner, path(), header());
  for (const bool restart : {false, true}) {
    const std::string message =
        message_of([&] { JournaledEvaluator second(inner, path(), header(), {}, restart); });
    EXPECT_NE(message.find("another process"), std::string::npos) << message;
  }
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(Journal, OneWithoutAnAnswerLeavesNothingOrWhatWasThere) {
  NoisyReplay inner = replay();
  { JournaledEvaluator journal(inner, path(), header()); }
  EXPECT_FALSE(std::filesystem::exists(path()));
  tuned();
  const std::string text = read_text(path());
  for (const std::string& kept : {text, text + "{\"cut", text.substr(0, text.find('\n') + 1)}) {
    publish_text(path(), kept);
    { JournaledEvaluator journal(inner, path(), header(), {}, /*restart=*/true); }
    { JournaledEvaluator journal(inner, path(), header()); }
    EXPECT_EQ(read_text(path()), kept);
  }
}

TEST_F(Journal, OfALinkToNothingIsRefused) {
  NoisyReplay inner = replay();
  std::filesystem::create_symlink(path().string() + ".gone", path());
  const std::string message =
      message_of([&] { JournaledEvaluator journal(inner, path(), header()); });
  EXPECT_NE(message.find("a link to a file that is not there"), std::string::npos) << message;
}

// Limits the size of files, which fails writes as a full disk does.
class FilesUpTo {
 public:
  explicit FilesUpTo(std::size_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit least{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &least);
  }
  ~FilesUpTo() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_F(Journal, OfAFullDiskIsAsItWasBeforeTheAnswer) {
  NoisyReplay inner = replay();
  const std::vector<Plan> plans{land_.space.candidates[0].plan};
  const auto screen = [&] {
    JournaledEvaluator journal(inner, path(), header());
    journal.screen(plans);
  };
  std::string message;
  for (const std::size_t bytes : {0u, 1u, 500u}) {
    {
      const FilesUpTo limit(bytes);
      message = message_of(screen);
    }
    EXPECT_NE(message.find("cannot write the journal"), std::string::npos) << message;
    EXPECT_FALSE(std::filesystem::exists(path())) << bytes;
  }
  screen();
  const std::string text = read_text(path());
  const std::string head = text.substr(0, text.find('\n') + 1) + kNoIncumbent;
  publish_text(path(), head);
  {
    const FilesUpTo limit(text.size() - 1);
    message = message_of(screen);
  }
  EXPECT_NE(message.find("make room"), std::string::npos) << message;
  EXPECT_EQ(read_text(path()), head);
}

TEST_F(Journal, DamageIsRefusedAndTheFileKept) {
  tuned();
  const std::string text = read_text(path());
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    lines.push_back(text.substr(at, text.find('\n', at) + 1 - at));
  }
  const auto with_line = [&](const std::string& line) {
    return lines[0] + lines[1] + line + "\n" + lines[2];
  };
  const std::string screen = R"({"cost_us":1,"screen":{"plan":"linear_simt/","outcome":"hung",)";
  for (const std::string& line :
       {std::string("{"), std::string(), std::string("3"), std::string("{}"), std::string(5, '\0'),
        screen + R"("why":"x"}})" + "x", screen + R"("more":"x"}})", screen + R"("why":3}})",
        std::string(R"({"cost_us":-1,"screen":{"plan":"linear_simt/",)") +
            R"("outcome":"hung","why":"x"}})",
        std::string(R"({"cost_us":1,"screen":{"plan":"linear_simt/","outcome":"timed"}})"),
        std::string(R"({"cost_us":1,"screen":{"plan":"linear_simt/x","outcome":"hung","why":""}})"),
        std::string(R"({"cost_us":1,"finals":{"plans":["linear_simt/"],"rounds":2,"times":[]}})"),
        std::string(R"({"cost_us":1,"finals":{"plans":["linear_simt/"],"rounds":1,"times":)") +
            R"([{"us":[1,2],"outcome":"timed"}]}})",
        std::string(R"({"cost_us":1,"finals":{"plans":["linear_simt/"],"rounds":1,"times":)") +
            R"([{"us":[null],"outcome":"timed"}]}})"}) {
    const std::string damaged = with_line(line);
    const std::string message = refusal(damaged);
    EXPECT_NE(message.find(path().string() + ":3"), std::string::npos) << message;
    EXPECT_NE(message.find("--restart"), std::string::npos) << message;
    EXPECT_EQ(read_text(path()), damaged);
  }
  const std::string twice = lines[0] + lines[1] + lines[2] + lines[1] + lines[3];
  EXPECT_NE(refusal(twice).find(":4"), std::string::npos);
}

TEST_F(Journal, AHeaderIsKnownHoweverItIsWritten) {
  const std::string whole_run = tuned();
  std::string text = read_text(path());
  std::string spaced = header().dump(1);
  std::replace(spaced.begin(), spaced.end(), '\n', ' ');
  publish_text(path(), spaced + text.substr(text.find('\n')));
  std::vector<std::string> asked;
  EXPECT_EQ(tuned(&asked), whole_run);
  EXPECT_TRUE(asked.empty());
}

TEST_F(Journal, AnotherFileIsNotTouched) {
  NoisyReplay inner = replay();
  for (const std::string text : {"notes", "notes\nmore\n", "notes\nmore", "{}\n", "\n",
                                 "{\"code\":1}\n", "\"vqgen_journal\":1\nmore"}) {
    EXPECT_NE(refusal(text), "");
    EXPECT_EQ(read_text(path()), text);
    const std::string message =
        message_of([&] { JournaledEvaluator journal(inner, path(), header(), {}, true); });
    EXPECT_NE(message.find("no journal"), std::string::npos) << message;
    EXPECT_EQ(read_text(path()), text);
  }
  // This journal belongs to another tuning, and a kill has cut its last line.
  const std::string other = header("0the7").dump() + "\n{\"incum";
  EXPECT_NE(refusal(other).find("another problem"), std::string::npos);
  EXPECT_EQ(read_text(path()), other);
  EXPECT_NE(message_of([&] { JournaledEvaluator j(inner, folder_ / "none" / "j", header()); }), "");
  EXPECT_NE(message_of([&] { JournaledEvaluator j(inner, folder_, header()); }), "");
}

// Whatever a journal contains, a tuning ends in a row that tables can hold, or refuses the journal.
TEST_F(Journal, WhatIsTakenMakesARowThatReadersTake) {
  tuned();
  const std::string text = read_text(path());
  int taken = 0, refused = 0;
  for (const char* field : {"rel_err", "time_us", "us"}) {
    for (const char* value : {"0", "1e-310", "1e-4", "0.5", "1", "1.5", "2147483648", "1e300"}) {
      SCOPED_TRACE(std::string(field) + " " + value);
      const bool list = std::string_view(field) == "us";
      const std::regex all(list ? R"re("us":\[[^\]]*\])re"
                                : "\"" + std::string(field) + "\":[-+0-9.e]+");
      std::string seven(value);
      for (int i = 1; i < 7; ++i) seven += "," + std::string(value);
      publish_text(path(), std::regex_replace(text, all,
                                              "\"" + std::string(field) +
                                                  "\":" + (list ? "[" + seven + "]" : value)));
      std::string row;
      try {
        row = tuned();
      } catch (const Error&) {
        ++refused;
        continue;
      }
      ++taken;
      const Json json = parse_json(row, "row");
      EXPECT_NO_THROW(read_tuned_row(JsonCursor(json["row"], "row"))) << row;
    }
  }
  EXPECT_GT(taken, 6);
  EXPECT_GT(refused, 6);
}

TEST_F(Journal, FalseTimesAreRecordedAsWrong) {
  NoisyReplay inner = replay();
  test::Counting counting(inner);
  counting.spoil = [](Measurement& m) { m.time_us = std::nan(""); };
  const std::vector<Plan> plans{land_.recorded[land_.space.by_cost[0]].plan};
  {
    JournaledEvaluator journal(counting, path(), header());
    EXPECT_EQ(journal.screen(plans).front().outcome, Outcome::wrong);
  }
  JournaledEvaluator journal(inner, path(), header());
  EXPECT_EQ(journal.recorded(), 1u);
  EXPECT_EQ(journal.screen(plans).front().outcome, Outcome::wrong);
}

}  // namespace
}  // namespace vqgen
