// One declaration of an aggregate's fields, from which reading, writing, the JSON schema and the
// printed plan all follow. An aggregate T says
//
//   static constexpr auto fields() {
//     return std::make_tuple(field("name", &T::name, Rule{...}, "what it is"), ...);
//   }
//
// and an enum E specialises enum_names<E> with its names in order of value.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>

namespace vqgen {

// How a field may appear in JSON. Bounds are inclusive and hold for numbers only. One that is
// silent is not written where it has its default: what was written before there was such a field is
// still what would be written, to the byte, as keys of tables and caches are compared.
struct Rule {
  bool required = false;
  double min = 0;
  double max = std::numeric_limits<std::int32_t>::max();
  bool silent = false;
};

constexpr Rule required() { return Rule{.required = true}; }
constexpr Rule required(double min, double max) { return Rule{true, min, max}; }
constexpr Rule optional_in(double min, double max) { return Rule{false, min, max}; }
// For aggregates that can be compared.
constexpr Rule silent() { return Rule{.silent = true}; }

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

template <class T>
concept HasFields = requires {
  T::fields();
};

// Calls visit(field) for each declared field of T.
template <HasFields T, class Visit>
constexpr void for_each_field(Visit&& visit) {
  std::apply([&](const auto&... each) { (visit(each), ...); }, T::fields());
}

template <class E>
inline constexpr std::nullptr_t enum_names = nullptr;

template <class E>
std::string_view enum_name(E value) {
  return enum_names<E>[static_cast<std::size_t>(value)];
}

}  // namespace vqgen
