#include "core/plan/plan_name.h"

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
void add_differences(std::vector<FieldValue>& to, const std::string& prefix, const T& value,
                     const T& usual) {
  for_each_field<T>([&](const auto& field) {
    const auto& own = value.*field.member;
    if (own == usual.*field.member) return;
    const std::string name = prefix + field.name;
    if constexpr (HasFields<std::remove_cvref_t<decltype(own)>>) {
      add_differences(to, name + ".", own, usual.*field.member);
    } else {
      const Json json = to_json_value(own);
      to.push_back({name, json.is_string() ? json.get<std::string>() : json.dump()});
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

// The names of the plan's fields, sorted.
std::vector<std::string> field_names(const Plan& plan) {
  std::vector<std::string> names;
  std::visit(
      [&]<class P>(const P&) {
        for_each_field<P>([&](const auto& field) { names.emplace_back(field.name); });
      },
      plan);
  std::sort(names.begin(), names.end());
  return names;
}

// Reads the fields onto the plan, as of the cursor's place.
void lay_over(Plan& plan, const Json& fields, const JsonCursor& cursor) {
  const JsonCursor from(fields, cursor.source(), cursor.path());
  std::visit([&](auto& each) { read_fields(from, each, /*partial=*/true); }, plan);
}

}  // namespace

std::vector<FieldValue> differences(const Plan& plan, const Plan& usual) {
  std::vector<FieldValue> all;
  std::visit(
      [&]<class P>(const P& each) {
        const P* const of_same = std::get_if<P>(&usual);
        add_differences(all, "", each, of_same == nullptr ? P{} : *of_same);
      },
      plan);
  return all;
}

std::string plan_name(const Plan& plan) {
  std::vector<std::string> parts;
  std::visit(
      [&]<class P>(const P&) {
        for (const FieldValue& each : differences(plan, P{})) {
          parts.push_back(each.name + "=" + each.value);
        }
      },
      plan);
  return fmt::format("{}/{}", kernel_name(plan), fmt::join(parts, ","));
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
  lay_over(*plan, object, cursor);
  const std::string canonical = plan_name(*plan);
  if (canonical != name) cursor.fail("must be spelt as the plan is named: " + canonical);
  return *plan;
}

Json to_json(const Plan& plan) {
  Json json = std::visit([](const auto& each) { return to_json_value(each); }, plan);
  json[kDataflowField] = dataflow_name(plan);
  return json;
}

std::vector<Plan> dataflows_with(const JsonCursor& fields, const Problem& problem) {
  std::vector<Plan> all;
  for_each_dataflow([&](const auto& each) {
    if (is_plan_of(each, problem) && has_fields(each, fields)) all.emplace_back(each);
  });
  return all;
}

std::optional<Plan> named_dataflow(const JsonCursor& cursor, const Problem& problem) {
  if (!cursor.has(kDataflowField)) return std::nullopt;
  const Json none = Json::object();
  const std::vector<Plan> all = dataflows_with(JsonCursor(none, ""), problem);
  std::vector<std::string> names;
  for (const Plan& each : all) names.emplace_back(dataflow_name(each));
  std::vector<const char*> texts;
  for (const std::string& each : names) texts.push_back(each.c_str());
  return all[cursor.at(kDataflowField).choice(texts)];
}

bool has_fields(const Plan& plan, const JsonCursor& cursor) {
  const std::vector<std::string> names = field_names(plan);
  Json fields = Json::object();
  for (const auto& [key, value] : cursor.value().items()) {
    const bool own = key == kDataflowField ? value == dataflow_name(plan)
                                           : std::binary_search(names.begin(), names.end(), key);
    if (!own) return false;
    if (key != kDataflowField) fields[key] = value;
  }
  try {
    Plan with = plan;
    lay_over(with, fields, cursor);
    return true;
  } catch (const Error&) {
    return false;
  }
}

Plan with_fields(Plan plan, const JsonCursor& cursor) {
  Json fields = cursor.value();
  if (!fields.is_object()) cursor.fail("must be an object of the plan's fields");
  if (cursor.has(kDataflowField) && cursor.at(kDataflowField).string() != dataflow_name(plan)) {
    cursor.at(kDataflowField).fail(fmt::format("is not {}, the plan's own", dataflow_name(plan)));
  }
  fields.erase(kDataflowField);
  const std::vector<std::string> names = field_names(plan);
  for (const auto& [key, unused] : fields.items()) {
    if (std::binary_search(names.begin(), names.end(), key)) continue;
    cursor.at(key).fail(fmt::format("unknown field{}dataflow {} has {}", suggest_then(key, names),
                                    dataflow_name(plan), few_of(names)));
  }
  try {
    lay_over(plan, fields, cursor);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}, in dataflow {}", error.what(), dataflow_name(plan)));
  }
  return plan;
}

Plan read_plan(const JsonCursor& cursor, const Problem& problem) {
  cursor.member(kDataflowField, ": how the kernel does its op");
  return with_fields(*named_dataflow(cursor, problem), cursor);
}

}  // namespace vqgen
