// One declaration of an aggregate's fields, from which reading, writing, the JSON schema and the
// printed plan all follow. An aggregate T says
//
//   static constexpr auto fields() {
//     return std::make_tuple(field("name", &T::name, Rule{...}, "what it is"), ...);
//   }
//
// and an enum E specialises enum_names<E> with its names in order of value.
#pragma once

#include <vq/plan.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

namespace vqgen {

// How a field may appear in JSON; bounds are inclusive, for numbers and for those of enums. A
// silent field is not written if it has its default, so that texts from before the field existed
// stay equal to the byte: keys of tables and caches are compared.
struct Rule {
  bool required = false;
  double min = 0;
  double max = std::numeric_limits<std::int32_t>::max();
  bool silent = false;
  std::span<const int> only = {};  // where not empty, the numbers that it may be
  bool alone = false;              // where it is there, only fields that are `beside` are too
  bool beside = false;
};

constexpr Rule required() { return Rule{.required = true}; }
constexpr Rule required(double min, double max) { return Rule{true, min, max}; }
constexpr Rule required_of(std::span<const int> only) {
  return Rule{true, static_cast<double>(only.front()), static_cast<double>(only.back()), false,
              only};
}
constexpr Rule optional_in(double min, double max) { return Rule{false, min, max}; }
// Rule for an optional field with a comparable default.
constexpr Rule silent() { return Rule{.silent = true}; }
// Rule for a field that says all: if it differs from its default, it is written without the others,
// but for those with the rule beside(). After it is read the aggregate's take_alone() is called.
constexpr Rule alone() { return Rule{.silent = true, .alone = true}; }
constexpr Rule beside() { return Rule{.silent = true, .beside = true}; }
constexpr Rule silent_in(double min, double max) { return Rule{false, min, max, true}; }
constexpr Rule silent_of(std::span<const int> only) {
  return Rule{false, static_cast<double>(only.front()), static_cast<double>(only.back()), true,
              only};
}

template <class T, class Member>
struct Field {
  const char* name;
  Member T::*member;
  Rule rule;
  const char* doc;
};

template <class T, class Member>
constexpr Field<T, Member> field(const char* name, Member T::*member, Rule rule, const char* doc) {
  return {name, member, rule, doc};
}

// A struct of the templates that declares its fields by vq::visit, as plans do.
template <class T>
concept HasVisit = requires {
  T::visit([](const char*, auto, vq::Range, const char*) {});
};

template <class T>
concept HasFields = HasVisit<T> || requires {
  T::fields();
};

// Calls visit(field) for each declared field of T.
template <HasFields T, class Visit>
constexpr void for_each_field(Visit&& visit) {
  if constexpr (HasVisit<T>) {
    T::visit([&](const char* name, auto member, vq::Range range, const char* doc) {
      const bool all = range.least == 0 && range.most == 0;
      visit(field(name, member, all ? Rule{} : optional_in(range.least, range.most), doc));
    });
  } else {
    std::apply([&](const auto&... each) { (visit(each), ...); }, T::fields());
  }
}

template <class E>
inline constexpr std::nullptr_t enum_names = nullptr;
template <class E>
requires requires { vq::EnumNames<E>::kNames; }
inline constexpr auto enum_names<E> = std::to_array(vq::EnumNames<E>::kNames);

// The names of the values up to the rule's bound.
template <class E>
constexpr std::span<const char* const> names_within(const Rule& rule) {
  const std::span<const char* const> all(enum_names<E>);
  return rule.max < static_cast<double>(all.size())
             ? all.first(static_cast<std::size_t>(rule.max) + 1)
             : all;
}

template <class E>
std::string_view enum_name(E value) {
  return enum_names<E>[static_cast<std::size_t>(value)];
}

}  // namespace vqgen

namespace vq {

// Structs of the templates are compared by their fields; C++17 has no default for that.
template <vqgen::HasVisit T>
constexpr bool operator==(const T& a, const T& b) {
  bool equal = true;
  vqgen::for_each_field<T>(
      [&](const auto& field) { equal = equal && a.*field.member == b.*field.member; });
  return equal;
}

}  // namespace vq
