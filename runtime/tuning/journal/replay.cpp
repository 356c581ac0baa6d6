#include "runtime/tuning/journal/replay.h"

#include <fmt/format.h>

#include <cmath>

#include "core/plan/plan_name.h"
#include "core/problem/config.h"
#include "runtime/verify/random.h"

namespace vqgen {
namespace {

constexpr double kLongestReplayUs = 1e9;

// FNV-1a: a stream of Random for each text.
std::uint64_t stream_of(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

double read_positive(const JsonCursor& cursor) {
  const double us = cursor.number(0, kLongestReplayUs);
  if (us <= 0) cursor.fail("must be above 0");
  return us;
}

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
  m.time_us = read_positive(recorded_member(cursor, "time_us"));
  if (cursor.has("rel_err")) m.rel_err = cursor.at("rel_err").number(0, 1);
  if (cursor.has("spill_bytes")) {
    m.spill_bytes = static_cast<int>(cursor.at("spill_bytes").integer(0, 1e9));
  }
  return m;
}

// Of the configs of vqgen measure those that have the problem.
void add_measured(const JsonCursor& configs, const Problem& problem, std::vector<Measurement>& to) {
  if (!configs.value().is_array()) configs.fail("must be an array");
  for (std::size_t i = 0; i < configs.value().size(); ++i) {
    const JsonCursor config = configs.at(i);
    if (recorded_member(config, "problem").value() != to_json(problem)) continue;
    const JsonCursor all = recorded_member(config, "measurements");
    if (!all.value().is_array()) all.fail("must be an array");
    for (std::size_t j = 0; j < all.value().size(); ++j) {
      const JsonCursor each = all.at(j);
      to.push_back(read_recorded(each, read_plan(recorded_member(each, "plan"), problem)));
    }
  }
}

}  // namespace

ReplayEvaluator::ReplayEvaluator(std::vector<Measurement> recorded, const ReplayOptions& options)
    : options_(options) {
  for (Measurement& each : recorded) {
    std::string name = plan_name(each.plan);
    recorded_.insert_or_assign(std::move(name), std::move(each));
  }
}

const Measurement& ReplayEvaluator::answer(const std::string& name, const Plan& plan) {
  Measurement unknown;
  unknown.plan = plan;
  unknown.outcome = Outcome::compile_failed;
  unknown.why = "not recorded";
  return recorded_.try_emplace(name, unknown).first->second;
}

double ReplayEvaluator::noise(const std::string& name, int round, int batch) const {
  const auto draw = [&](const std::string& text) {
    return Random(options_.seed, stream_of(text)).normal();
  };
  const auto of_all_and_each = [&](double sigma, const std::string& what) {
    return sigma == 0 ? 0 : sigma * (draw(what) + draw(what + name));
  };
  return std::exp(options_.sigma * draw(fmt::format("{} {}", round, name)) +
                  options_.drift * draw(fmt::format("{} ", round)) +
                  of_all_and_each(options_.batch, fmt::format("batch {} ", batch)) +
                  of_all_and_each(options_.process, "process "));
}

std::vector<Measurement> ReplayEvaluator::screen(std::span<const Plan> plans) {
  std::vector<Measurement> answers;
  for (const Plan& plan : plans) {
    const std::string name = plan_name(plan);
    answers.push_back(answer(name, plan));
    spent_s_ += options_.candidate_s;
    if (answers.back().outcome != Outcome::timed) continue;
    Measurement& m = answers.back();
    m.time_us *= noise(name, 0, 0);
    m.low_us = m.high_us = m.time_us;
  }
  return answers;
}

std::vector<FinalTimes> ReplayEvaluator::finals(std::span<const Plan> plans, int rounds) {
  std::vector<FinalTimes> all;
  for (const Plan& plan : plans) {
    const std::string name = plan_name(plan);
    const Measurement& m = answer(name, plan);
    FinalTimes times{{}, m.outcome, m.why};
    for (int round = 0; round < rounds && m.outcome == Outcome::timed; ++round) {
      times.us.push_back(m.time_us * noise(name, round + 1, batch_of(round, rounds)));
      spent_s_ += options_.round_s;
    }
    all.push_back(std::move(times));
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
