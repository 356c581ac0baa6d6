// Recorded landscapes: only the requested noise, outcomes as recorded, and invalid files refused.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/files/files.h"
#include "core/problem/config.h"
#include "tests/in_folder.h"
#include "tests/message_of.h"
#include "tests/tuning/landscape.h"

namespace vqgen {
namespace {

std::vector<Plan> plans_of(const test::Landscape& land, std::size_t count) {
  std::vector<Plan> plans;
  for (std::size_t i = 0; i < count; ++i) plans.push_back(land.recorded[i * 3].plan);
  return plans;
}

TEST(Replay, AnswersWithoutNoiseWhatWasRecorded) {
  const test::Landscape land = test::landscape(test::gemv_problem(), 1);
  NoisyReplay replay(land.recorded, {.candidate_s = 0.5, .round_s = 0.25});
  const std::vector<Plan> plans = plans_of(land, 5);
  const auto screened = replay.screen(plans);
  EXPECT_EQ(replay.spent_s(), 2.5);
  const auto finals = replay.finals(plans, 3);
  EXPECT_EQ(replay.spent_s(), 2.5 + 0.25 * 15);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    EXPECT_EQ(screened[i].plan, plans[i]);
    EXPECT_EQ(screened[i].time_us, land.us(plans[i]));
    EXPECT_EQ(finals[i].us, std::vector<double>(3, land.us(plans[i])));
  }
}

TEST(Replay, NoiseIsAFunctionOfSeedPlanAndRound) {
  const test::Landscape land = test::landscape(test::gemv_problem(), 1);
  const std::vector<Plan> plans = plans_of(land, 6);
  NoisyReplay replay(land.recorded, {.seed = 3, .sigma = 0.01, .drift = 0.1});
  NoisyReplay again(land.recorded, {.seed = 3, .sigma = 0.01, .drift = 0.1});
  NoisyReplay other(land.recorded, {.seed = 4, .sigma = 0.01, .drift = 0.1});
  replay.screen(plans);
  const auto all = replay.finals(plans, 40);
  const auto alone = again.finals(std::span(plans).subspan(2, 1), 40);
  EXPECT_EQ(all[2].us, alone.front().us);
  EXPECT_NE(other.finals(plans, 40)[2].us, all[2].us);
  // In pairs the drift cancels, and the noise is sqrt(2) of a plan's.
  double sum = 0;
  for (std::size_t r = 0; r < 40; ++r) {
    const double log =
        std::log(all[0].us[r] / all[1].us[r] * land.us(plans[1]) / land.us(plans[0]));
    sum += log * log;
  }
  EXPECT_NEAR(std::sqrt(sum / 40), 0.01 * std::sqrt(2.0), 0.005);
  double alike = 0;
  for (std::size_t r = 0; r < 40; ++r) {
    alike = std::max(alike, std::abs(std::log(all[0].us[r] / land.us(plans[0]))));
  }
  EXPECT_GT(alike, 0.1);
}

TEST(Replay, GivesOutcomesAgainAndKnowsWhatIsNotThere) {
  test::Landscape land = test::landscape(test::gemv_problem(), 1);
  land.recorded[3].outcome = Outcome::hung;
  land.recorded[3].why = "after 2 s";
  land.recorded[6].outcome = Outcome::wrong;
  std::vector<Plan> plans = plans_of(land, 3);
  plans.push_back(land.recorded.back().plan);
  land.recorded.pop_back();
  NoisyReplay replay(land.recorded, {});
  const auto screened = replay.screen(plans);
  EXPECT_EQ(screened[0].outcome, Outcome::timed);
  EXPECT_EQ(screened[1].outcome, Outcome::hung);
  EXPECT_EQ(screened[1].why, "after 2 s");
  EXPECT_EQ(screened[2].outcome, Outcome::wrong);
  EXPECT_EQ(screened[3].outcome, Outcome::compile_failed);
  EXPECT_EQ(screened[3].why, "not recorded");
  EXPECT_EQ(screened[3].plan, plans[3]);
  const auto finals = replay.finals(plans, 2);
  EXPECT_TRUE(finals[1].us.empty());
  EXPECT_EQ(finals[1].outcome, Outcome::hung);
}

class Recording : public test::InFolder {
 protected:
  std::vector<Measurement> read(const Json& json) {
    publish_text(folder_ / "r.json", json.dump());
    return read_recording(folder_ / "r.json", problem_);
  }
  std::string refusal(const Json& json) {
    return message_of([&] { read(json); });
  }
  const Problem problem_ = test::gemv_problem();
};

TEST_F(Recording, IsReadFromNamesAndFromMeasure) {
  const auto names = read({{{"plan", "linear_simt/threads=64"}, {"time_us", 3.5}},
                           {{"plan", "linear_simt/"}, {"outcome", "hung"}, {"why", "x"}}});
  ASSERT_EQ(names.size(), 2u);
  EXPECT_EQ(names[0].plan, Plan(LinearSimt{.threads = 64}));
  EXPECT_EQ(names[0].time_us, 3.5);
  EXPECT_EQ(names[1].outcome, Outcome::hung);
  const Json other = to_json(test::gemv_problem("aqlm-2x8", {2, 1024, 1024}));
  const Json document = {{"configs",
                          {{{"problem", other},
                            {"measurements",
                             {{{"plan", {{"dataflow", "simt"}, {"threads", 96}}},
                               {"outcome", "timed"},
                               {"time_us", 1.0}}}}},
                           {{"problem", to_json(problem_)},
                            {"measurements",
                             {{{"plan", {{"dataflow", "simt"}, {"threads", 64}}},
                               {"outcome", "timed"},
                               {"time_us", 2.0}},
                              {{"plan", {{"dataflow", "simt"}, {"threads", 32}}},
                               {"outcome", "wrong"},
                               {"why", "rel_err 1"}}}}}}}};
  const auto measured = read(document);
  ASSERT_EQ(measured.size(), 2u);
  EXPECT_EQ(measured[0].time_us, 2.0);
  EXPECT_EQ(measured[1].outcome, Outcome::wrong);
}

TEST_F(Recording, LiesAreRefused) {
  const Json plan = {{"plan", "linear_simt/"}, {"time_us", 1.0}};
  EXPECT_NE(refusal(Json::array()).find("no measurement of this problem"), std::string::npos);
  EXPECT_NE(refusal({{"configs", 3}}).find("/configs"), std::string::npos);
  EXPECT_NE(refusal(Json::object()).find("configs"), std::string::npos);
  EXPECT_NE(refusal(3).find("must be an object"), std::string::npos);
  EXPECT_NE(refusal({plan, 3}).find("/1"), std::string::npos);
  const auto with = [&](const char* key, const Json& value) {
    Json changed = plan;
    changed[key] = value;
    return refusal(Json::array({changed}));
  };
  for (const Json& us : {Json(0), Json(-1), Json("x"), Json(nullptr), Json(1e300)}) {
    EXPECT_NE(with("time_us", us).find("/0/time_us"), std::string::npos) << us;
  }
  EXPECT_NE(with("plan", "linear_simt/x=3").find("/0/plan"), std::string::npos);
  EXPECT_NE(with("plan", "attention_simt/").find("another op"), std::string::npos);
  EXPECT_NE(with("outcome", "fine").find("/0/outcome"), std::string::npos);
  EXPECT_NE(with("more", 1).find("more"), std::string::npos);
  EXPECT_NE(refusal({{{"plan", "linear_simt/"}}}).find("time_us"), std::string::npos);
}

}  // namespace
}  // namespace vqgen
