// vqgen compile: config to cubin.
#include <filesystem>

#include "cli/shared_options.h"
#include "core/files/files.h"
#include "core/json/json_text.h"
#include "heuristics/formats.h"

namespace vqgen::cli {
namespace {

struct CompileArguments {
  PlanRequest request;
  std::string out;
};

Json kernel_json(const Prepared& prepared, std::size_t i) {
  const KernelEntry& entry = prepared.source.entries[i];
  const KernelResources& resources = prepared.artifact.kernels[i];
  Json json{{"name", entry.name},
            {"op", prepared.source.op},
            {"arch", prepared.source.arch},
            {"registers", resources.registers},
            {"shared_bytes", entry.shared_bytes + resources.static_shared_bytes},
            {"spill_bytes", resources.spill_bytes},
            {"cubin_bytes", prepared.artifact.binary.size()},
            {"compile_ms", prepared.artifact.compile_ms},
            {"cache", prepared.cache_hit ? "hit" : "miss"},
            {"plan", to_json(prepared.plan)}};
  // A hit says where it comes from, a miss why it is one.
  if (prepared.cache_hit) {
    json["cache_layer"] = prepared.cache_layer;
  } else {
    json["cache_miss"] = prepared.why_missed;
  }
  return json;
}

void print_kernel(const Output& output, const Json& kernel) {
  output.line(
      "{}  {}  {} registers  {} shared bytes  {} spill bytes  {} cubin bytes  {:.0f} ms  {}",
      kernel["name"].get<std::string>(), kernel["arch"].get<std::string>(),
      kernel["registers"].get<int>(), kernel["shared_bytes"].get<std::int64_t>(),
      kernel["spill_bytes"].get<int>(), kernel["cubin_bytes"].get<std::size_t>(),
      kernel["compile_ms"].get<double>(), kernel["cache"].get<std::string>());
}

// Prints one line per reason: "weights: shared: all 256 entries fit a block".
void print_placement(const Output& output, const std::vector<OperandPlacement>& placements) {
  for (const OperandPlacement& each : placements) {
    for (const std::string& reason : each.reasons) {
      output.line("{}: {}", enum_name(each.operand), reason);
    }
  }
}

// NAME.cubin, NAME.cu and NAME.json in `folder`, named after the first entry. Gives folder/NAME.
std::string write_out(const std::string& folder, const Prepared& prepared, const Json& document) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code) {
    throw Error(ErrorKind::bad_input, fmt::format("{}: cannot make the folder: {}; choose another",
                                                  folder, code.message()));
  }
  const std::filesystem::path stem =
      std::filesystem::path(folder) / prepared.source.entries.front().name;
  const std::string description = json_text(document, 2) + "\n";
  publish_files(std::array<FileContent, 3>{
      {{stem.string() + ".cubin", prepared.artifact.binary},
       {stem.string() + ".cu", std::as_bytes(std::span(prepared.source.text))},
       {stem.string() + ".json", std::as_bytes(std::span(description))}}});
  return stem.string();
}

void compile(const CompileArguments& options, Output& output) {
  const PlanSetting setting = plan_setting(options.request);
  const GpuChoice& gpu = setting.gpu;
  const std::unique_ptr<ArtifactCache> cache = make_cache(setting.environment, output.json);
  output.step("planning and compiling {}", options.request.config);
  const Prepared prepared =
      prepare(setting.config, gpu.spec, *setting.backend, cache.get(), setting.plan);
  note_warning(*cache, output);

  output.document = {{"gpu", gpu.spec.name},
                     {"gpu_reason", gpu.reason},
                     {"kernels", Json::array()},
                     {"plan_from", to_json(prepared.from)}};
  for (std::size_t i = 0; i < prepared.source.entries.size(); ++i) {
    output.document["kernels"].push_back(kernel_json(prepared, i));
  }
  if (setting.config.access_counts)
    output.document["placement"] = placement_json(prepared.placements);
  std::string written;
  if (!options.out.empty()) written = write_out(options.out, prepared, output.document);

  output.line("gpu {} ({}): {}", gpu.spec.name, gpu.spec.arch, gpu.reason);
  report_source(prepared.from, output);
  const auto cost = CostModel(setting.config.problem, gpu.spec, {})(prepared.plan);
  if (!output.json && !prepared.cache_hit && cost) {
    const Problem& problem = setting.config.problem;
    const char* const faster = !faster_entries(problem, gpu.spec, cost->us).empty() ? "entries"
                               : faster_presets(problem, gpu.spec, cost->us)        ? "formats"
                                                                                    : nullptr;
    if (faster != nullptr) {
      output.line("other {} of as many bits are expected to be faster: vqgen explain {}", faster,
                  options.request.config);
    }
  }
  for (const Json& kernel : output.document["kernels"]) print_kernel(output, kernel);
  print_placement(output, prepared.placements);
  if (!written.empty()) output.line("wrote {}.cubin, .cu and .json", written);
}

}  // namespace

void add_compile(CLI::App& app, Output& output) {
  const auto [command, options] = add_command<CompileArguments>(
      app, output, "compile", "Compile the kernels of a config; needs no GPU", compile);
  add_plan_options(*command, options->request);
  add_examples(
      *command, "vqgen compile examples/configs/tinycode-layer.json --gpu h200",
      "vqgen compile examples/configs/llama3-8b-up-aqlm-2x8.json --gpu a100 --out out/cubins");
  command->add_option("--out", options->out, "Folder for the cubin, its text and its description");
}

}  // namespace vqgen::cli
