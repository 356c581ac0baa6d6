// JSON in and out of aggregates that declare fields(). One checked reader for everything that comes
// from outside: unknown fields, wrong types, duplicate keys, fractions for integers, values out of
// range and deep nesting are errors that name file and JSON path.
#pragma once

#include <concepts>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "core/json/fields.h"

namespace vqgen {

using Json = nlohmann::json;

// Parses strictly. Error(bad_input) on malformed text, duplicate keys, nesting over 64 levels.
Json parse_json(std::string_view text, const std::string& source);
Json parse_json_file(const std::filesystem::path& path);

// A value and its position for messages: "config.json: /shape/batch: ...".
class JsonCursor {
 public:
  JsonCursor(const Json& value, std::string source, std::string path = "")
      : value_(&value), source_(std::move(source)), path_(std::move(path)) {}

  const Json& value() const { return *value_; }
  const std::string& source() const { return source_; }
  const std::string& path() const { return path_; }

  bool has(const std::string& key) const { return value_->is_object() && value_->contains(key); }
  // The member `key`, which must exist.
  JsonCursor at(const std::string& key) const;
  // Member `key`; if it does not exist, throws Error(bad_input) that names it and ends with `hint`.
  JsonCursor member(const std::string& key, const std::string& hint = "") const;
  // Element `index` of an array.
  JsonCursor at(std::size_t index) const;

  // Error(bad_input) at this place.
  [[noreturn]] void fail(const std::string& message) const;
  // Fails unless this is an object whose keys are all among `known`.
  void expect_object(const std::vector<std::string>& known) const;

  bool boolean() const;
  std::int64_t integer(double min, double max) const;
  // An integer out of `only`, which ascends.
  int integer_of(std::span<const int> only) const;
  double number(double min, double max) const;
  std::string string() const;
  // The index of the string among `names`; fails with the list of names otherwise.
  std::size_t choice(std::span<const char* const> names) const;

 private:
  const Json* value_;
  std::string source_;
  std::string path_;
};

template <HasFields T>
void read_fields(const JsonCursor& cursor, T& target, bool partial = false);

// What follows "the field 'tokens' is missing": what it is, and the numbers that it may be if it
// has `bounds`: ": tokens of the longest sequence; give a whole number from 1 to 65535".
std::string missing_hint(const char* doc, const Rule* bounds);

// Reads one value of a declared field's type.
template <class Member>
void read_value(const JsonCursor& cursor, const Rule& rule, Member& target) {
  if constexpr (std::is_same_v<Member, bool>) {
    target = cursor.boolean();
  } else if constexpr (std::is_enum_v<Member>) {
    target = static_cast<Member>(cursor.choice(names_within<Member>(rule)));
  } else if constexpr (std::is_integral_v<Member>) {
    target = static_cast<Member>(rule.only.empty() ? cursor.integer(rule.min, rule.max)
                                                   : cursor.integer_of(rule.only));
  } else if constexpr (std::is_floating_point_v<Member>) {
    target = static_cast<Member>(cursor.number(rule.min, rule.max));
  } else if constexpr (std::is_same_v<Member, std::string>) {
    target = cursor.string();
  } else if constexpr (std::is_same_v<Member, std::map<std::string, std::string>>) {
    if (!cursor.value().is_object()) cursor.fail("must be an object of strings");
    for (const auto& [key, unused] : cursor.value().items()) {
      target[key] = cursor.at(key).string();
    }
  } else if constexpr (HasFields<Member>) {
    read_fields(cursor, target);
  } else {  // a vector
    if (!cursor.value().is_array()) cursor.fail("must be an array");
    target.clear();
    for (std::size_t i = 0; i < cursor.value().size(); ++i) {
      typename Member::value_type element{};
      read_value(cursor.at(i), rule, element);
      target.push_back(std::move(element));
    }
  }
}

// Reads the declared fields that are present onto `target`, whose other fields keep their values.
// Unknown members and missing required ones are errors, unless `partial`, which asks for none.
template <HasFields T>
void read_fields(const JsonCursor& cursor, T& target, bool partial) {
  std::vector<std::string> known;
  for_each_field<T>([&](const auto& field) { known.emplace_back(field.name); });
  cursor.expect_object(known);
  if constexpr (requires { target.take_alone(); }) {
    bool alone = false;
    std::vector<std::string> beside;
    for_each_field<T>([&](const auto& field) {
      if (field.rule.alone && cursor.has(field.name)) alone = true;
      if (field.rule.alone || field.rule.beside) beside.emplace_back(field.name);
    });
    if (alone) {
      cursor.expect_object(beside);
      for_each_field<T>([&](const auto& field) {
        if (!field.rule.alone && !field.rule.beside) return;
        if (cursor.has(field.name)) {
          read_value(cursor.at(field.name), field.rule, target.*field.member);
        }
      });
      target.take_alone();
      return;
    }
  }
  for_each_field<T>([&]<class Member>(const Field<T, Member>& field) {
    if (cursor.has(field.name)) {
      read_value(cursor.at(field.name), field.rule, target.*field.member);
    } else if (field.rule.required && !partial) {
      constexpr bool number = std::is_arithmetic_v<Member> && !std::is_same_v<Member, bool>;
      cursor.member(field.name, missing_hint(field.doc, number ? &field.rule : nullptr));
    }
  });
}

template <class T>
concept IsVector = requires {
  requires std::same_as<T, std::vector<typename T::value_type>>;
};

template <class Member>
Json to_json_value(const Member& value) {
  if constexpr (std::is_enum_v<Member>) {
    return std::string(enum_name(value));
  } else if constexpr (HasFields<Member>) {
    Json object = Json::object();
    Json beside = Json::object();
    bool alone = false;
    for_each_field<Member>([&]<class M>(const Field<Member, M>& field) {
      if constexpr ((HasFields<M> || std::is_arithmetic_v<M> || std::is_enum_v<M> ||
                     IsVector<M>)&&std::equality_comparable<M>) {
        if (field.rule.silent && value.*field.member == Member{}.*field.member) return;
        if (field.rule.alone) alone = true;
      }
      if (alone) object = beside;
      object[field.name] = to_json_value(value.*field.member);
      if (field.rule.beside) beside[field.name] = object[field.name];
    });
    return object;
  } else if constexpr (requires { requires HasFields<typename Member::value_type>; }) {
    Json array = Json::array();
    for (const auto& element : value) array.push_back(to_json_value(element));
    return array;
  } else {
    return Json(value);
  }
}

// Any aggregate with fields() as JSON: keys sorted, so that dump() is canonical.
template <HasFields T>
Json to_json(const T& value) {
  return to_json_value(value);
}

}  // namespace vqgen
