#include "core/plan/tuned_row.h"

#include <fmt/format.h>

#include <charconv>

#include "core/plan/row_bounds.h"
#include "core/problem/config.h"

namespace vqgen {
namespace {

Problem read_problem(const JsonCursor& cursor) {
  for (const char* other : {"gpu", "access_counts", "plan"}) {
    if (cursor.has(other)) cursor.at(other).fail("is no part of a problem; remove it");
  }
  return read_config(cursor.value(), fmt::format("{}: {}", cursor.source(), cursor.path())).problem;
}

double read_us(const JsonCursor& row, const char* name) {
  const JsonCursor cursor = row.member(name);
  const double us = cursor.number(0, kLongestUs);
  if (us <= 0) cursor.fail("must be above 0");
  return us;
}

Plan read_plan_of(const JsonCursor& row, const char* name, const Problem& problem) {
  const JsonCursor cursor = row.member(name);
  Plan plan = read_plan_name(cursor);
  if (!is_plan_of(plan, problem)) {
    cursor.fail("is a plan of another op than " + op_name(problem));
  }
  return plan;
}

}  // namespace

std::optional<double> zipf_skew(std::string_view codes) {
  constexpr std::string_view kZipf = "zipf:";
  if (!codes.starts_with(kZipf)) return std::nullopt;
  const char* const end = codes.data() + codes.size();
  double skew = 0;
  const auto read = std::from_chars(codes.data() + kZipf.size(), end, skew);
  if (read.ec != std::errc{} || read.ptr != end || !(skew > 0 && skew <= kMostSkew)) return {};
  return skew;
}

bool names_codes(std::string_view codes) {
  constexpr std::string_view kProfile = "profile:";
  constexpr std::size_t kDigits = 12;
  if (codes == "uniform") return true;
  if (const auto skew = zipf_skew(codes)) return codes == fmt::format("zipf:{}", *skew);
  return codes.starts_with(kProfile) && codes.size() == kProfile.size() + kDigits &&
         codes.find_first_not_of("0123456789abcdef", kProfile.size()) == codes.npos;
}

Json to_json(const TunedRow& row) {
  return {{"problem", to_json(row.problem)},
          {"gpu", row.gpu},
          {"policy", to_json(row.policy)},
          {"environment", to_json(row.environment)},
          {"plan", plan_name(row.plan)},
          {"time_us", row.time_us},
          {"low_us", row.low_us},
          {"high_us", row.high_us},
          {"default_plan", plan_name(row.default_plan)},
          {"default_us", row.default_us},
          {"runner_up", plan_name(row.runner_up)},
          {"runner_up_us", row.runner_up_us},
          {"noise", row.noise},
          {"rel_err", row.rel_err},
          {"candidates", row.candidates}};
}

TunedRow read_tuned_row(const JsonCursor& cursor) {
  cursor.expect_object({"problem", "gpu", "policy", "environment", "plan", "time_us", "low_us",
                        "high_us", "default_plan", "default_us", "runner_up", "runner_up_us",
                        "noise", "rel_err", "candidates"});
  TunedRow row{.problem = read_problem(cursor.member("problem")),
               .gpu = cursor.member("gpu").string()};
  if (row.gpu.empty()) cursor.at("gpu").fail("must name a device class");
  read_fields(cursor.member("policy"), row.policy);
  read_fields(cursor.member("environment"), row.environment);
  row.plan = read_plan_of(cursor, "plan", row.problem);
  row.time_us = read_us(cursor, "time_us");
  row.low_us = read_us(cursor, "low_us");
  row.high_us = read_us(cursor, "high_us");
  if (row.low_us > row.time_us || row.time_us > row.high_us) {
    cursor.at("time_us").fail("must lie between low_us and high_us, its quartiles");
  }
  row.default_plan = read_plan_of(cursor, "default_plan", row.problem);
  row.default_us = read_us(cursor, "default_us");
  row.runner_up = read_plan_of(cursor, "runner_up", row.problem);
  row.runner_up_us = read_us(cursor, "runner_up_us");
  row.noise = cursor.member("noise").number(0, 1);
  row.rel_err = cursor.member("rel_err").number(0, kMostRelErr);
  row.candidates = static_cast<int>(cursor.member("candidates").integer(1, 1e9));
  return row;
}

std::string tuned_key(const TunedRow& row) {
  return tuned_key(row.problem, row.gpu, row.policy.codes);
}

std::string tuned_key(const Problem& problem, const std::string& gpu, const std::string& codes) {
  return Json{{"problem", to_json(problem)}, {"gpu", gpu}, {"codes", codes}}.dump();
}

}  // namespace vqgen
