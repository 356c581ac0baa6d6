#include "core/plan_name.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace vqgen {
namespace {

// In the order of Plan's alternatives.
constexpr std::array kKinds{"attention_decode", "linear", "kv_append"};
static_assert(kKinds.size() == std::variant_size_v<Plan>);

// A plan of kind number `kind`.
Plan plan_of_kind(std::size_t kind) {
  return std::array<Plan, kKinds.size()>{AttentionDecodePlan{}, LinearPlan{}, KvAppendPlan{}}[kind];
}

template <class T>
void append_fields(std::string& name, const std::string& prefix, const T& value, const T& usual) {
  for_each_field<T>([&](const auto& field) {
    const auto& own = value.*field.member;
    if (own == usual.*field.member) return;
    using Member = std::remove_cvref_t<decltype(own)>;
    if constexpr (HasFields<Member>) {
      append_fields(name, fmt::format("{}{}.", prefix, field.name), own, usual.*field.member);
    } else {
      if (name.back() != '/') name += ',';
      const Json json = to_json_value(own);
      name += fmt::format("{}{}={}", prefix, field.name,
                          json.is_string() ? json.get<std::string>() : json.dump());
    }
  });
}

// "a.b=3" and "a=lanes" as members of an object, its numbers as numbers.
void add_member(const JsonCursor& cursor, std::string_view text, Json& object) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos) {
    cursor.fail(fmt::format("the plan's name holds '{}', which is no FIELD=VALUE", text));
  }
  const std::string_view path = text.substr(0, equals);
  const std::string_view value = text.substr(equals + 1);
  const std::size_t dot = path.find('.');
  Json* target = &object[std::string(path.substr(0, dot))];
  if (dot != std::string_view::npos && (target->is_null() || target->is_object())) {
    target = &(*target)[std::string(path.substr(dot + 1))];
  }
  if (!target->is_null()) cursor.fail(fmt::format("the plan's name holds '{}' twice", path));
  std::int64_t number = 0;
  const auto [end, fault] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (fault == std::errc() && end == value.data() + value.size()) {
    *target = number;
  } else {
    *target = std::string(value);
  }
}

Json members(const JsonCursor& cursor, std::string_view text) {
  Json object = Json::object();
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    add_member(cursor, text.substr(0, comma), object);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return object;
}

}  // namespace

std::string plan_name(const Plan& plan) {
  std::string name = fmt::format("{}/", kKinds[plan.index()]);
  std::visit([&](const auto& each) { append_fields(name, "", each, {}); }, plan);
  return name;
}

Plan read_plan_name(const JsonCursor& cursor) {
  const std::string name = cursor.string();
  const std::size_t slash = name.find('/');
  const auto kind = std::find(kKinds.begin(), kKinds.end(), name.substr(0, slash));
  if (slash == std::string::npos || kind == kKinds.end()) {
    cursor.fail(fmt::format("must be a plan's name, {}/...", fmt::join(kKinds, "/... or ")));
  }
  Plan plan = plan_of_kind(static_cast<std::size_t>(kind - kKinds.begin()));
  const Json object = members(cursor, std::string_view(name).substr(slash + 1));
  std::visit(
      [&](auto& each) {
        read_fields(JsonCursor(object, cursor.source(), cursor.path()), each, /*partial=*/true);
      },
      plan);
  const std::string canonical = plan_name(plan);
  if (canonical != name) cursor.fail("must be spelt as the plan is named: " + canonical);
  return plan;
}

Plan default_plan(const Problem& problem) {
  if (as_linear(problem) != nullptr) return LinearPlan{};
  if (std::holds_alternative<KvAppend>(problem)) return KvAppendPlan{};
  return AttentionDecodePlan{};
}

bool is_plan_of(const Plan& plan, const Problem& problem) {
  return plan.index() == default_plan(problem).index();
}

Plan read_plan(const JsonCursor& cursor, const Problem& problem) {
  Plan plan = default_plan(problem);
  std::visit([&](auto& each) { read_fields(cursor, each, /*partial=*/true); }, plan);
  return plan;
}

}  // namespace vqgen
