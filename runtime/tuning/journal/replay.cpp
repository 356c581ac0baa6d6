#include "runtime/tuning/journal/replay.h"

#include "core/plan/plan_name.h"
#include "core/problem/config.h"
#include "runtime/tuning/journal/journal.h"

namespace vqgen {
namespace {

JsonCursor recorded_member(const JsonCursor& cursor, const char* name) {
  return cursor.member(
      name, "; give a file of vqgen measure --json, or an array of plans' names and times");
}

Measurement read_recorded(const JsonCursor& cursor, Plan plan) {
  Measurement m;
  m.plan = std::move(plan);
  if (cursor.has("outcome")) {
    m.outcome = static_cast<Outcome>(cursor.at("outcome").choice(enum_names<Outcome>));
  }
  if (m.outcome != Outcome::timed) {
    if (cursor.has("why")) m.why = cursor.at("why").string();
    return m;
  }
  m.time_us = read_time(recorded_member(cursor, "time_us"));
  if (cursor.has("rel_err")) m.rel_err = cursor.at("rel_err").number(0, 1);
  if (cursor.has("spill_bytes")) {
    m.spill_bytes = static_cast<int>(cursor.at("spill_bytes").integer(0, 1e9));
  }
  return m;
}

// Adds the measurements of those configs of vqgen measure that have the problem.
void add_measured(const JsonCursor& configs, const Problem& problem, std::vector<Measurement>& to) {
  for (std::size_t i = 0; i < require_array(configs).value().size(); ++i) {
    const JsonCursor config = configs.at(i);
    if (recorded_member(config, "problem").value() != to_json(problem)) continue;
    const JsonCursor all = recorded_member(config, "measurements");
    for (std::size_t j = 0; j < require_array(all).value().size(); ++j) {
      const JsonCursor each = all.at(j);
      to.push_back(read_recorded(each, read_plan(recorded_member(each, "plan"), problem)));
    }
  }
}

}  // namespace

ReplayEvaluator::ReplayEvaluator(std::vector<Measurement> recorded) {
  for (Measurement& each : recorded) {
    std::string name = plan_name(each.plan);
    recorded_.insert_or_assign(std::move(name), std::move(each));
  }
}

const Measurement& ReplayEvaluator::answer(const Plan& plan) {
  const Measurement unknown{
      .plan = plan, .outcome = Outcome::compile_failed, .why = "not recorded"};
  return recorded_.try_emplace(plan_name(plan), unknown).first->second;
}

std::vector<Measurement> ReplayEvaluator::screen(std::span<const Plan> plans) {
  std::vector<Measurement> answers;
  for (const Plan& plan : plans) {
    Measurement& m = answers.emplace_back(answer(plan));
    if (m.outcome == Outcome::timed) m.low_us = m.high_us = m.time_us;
  }
  return answers;
}

std::vector<FinalTimes> ReplayEvaluator::finals(std::span<const Plan> plans, int rounds) {
  std::vector<FinalTimes> all;
  for (const Plan& plan : plans) {
    const Measurement& m = answer(plan);
    FinalTimes& times = all.emplace_back(FinalTimes{{}, m.outcome, m.why});
    if (m.outcome == Outcome::timed) times.us.assign(static_cast<std::size_t>(rounds), m.time_us);
  }
  return all;
}

std::vector<Measurement> read_recording(const std::filesystem::path& path, const Problem& problem) {
  const Json json = parse_json_file(path);
  const JsonCursor root(json, path.string());
  std::vector<Measurement> recorded;
  if (!json.is_array()) {
    add_measured(recorded_member(root, "configs"), problem, recorded);
  } else {
    for (std::size_t i = 0; i < json.size(); ++i) {
      const JsonCursor each = root.at(i);
      each.expect_object({"plan", "time_us", "outcome", "why", "rel_err", "spill_bytes"});
      const JsonCursor name = recorded_member(each, "plan");
      Plan plan = read_plan_name(name);
      if (!is_plan_of(plan, problem)) {
        name.fail("is a plan of another op than " + op_name(problem));
      }
      recorded.push_back(read_recorded(each, std::move(plan)));
    }
  }
  if (recorded.empty()) {
    root.fail("holds no measurement of this problem; give a recording of it");
  }
  return recorded;
}

CodebookCaching recorded_codebooks(const std::filesystem::path& path) {
  const Json json = parse_json_file(path);
  if (!json.is_object() || !json.contains("codebooks")) return CodebookCaching::warm;
  const JsonCursor root(json, path.string());
  return static_cast<CodebookCaching>(root.member("codebooks").choice(enum_names<CodebookCaching>));
}

}  // namespace vqgen
