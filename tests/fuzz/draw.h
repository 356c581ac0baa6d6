// Random configs and GPUs, as JSON that the command line takes: of all ops and formats, with sizes
// that kernels stumble over, and now and then with what must be refused.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <type_traits>

#include "core/json/json.h"

namespace vqgen::test {

// The same seed draws the same numbers on every machine.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  std::uint64_t bits() { return random_(); }
  std::size_t below(std::size_t bound) { return random_() % bound; }
  bool one_in(std::size_t n) { return below(n) == 0; }
  template <class Range>
  auto of(const Range& values) {
    return std::data(values)[below(std::size(values))];
  }
  template <class T>
  T of(std::initializer_list<T> values) {
    return std::data(values)[below(values.size())];
  }

  // From 1 to `most`: as many small as large, and half of them awkward: primes, and powers of two
  // and their neighbours.
  std::int64_t size(std::int64_t most);
  // From `least` to `most` likewise, both ends among them; rarely just outside.
  std::int64_t field(double least, double most);
  // Sizes at either end alone: products of large ones are where numbers overflow.
  void only_extremes(bool wanted) { extremes_ = wanted; }
  bool extremes() const { return extremes_; }

 private:
  std::mt19937_64 random_;
  bool extremes_ = false;
};

// Each declared field of T that is a number, a choice or an aggregate of these, one in `one_in`.
template <HasFields T>
Json draw_fields(Draw& draw, std::size_t one_in) {
  Json object = Json::object();
  for_each_field<T>([&]<class Member>(const Field<T, Member>& field) {
    if (!draw.one_in(one_in)) return;
    if constexpr (HasFields<Member>) {
      object[field.name] = draw_fields<Member>(draw, 2);
    } else if constexpr (std::is_enum_v<Member>) {
      object[field.name] = draw.of(enum_names<Member>);
    } else if constexpr (std::is_same_v<Member, bool>) {
      object[field.name] = draw.one_in(2);
    } else if constexpr (std::is_arithmetic_v<Member>) {
      object[field.name] = draw.field(field.rule.min, field.rule.max);
    }
  });
  return object;
}

struct FuzzCase {
  Json config;
  Json gpu;
};

// A config without a plan, of any size.
Json draw_problem(Draw& draw);
// The same of sizes that the host executes in a moment.
Json draw_small_problem(Draw& draw);
// Some fields of a plan of one of the op's dataflows, which half of them name.
Json draw_plan(Draw& draw, const Json& config);
// A shipped GPU; `mutated`: with some of its figures replaced.
Json draw_gpu(Draw& draw, bool mutated);

// A problem and a GPU, one in three with fields of a plan, one in three with a GPU that is not
// made.
FuzzCase draw_case(std::uint64_t seed);

// The files config.json and gpu.json with which `vqgen explain` does the same.
std::string text_of(const FuzzCase& drawn);

}  // namespace vqgen::test
