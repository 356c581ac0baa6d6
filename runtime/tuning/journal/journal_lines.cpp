#include "runtime/tuning/journal/journal.h"

#include <fmt/format.h>

#include "core/json/json_text.h"
#include "core/plan/plan_name.h"
#include "core/plan/row_bounds.h"

namespace vqgen {
namespace {

constexpr double kMostCost = 9e15;
constexpr double kMostInt = 2147483647;

int read_count(const JsonCursor& cursor, const char* name) {
  return static_cast<int>(cursor.member(name).integer(0, kMostInt));
}

Outcome read_outcome(const JsonCursor& cursor) {
  return static_cast<Outcome>(cursor.member("outcome").choice(enum_names<Outcome>));
}

std::int64_t read_cost(const JsonCursor& cursor) {
  return cursor.member("cost_us").integer(0, kMostCost);
}

FinalTimes read_final_times(const JsonCursor& cursor, std::size_t rounds) {
  cursor.expect_object({"us", "outcome", "why"});
  FinalTimes times;
  times.outcome = read_outcome(cursor);
  if (times.outcome != Outcome::timed) times.why = cursor.member("why").string();
  const JsonCursor us = cursor.member("us");
  for (std::size_t i = 0; i < require_array(us).value().size(); ++i) {
    times.us.push_back(read_time(us.at(i)));
  }
  if (times.us.size() > rounds) us.fail("holds more times than there were rounds");
  return times;
}

std::string line_of(const Json& json) { return text_of(json) + "\n"; }

}  // namespace

double read_time(const JsonCursor& cursor) { return cursor.number(kShortestUs, kLongestUs); }

const JsonCursor& require_array(const JsonCursor& cursor) {
  if (!cursor.value().is_array()) cursor.fail("must be an array");
  return cursor;
}

std::string text_of(const Json& json) { return json_text(json); }

Json to_json(const Measurement& m) {
  Json json = {{"plan", plan_name(m.plan)}, {"outcome", enum_name(m.outcome)}};
  if (m.outcome != Outcome::timed) {
    json["why"] = m.why;
    return json;
  }
  if (m.time_us != 0) {
    json["time_us"] = m.time_us;
    json["low_us"] = m.low_us;
    json["high_us"] = m.high_us;
  }
  json["rel_err"] = m.rel_err;
  json["registers"] = m.registers;
  json["blocks_per_sm"] = m.blocks_per_sm;
  json["spill_bytes"] = m.spill_bytes;
  json["shared_bytes"] = m.shared_bytes;
  return json;
}

Measurement read_measurement(const JsonCursor& cursor) {
  cursor.expect_object({"plan", "outcome", "why", "time_us", "low_us", "high_us", "rel_err",
                        "registers", "blocks_per_sm", "spill_bytes", "shared_bytes"});
  Measurement m;
  m.plan = read_plan_name(cursor.member("plan"));
  m.outcome = read_outcome(cursor);
  if (m.outcome != Outcome::timed) {
    m.why = cursor.member("why").string();
    return m;
  }
  if (cursor.has("time_us")) {
    m.time_us = read_time(cursor.member("time_us"));
    m.low_us = read_time(cursor.member("low_us"));
    m.high_us = read_time(cursor.member("high_us"));
  }
  m.rel_err = cursor.member("rel_err").number(0, kMostRelErr);
  m.registers = read_count(cursor, "registers");
  m.blocks_per_sm = read_count(cursor, "blocks_per_sm");
  m.spill_bytes = read_count(cursor, "spill_bytes");
  m.shared_bytes = cursor.member("shared_bytes").integer(0, kMostCost);
  return m;
}

std::string to_line(const ScreenLine& line) {
  return line_of({{"screen", to_json(line.measurement)}, {"cost_us", line.cost_us}});
}

std::string to_line(const FinalsLine& line) {
  Json times = Json::array();
  for (const FinalTimes& each : line.times) {
    times.push_back({{"us", each.us}, {"outcome", enum_name(each.outcome)}});
    if (each.outcome != Outcome::timed) times.back()["why"] = each.why;
  }
  return line_of({{"finals", {{"plans", line.plans}, {"rounds", line.rounds}, {"times", times}}},
                  {"cost_us", line.cost_us}});
}

std::string incumbent_line(const std::optional<Plan>& incumbent) {
  return line_of({{"incumbent", incumbent ? Json(plan_name(*incumbent)) : Json(nullptr)}});
}

std::optional<Plan> read_incumbent_line(const JsonCursor& cursor) {
  cursor.expect_object({"incumbent"});
  const JsonCursor name = cursor.member("incumbent");
  return name.value().is_null() ? std::nullopt : std::optional(read_plan_name(name));
}

bool is_finals_line(const JsonCursor& cursor) { return cursor.has("finals"); }

ScreenLine read_screen_line(const JsonCursor& cursor) {
  cursor.expect_object({"screen", "cost_us"});
  const JsonCursor screen = cursor.member("screen");
  Measurement measured = read_measurement(screen);
  if (measured.outcome == Outcome::timed) screen.member("time_us");
  return {std::move(measured), read_cost(cursor)};
}

FinalsLine read_finals_line(const JsonCursor& cursor) {
  cursor.expect_object({"finals", "cost_us"});
  const JsonCursor finals = cursor.at("finals");
  finals.expect_object({"plans", "rounds", "times"});
  FinalsLine line;
  line.rounds = read_count(finals, "rounds");
  line.cost_us = read_cost(cursor);
  const JsonCursor plans = finals.member("plans");
  const JsonCursor times = finals.member("times");
  for (std::size_t i = 0; i < require_array(plans).value().size(); ++i) {
    line.plans.push_back(plan_name(read_plan_name(plans.at(i))));
  }
  if (require_array(times).value().size() != line.plans.size()) {
    times.fail("must hold as many as there are plans");
  }
  for (std::size_t i = 0; i < line.plans.size(); ++i) {
    line.times.push_back(read_final_times(times.at(i), static_cast<std::size_t>(line.rounds)));
  }
  return line;
}

}  // namespace vqgen
