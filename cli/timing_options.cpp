#include "cli/timing_options.h"

namespace vqgen::cli {

void add_timing_options(CLI::App& command, TimingOptions& options) {
  command
      .add_option("--backend", options.backend, "cuda (default) or host, whose times are a CPU's")
      ->check(CLI::IsMember({"host", "cuda"}));
  command.add_option("--gpu", options.gpu, "The GPU to plan for: a name, a JSON file, or auto");
  command
      .add_option("--codes", options.codes,
                  "How codes are distributed: uniform, zipf:S (the r-th has weight r^-S; zipf is "
                  "zipf:1), or as in a profile of vqgen profile or a bundle")
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Of the generated input")
      ->capture_default_str()
      ->check(whole_number(0, kMostSeed));
  command.add_flag("--shared-codebooks", options.shared_codebooks,
                   "All calls read the same codebooks, which stay in the cache: codebooks warm, as "
                   "in tables before this version; by default each call reads another layer's");
}

HardInput input_of(const TimingOptions& options, const Problem& problem) {
  return hard_input(read_codes(options.codes), options.seed, problem);
}

CodebookCaching codebooks_of(const TimingOptions& options) {
  const bool warm = options.shared_codebooks || options.backend == "host";
  return warm ? CodebookCaching::warm : CodebookCaching::rotated;
}

MeasureOptions measure_options(const TimingOptions& options, const Problem& problem) {
  MeasureOptions measure;
  measure.input = input_of(options, problem);
  measure.codebooks = codebooks_of(options);
  return options.backend == "host" ? on_host(std::move(measure)) : measure;
}

std::unique_ptr<Backend> make_backend(const TimingOptions& options) {
  const Environment environment = read_environment();
  return options.backend == "host" ? make_host(environment) : make_cuda(environment);
}

void note_host(const Output& output, const std::string& what) {
  output.note(
      "{}: on this CPU, where a call may take seconds: each time is that of one call, and says "
      "nothing of a GPU",
      what);
}

GpuSpec planned_gpu(const TimingOptions& options, const Config& first, const Backend& backend,
                    Output& output) {
  const GpuChoice gpu = choose_gpu(options.gpu, first, backend);
  output.document["gpu"] = gpu.spec.name;
  output.document["gpu_reason"] = gpu.reason;
  output.document["gpu_spec"] = to_json(gpu.spec);
  output.document["backend"] = backend.name();
  output.document["codebooks"] = enum_name(codebooks_of(options));
  return gpu.spec;
}

}  // namespace vqgen::cli
