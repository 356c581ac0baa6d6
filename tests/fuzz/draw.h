// Random configs and GPUs, as JSON that the command line takes: all ops and formats, with sizes
// that are hard for kernels, and occasionally values that must be refused.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <type_traits>

#include "core/json/json.h"

namespace vqgen::test {

// A generator whose numbers depend only on the seed, on every machine.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  std::uint64_t bits() { return random_(); }
  std::size_t below(std::size_t bound) { return random_() % bound; }
  bool one_in(std::size_t n) { return below(n) == 0; }
  // True if the next value drawn shall be invalid, which is rare.
  bool wrong() { return one_in(48); }
  template <class Range>
  auto of(const Range& values) {
    return std::data(values)[below(std::size(values))];
  }
  template <class T>
  T of(std::initializer_list<T> values) {
    return std::data(values)[below(values.size())];
  }

  // Draws from 1 to `most`, log-uniformly; half of the draws are awkward: primes, powers of two and
  // their neighbours.
  std::int64_t size(std::int64_t most);
  // Draws from `least` to `most`, both ends included and rarely just outside, with the same mix.
  std::int64_t field(double least, double most);
  // Draws sizes at either end only: products of large sizes are where numbers overflow.
  void only_extremes(bool wanted) { extremes_ = wanted; }
  bool extremes() const { return extremes_; }

 private:
  std::mt19937_64 random_;
  bool extremes_ = false;
};

// Draws each declared field of T that is a number, a choice or an aggregate of these, with a chance
// of one in `one_in`.
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
// A small problem without a plan, which the host executes in a moment.
Json draw_small_problem(Draw& draw);
// Some fields of a plan of one of the op's dataflows, which half of the draws name.
Json draw_plan(Draw& draw, const Json& config);
// A shipped GPU; `mutated`: some of its figures are replaced.
Json draw_gpu(Draw& draw, bool mutated);

// A problem and a GPU; one in three has fields of a plan, one in three a GPU that does not exist.
FuzzCase draw_case(std::uint64_t seed);

// The files config.json and gpu.json with which `vqgen explain` does the same.
std::string text_of(const FuzzCase& drawn);

}  // namespace vqgen::test
