#include "core/plan_name.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "core/suggest.h"

namespace vqgen {
namespace {

constexpr const char* kDataflowField = "dataflow";

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

// The dataflows of the problem's op, a default plan each.
std::vector<Plan> dataflows_of(const Problem& problem) {
  std::vector<Plan> all;
  for_each_dataflow([&](const auto& each) {
    if (is_plan_of(each, problem)) all.emplace_back(each);
  });
  return all;
}

}  // namespace

std::string plan_name(const Plan& plan) {
  std::string name = fmt::format("{}/", kernel_name(plan));
  std::visit([&]<class P>(const P& each) { append_fields(name, "", each, P{}); }, plan);
  return name;
}

Plan read_plan_name(const JsonCursor& cursor) {
  const std::string name = cursor.string();
  const std::size_t slash = name.find('/');
  std::optional<Plan> plan;
  std::vector<std::string_view> names;
  for_each_dataflow([&](const auto& each) {
    names.emplace_back(each.kName);
    if (slash != std::string::npos && name.substr(0, slash) == each.kName) plan = each;
  });
  if (!plan)
    cursor.fail(fmt::format("must be a plan's name, {}/...", fmt::join(names, "/... or ")));
  const Json object = members(cursor, std::string_view(name).substr(slash + 1));
  std::visit(
      [&](auto& each) {
        read_fields(JsonCursor(object, cursor.source(), cursor.path()), each, /*partial=*/true);
      },
      *plan);
  const std::string canonical = plan_name(*plan);
  if (canonical != name) cursor.fail("must be spelt as the plan is named: " + canonical);
  return *plan;
}

Json to_json(const Plan& plan) {
  Json json = std::visit([](const auto& each) { return to_json_value(each); }, plan);
  json[kDataflowField] = dataflow_name(plan);
  return json;
}

std::optional<Plan> named_dataflow(const JsonCursor& cursor, const Problem& problem) {
  if (!cursor.has(kDataflowField)) return std::nullopt;
  const std::vector<Plan> all = dataflows_of(problem);
  std::vector<std::string> names;
  for (const Plan& each : all) names.emplace_back(dataflow_name(each));
  std::vector<const char*> texts;
  for (const std::string& each : names) texts.push_back(each.c_str());
  return all[cursor.at(kDataflowField).choice(texts)];
}

bool has_fields(const Plan& plan, const JsonCursor& cursor) {
  const Json own = to_json(plan);
  return std::all_of(cursor.value().items().begin(), cursor.value().items().end(),
                     [&](const auto& each) {
                       return own.contains(each.key()) &&
                              (each.key() != kDataflowField || each.value() == own[kDataflowField]);
                     });
}

Plan with_fields(Plan plan, const JsonCursor& cursor) {
  Json fields = cursor.value();
  if (!fields.is_object()) cursor.fail("must be an object of the plan's fields");
  if (cursor.has(kDataflowField) && cursor.at(kDataflowField).string() != dataflow_name(plan)) {
    cursor.at(kDataflowField).fail(fmt::format("is not {}, the plan's own", dataflow_name(plan)));
  }
  fields.erase(kDataflowField);
  for (const auto& [key, unused] : fields.items()) {
    if (has_fields(plan, JsonCursor(Json{{key, unused}}, "", ""))) continue;
    std::vector<std::string> own;
    const Json all = to_json(plan);
    for (const auto& [name, value] : all.items()) {
      if (name != kDataflowField) own.push_back(name);
    }
    cursor.at(key).fail(fmt::format("unknown field; dataflow {} has {}{}", dataflow_name(plan),
                                    fmt::join(own, ", "), did_you_mean(key, own)));
  }
  std::visit(
      [&](auto& each) {
        read_fields(JsonCursor(fields, cursor.source(), cursor.path()), each, /*partial=*/true);
      },
      plan);
  return plan;
}

Plan read_plan(const JsonCursor& cursor, const Problem& problem) {
  cursor.member(kDataflowField, ": how the kernel does its op");
  return with_fields(*named_dataflow(cursor, problem), cursor);
}

}  // namespace vqgen
