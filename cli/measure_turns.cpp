// All data stays on the device between turns: what a turn costs is the timed calls alone.
#include "cli/measure_turns.h"

#include <charconv>
#include <iostream>

#include "cli/measurement_json.h"
#include "runtime/measure.h"
#include "runtime/parallel.h"
#include "runtime/quartiles.h"

namespace vqgen::cli {
namespace {

// What a config keeps from its verification for its turns.
struct TurnSeat {
  std::unique_ptr<Measurer> measurer;
  CompiledPlan candidate;
};

// A line of standard input: the number of a config, and how its codebooks are, where that is not as
// the options say.
struct Turn {
  std::size_t seat = 0;
  CodebookCaching codebooks = CodebookCaching::rotated;
};

Turn asked_turn(const std::string& line, const std::vector<TurnSeat>& seats,
                CodebookCaching usual) {
  std::size_t number = seats.size();
  const char* end = line.data() + line.size();
  const auto [stop, fault] = std::from_chars(line.data(), end, number);
  const std::string_view rest(stop, end);
  const bool named = rest == " warm" || rest == " rotated";
  if (fault != std::errc{} || number >= seats.size() || !(rest.empty() || named)) {
    throw Error(
        ErrorKind::bad_input,
        fmt::format("--turns: '{}' on standard input; write the number of a config, 0 to {}, and "
                    "warm or rotated behind it where its codebooks are not as the options say",
                    line, seats.size() - 1));
  }
  const Measurement& measured = seats[number].candidate.measurement;
  if (measured.outcome != Outcome::timed) {
    throw Error(ErrorKind::bad_input,
                fmt::format("--turns: config {} is {}; ask for those that are verified", number,
                            enum_name(measured.outcome)));
  }
  if (named) usual = rest == " warm" ? CodebookCaching::warm : CodebookCaching::rotated;
  return {number, usual};
}

// What a program reads at once: the next turn waits for it.
void answer(const Json& json) {
  print_line(stdout, json.dump());
  std::fflush(stdout);
}

}  // namespace

void measure_in_turns(const std::vector<TurnPlan>& plans, const TimingOptions& options,
                      double warm_up_ms, Backend& backend, const GpuSpec& gpu, Output& output) {
  std::vector<TurnSeat> seats(plans.size());
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const Problem& problem = plans[i].config->problem;
    MeasureOptions measure = measure_options(options, problem);
    measure.warm_up_ms = warm_up_ms;
    seats[i].measurer = std::make_unique<Measurer>(backend, gpu, problem, measure);
  }
  in_parallel(seats.size(), seats.front().measurer->compilers(), [&](std::size_t i) {
    seats[i].candidate = seats[i].measurer->compile(plans[i].planned.plan);
  });
  for (std::size_t i = 0; i < seats.size(); ++i) {
    auto& [measurer, candidate] = seats[i];
    if (candidate.artifact) measurer->verify(candidate);
    Json measured = measurement_json(candidate.measurement);
    for (const char* figure : {"time_us", "low_us", "high_us"}) measured.erase(figure);
    output.document["configs"].push_back({{"config", plans[i].config->source},
                                          {"code_bytes", measurer->code_bytes()},
                                          {"codebook_bytes", measurer->codebook_bytes()},
                                          {"plan_from", to_json(plans[i].planned.from)},
                                          {"measurement", std::move(measured)}});
  }
  answer(output.document);
  for (std::string line; std::getline(std::cin, line);) {
    const Turn turn = asked_turn(line, seats, codebooks_of(options));
    auto& [measurer, candidate] = seats[turn.seat];
    const Quartiles times = quartiles(measurer->time_us(candidate, turn.codebooks));
    answer({{"config", turn.seat},
            {"codebooks", enum_name(turn.codebooks)},
            {"time_us", times.median},
            {"low_us", times.low},
            {"high_us", times.high},
            {"eager_us", measurer->eager_us(candidate, turn.codebooks)}});
  }
}

}  // namespace vqgen::cli
