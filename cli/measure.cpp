// vqgen measure: verifies and times plans of a config on a device. With --interactive each plan is
// compiled and verified once and timed on demand, so that another program can be timed in between:
// data stays on the device, and a turn costs the timed calls alone.
#include "runtime/measure.h"

#include <algorithm>
#include <charconv>
#include <iostream>

#include "cli/shared_options.h"
#include "core/json/json_text.h"
#include "core/parallel.h"
#include "heuristics/space.h"
#include "runtime/prepare.h"
#include "runtime/quartiles.h"

namespace vqgen::cli {
namespace {

struct MeasureArguments {
  std::vector<std::string> configs;
  std::string plans;
  std::optional<std::size_t> space;
  std::optional<std::size_t> likely;
  std::string placement = "any";
  bool papers = false;
  std::string chooser{enum_name(kDefaultChooser)};
  std::string lengths;
  bool turns = false;
  double warm_up_ms = 0;
  TimingOptions timing;
};

// Adds what either chooser takes where it is not among the plans.
void add_chosen(std::vector<Plan>& plans, const Config& config, const GpuSpec& gpu) {
  for (const Chooser chooser : {Chooser::rules, Chooser::model}) {
    const Plan own = plan_for(config, gpu, chooser);
    if (std::find(plans.begin(), plans.end(), own) == plans.end()) plans.push_back(own);
  }
}

// Plans of the space with the config's fixed fields, then those of both choosers.
Space space_plans(const Config& config, const GpuSpec& gpu, const MeasureArguments& options) {
  Space found = space(config.problem, gpu,
                      {.most = *options.space,
                       .placement = enum_of<SpacePlacement>(options.placement),
                       .papers = options.papers,
                       .keep = [&](const Plan& plan) { return has_fixed_fields(plan, config); }});
  add_chosen(found.plans, config, gpu);
  return found;
}

// The config's own plan, or for each object of the plans file the one chosen around its fields.
std::vector<Plan> read_plans(const Config& config, const GpuSpec& gpu, const std::string& file,
                             Chooser chooser) {
  if (file.empty()) return {plan_for(config, gpu, chooser)};
  const Json json = parse_json_file(file);
  const JsonCursor root(json, file);
  if (!json.is_array() || json.empty()) root.fail("must be an array of plans, one at least");
  std::vector<Plan> plans;
  for (std::size_t i = 0; i < json.size(); ++i) {
    if (!json[i].is_object()) root.at(i).fail("must be an object of the plan's fields");
    Config each = config;
    // Fields of another dataflow are no fields of this one.
    const bool other = json[i].contains("dataflow") && each.plan.contains("dataflow") &&
                       json[i]["dataflow"] != each.plan["dataflow"];
    if (other) each.plan = Json::object();
    each.plan.merge_patch(json[i]);
    each.source = fmt::format("{}: /{}", file, i);
    plans.push_back(propose(each, gpu, {.chooser = chooser}));
  }
  return plans;
}

Space plans_of(const Config& config, const GpuSpec& gpu, const MeasureArguments& options) {
  if (options.likely) {
    Space likely{likely_plans(config, gpu, {}, *options.likely)};
    add_chosen(likely.plans, config, gpu);
    return likely;
  }
  if (options.space) return space_plans(config, gpu, options);
  const Chooser chooser = enum_of(options.chooser, kDefaultChooser);
  return {read_plans(config, gpu, options.plans, chooser)};
}

// "1x131072,31x2048": the lengths of a batch's sequences, in this order.
std::vector<std::int32_t> read_lengths(const std::string& text, const Config& config) {
  const auto fail = [&](const std::string& why) {
    throw Error(
        ErrorKind::bad_input,
        fmt::format("--lengths '{}': {}; write COUNTxTOKENS, as in 1x131072,31x2048", text, why));
  };
  const auto* op = std::get_if<AttentionDecode>(&config.problem);
  if (op == nullptr) {
    throw Error(ErrorKind::bad_input, fmt::format("--lengths is of attention_decode; {} is {}",
                                                  config.source, op_name(config.problem)));
  }
  std::vector<std::int32_t> lengths;
  const char* from = text.data();
  const char* const end = from + text.size();
  const auto number = [&](char behind, std::int64_t most) {
    std::int64_t value = 0;
    const auto [stop, fault] = std::from_chars(from, end, value);
    const bool ends = stop == end ? behind == ',' : *stop == behind;
    if (fault != std::errc{} || !ends) fail("it is no list of counts and tokens");
    if (value < 0 || value > most) fail(fmt::format("{} is not within 0..{}", value, most));
    from = stop == end ? end : stop + 1;
    return value;
  };
  while (from != end) {
    const std::int64_t count = number('x', op->shape.batch);
    const auto tokens = static_cast<std::int32_t>(number(',', op->shape.tokens));
    lengths.insert(lengths.end(), static_cast<std::size_t>(count), tokens);
  }
  if (std::ssize(lengths) != op->shape.batch) {
    fail(fmt::format("it has {} sequences, and {} {}", lengths.size(), config.source,
                     op->shape.batch));
  }
  return lengths;
}

void measure_config(const Config& config, const MeasureArguments& options, Backend& backend,
                    const GpuSpec& gpu, Output& output) {
  const Space plans = plans_of(config, gpu, options);
  MeasureOptions measure = measure_options(options.timing, config.problem);
  measure.warm_up_ms = options.warm_up_ms;
  if (!options.lengths.empty()) measure.input.given_lengths = read_lengths(options.lengths, config);
  measure.progress = [&](std::size_t done, std::size_t total) {
    output.show(static_cast<double>(done) / static_cast<double>(total), config.source);
  };
  if (backend.machine() == Machine::host) note_host(output, config.source);
  output.step("{}: making data and reference", config.source);
  Measurer measurer(backend, gpu, config.problem, measure);
  output.step("{}: compiling and measuring", config.source);
  const std::vector<Measurement> measured = measurer.measure(plans.plans);
  if (options.space && !options.likely) {
    output.line("{}: {} plans; the space has {}", config.source, plans.plans.size(),
                plans.feasible);
  }
  Json results = Json::array();
  const bool merge = std::holds_alternative<AttentionMerge>(config.problem);
  output.line("{}: {:.2f} MB of {} a call, {:.2f} MB of codebooks, {}", config.source,
              static_cast<double>(measurer.code_bytes()) * 1e-6, merge ? "parts" : "codes",
              static_cast<double>(measurer.codebook_bytes()) * 1e-6,
              enum_name(codebooks_of(options.timing)));
  output.line("{:>10} {:>9} {:>5} {:>6} {:>7} {:>4}  plan", "us", "GB/s", "regs", "spill", "shared",
              "b/SM");
  for (const Measurement& m : measured) {
    results.push_back(measurement_json(m));
    if (m.outcome != Outcome::timed) {
      output.line("{:>10} {}  {}", enum_name(m.outcome), m.why, to_json(m.plan).dump());
      continue;
    }
    output.line("{:>10.2f} {:>9.1f} {:>5} {:>6} {:>7} {:>4}  {}", m.time_us,
                static_cast<double>(measurer.code_bytes()) * 1e-3 / m.time_us, m.registers,
                m.spill_bytes, m.shared_bytes, m.blocks_per_sm, to_json(m.plan).dump());
  }
  output.document["configs"].push_back({{"config", config.source},
                                        {"problem", to_json(config.problem)},
                                        {"code_bytes", measurer.code_bytes()},
                                        {"codebook_bytes", measurer.codebook_bytes()},
                                        {"measurements", results}});
  note_untimed(config.source, measured, output);
}

// A config, the one plan of it that is timed, and what it keeps from its verification for its
// turns.
struct TurnSeat {
  const Config* config = nullptr;
  Planned planned;
  std::unique_ptr<Measurer> measurer = {};
  CompiledPlan candidate = {};
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
        fmt::format(
            "--interactive: '{}' on standard input; write the number of a config, 0 to {}, and "
            "warm or rotated behind it where its codebooks are not as the options say",
            line, seats.size() - 1));
  }
  const Measurement& measured = seats[number].candidate.measurement;
  if (measured.outcome != Outcome::timed) {
    throw Error(ErrorKind::bad_input,
                fmt::format("--interactive: config {} is {}; ask for those that are verified",
                            number, enum_name(measured.outcome)));
  }
  if (named) usual = rest == " warm" ? CodebookCaching::warm : CodebookCaching::rotated;
  return {number, usual};
}

// Flushes: a program reads the answer at once, and its next request waits for it.
void answer(const Json& json) {
  print_line(stdout, json_text(json));
  std::fflush(stdout);
}

// Writes `output.document` as one line once all configs are verified, then answers each line of
// stdin (a config's number, optionally "warm" or "rotated") by a line {"config", "codebooks",
// "time_us", "low_us", "high_us", "eager_us"}. Error(bad_input) on other lines.
void measure_in_turns(std::vector<TurnSeat> seats, const MeasureArguments& options,
                      Backend& backend, const GpuSpec& gpu, Output& output) {
  for (TurnSeat& seat : seats) {
    MeasureOptions measure = measure_options(options.timing, seat.config->problem);
    measure.warm_up_ms = options.warm_up_ms;
    seat.measurer = std::make_unique<Measurer>(backend, gpu, seat.config->problem, measure);
  }
  in_parallel(seats.size(), seats.front().measurer->compilers(), [&](std::size_t i) {
    seats[i].candidate = seats[i].measurer->compile(seats[i].planned.plan);
  });
  for (auto& [config, planned, measurer, candidate] : seats) {
    if (candidate.artifact) measurer->verify(candidate);
    Json measured = measurement_json(candidate.measurement);
    for (const char* figure : {"time_us", "low_us", "high_us"}) measured.erase(figure);
    output.document["configs"].push_back({{"config", config->source},
                                          {"code_bytes", measurer->code_bytes()},
                                          {"codebook_bytes", measurer->codebook_bytes()},
                                          {"plan_from", to_json(planned.from)},
                                          {"measurement", std::move(measured)}});
  }
  answer(output.document);
  std::vector<Measurement> all;
  for (const TurnSeat& seat : seats) all.push_back(seat.candidate.measurement);
  note_untimed("--interactive", all, output);
  for (std::string line; std::getline(std::cin, line);) {
    const Turn turn = asked_turn(line, seats, codebooks_of(options.timing));
    auto& [config, planned, measurer, candidate] = seats[turn.seat];
    const Quartiles times = quartiles(measurer->time_us(candidate, turn.codebooks));
    answer({{"config", turn.seat},
            {"codebooks", enum_name(turn.codebooks)},
            {"time_us", times.median},
            {"low_us", times.low},
            {"high_us", times.high},
            {"eager_us", measurer->eager_us(candidate, turn.codebooks)}});
  }
}

void run(const MeasureArguments& options, Output& output) {
  if (options.turns && !options.plans.empty()) {
    throw Error(ErrorKind::bad_input,
                "--interactive times the chosen plan of each config; leave out --plans");
  }
  if (options.turns && !options.lengths.empty()) {
    throw Error(ErrorKind::bad_input, "--interactive times full lengths; leave out --lengths");
  }
  const std::unique_ptr<Backend> backend = make_backend(options.timing);
  std::vector<Config> configs;
  for (const std::string& path : options.configs) {
    configs.push_back(read_config(std::filesystem::path(path)));
  }
  const GpuSpec gpu = planned_gpu(options.timing, configs.front(), *backend, output);
  if (options.turns) {
    output.json = false;  // it writes its own lines
    const auto tables = make_tables(read_environment());
    const PlanOptions plan{.chooser = enum_of(options.chooser, kDefaultChooser),
                           .tables = tables.get()};
    std::vector<TurnSeat> seats;
    for (const Config& config : configs) {
      seats.push_back({&config, plan_with(config, gpu, access_counts_of(config), plan)});
    }
    return measure_in_turns(std::move(seats), options, *backend, gpu, output);
  }
  for (const Config& config : configs) {
    measure_config(config, options, *backend, gpu, output);
  }
}

// The options that `measure` and `dev space` share.
void add_measured_configs(CLI::App& command, MeasureArguments& options) {
  command.add_option("config", options.configs, "config.json files")->required();
  add_active_experts(command, options.timing.active_experts);
  command.add_option("--lengths", options.lengths,
                     "Lengths of sequences, COUNTxTOKENS, as 1x131072,31x2048 [all full]");
  command
      .add_option("--warm-up", options.warm_up_ms, "Milliseconds of calls before a plan is timed")
      ->capture_default_str()
      ->check(decimal(0, 60000));
  add_timing_options(command, options.timing);
}

}  // namespace

void add_measure(CLI::App& app, Output& output) {
  const auto [command, options] = add_command<MeasureArguments>(
      app, output, "measure", "Verify and time plans of configs on a device, with caches cold",
      run);
  add_examples(*command, "vqgen measure examples/configs/llama3-8b-attention-2bit.json",
               "vqgen measure examples/configs/tinycode-layer.json --backend host --gpu h200");
  add_measured_configs(*command, *options);
  command->add_option("--plans", options->plans,
                      "A JSON array of objects of plan fields to measure [the chosen plan alone]");
  add_planner_option(*command, options->chooser);
  command->add_flag(
      "--interactive", options->turns,
      "Time a config for each line of stdin that has its number; JSON lines on stdout");
}

void add_space(CLI::App& app, Output& output) {
  const auto [command, options] = add_command<MeasureArguments>(
      app, output, "space",
      "Verify and time many plans of each config, and those that the planners choose", run);
  add_examples(
      *command, "vqgen dev space examples/configs/llama3-8b-up-aqlm-2x8.json --top 10",
      "vqgen dev space examples/configs/tinycode-layer.json --backend host --gpu h200 --sample 2");
  add_measured_configs(*command, *options);
  options->space = 150;
  CLI::Option* const sample =
      command
          ->add_option("--sample", options->space,
                       "Measure N plans, spread evenly over the space; 0 for all [150]")
          ->check(whole_number(0, kMostPlans));
  command
      ->add_option("--top", options->likely,
                   "Measure the N unlike plans with the lowest predicted time")
      ->check(whole_number(1, kMostPlans))
      ->excludes(sample);
  command
      ->add_option(
          "--codebooks-in", options->placement,
          "Sample plans whose codebooks are in any memory, all in global, or all in shared memory")
      ->capture_default_str()
      ->check(CLI::IsMember(enum_names<SpacePlacement>));
  command->add_flag("--papers", options->papers,
                    "Sample also plans by methods of papers that the planners leave out");
}

}  // namespace vqgen::cli
