// Verdicts in tests: a near miss passes; a broken case is refused with its reason.
#pragma once

#include "core/profiles.h"
#include "heuristics/check.h"
#include "tests/core/support.h"

namespace vqgen {

inline void expect_ok(const Verdict& verdict) {
  EXPECT_TRUE(verdict.ok) << verdict.reason;
  EXPECT_EQ(verdict.reason, "");
}

inline void expect_refused(const Verdict& verdict, const std::vector<std::string>& words) {
  EXPECT_FALSE(verdict.ok);
  EXPECT_EQ(verdict.reason.find('\n'), std::string::npos);
  expect_words(verdict.reason, words);
}

// Sets each number of a plan one past its declared bounds, for all dataflows of the op: plans come
// from code too, not only from JSON.
inline void check_plan_ranges(const Problem& op, const GpuSpec& gpu) {
  for_each_dataflow([&]<class P>(const P& usual) {
    if (!is_plan_of(usual, op)) return;
    for_each_field<P>([&]<class Member>(const Field<P, Member>& field) {
      if constexpr (std::is_same_v<Member, int>) {
        for (const double value : {field.rule.min - 1, field.rule.max + 1}) {
          P plan;
          plan.*field.member = static_cast<int>(value);
          expect_refused(check(Plan(plan), op, gpu), {field.name, "is not within"});
        }
      }
    });
  });
}

// What every format must satisfy, whatever it describes: `problem(format)` must be refused or pass.
template <class MakeProblem>
void check_format_rules(const VqFormat& sound, const std::string& operand, MakeProblem problem) {
  const auto verdict = [&](auto VqFormat::*member, auto value) {
    VqFormat format = sound;
    format.*member = value;
    return check(problem(format));
  };
  expect_ok(check(problem(sound)));
  VqFormat lattice = sound;
  lattice.decoder = Decoder::e8p;
  lattice.vector_size = 8;
  lattice.index_bits = 16;
  expect_ok(check(problem(lattice)));
  const bool weights = std::string(operand) == "weights";
  for (const int size : {2, 4, 8, 32}) {
    VqFormat integers = sound;
    integers.entry_type = EntryType::int8;
    integers.stage_scales = true;
    integers.vector_size = size;
    const Verdict of_integers = check(problem(integers));
    if (size == 32) {
      expect_refused(of_integers,
                     {operand, "vector_size 32", "not built yet", weights ? "4 or 8" : "16"});
    } else if (weights && size == 2) {
      expect_refused(of_integers,
                     {operand, "int8 entries of 2 elements", "not built yet", "use 4 or 8"});
    } else {
      expect_ok(of_integers);
    }
  }
  for (const int size : kVectorSizes) {
    if (weights && size > 8) {
      expect_refused(verdict(&VqFormat::vector_size, size),
                     {operand, "vector_size " + std::to_string(size), "not built yet", "4 or 8"});
    } else {
      expect_ok(verdict(&VqFormat::vector_size, size));
    }
  }
  for (const int size : {1, 3, 24, 256}) {
    expect_refused(verdict(&VqFormat::vector_size, size),
                   {operand, "vector_size " + std::to_string(size), "not built yet", "4"});
  }
  const int most = weights ? 4 : kMostStages;
  for (const int stages : {1, 2, 4, most}) expect_ok(verdict(&VqFormat::num_codebooks, stages));
  expect_refused(
      verdict(&VqFormat::num_codebooks, most + 1),
      {operand, std::to_string(most + 1) + " residual", "not built yet", std::to_string(most)});
  for (const int bits : {2, 7, 16}) expect_ok(verdict(&VqFormat::index_bits, bits));
}

}  // namespace vqgen
