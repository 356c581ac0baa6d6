// vqgen export: the kernel text, for plain nvcc.
#include "cli/placement_options.h"
#include "core/files/files.h"

namespace vqgen::cli {
namespace {

struct ExportArguments {
  std::string config;
  std::string gpu;
  std::string out;
};

void export_text(const ExportArguments& options, Output& output) {
  const Config config = read_config(std::filesystem::path(options.config));
  const Environment environment = read_environment();
  const std::unique_ptr<Backend> backend = make_cuda(environment);
  const GpuChoice gpu = choose_gpu(options.gpu, config, *backend);
  output.step("planning {}", options.config);
  const auto tables = make_tables(environment);
  const Planned planned = plan_with(config, gpu.spec, hotness_of(config), {.tables = tables.get()});
  const KernelSource source = source_for(config, planned.plan, gpu.spec, Machine::cuda);
  publish_text(options.out, source.text);
  output.line("gpu {} ({}): {}", gpu.spec.name, gpu.spec.arch, gpu.reason);
  output.line("wrote {}: {} bytes, compile with nvcc -std=c++17 -arch={} -cubin", options.out,
              source.text.size(), source.arch);
  Json kernels = Json::array();
  for (const KernelEntry& entry : source.entries) kernels.push_back(entry.name);
  output.document = {{"gpu", gpu.spec.name}, {"gpu_reason", gpu.reason},    {"arch", source.arch},
                     {"out", options.out},   {"bytes", source.text.size()}, {"kernels", kernels}};
  report_source(planned.from, output);
}

}  // namespace

void add_export(CLI::App& app, Output& output) {
  auto* command = app.add_subcommand("export", "Write the kernel text, which plain nvcc compiles");
  auto options = std::make_shared<ExportArguments>();
  command->add_option("config", options->config, "config.json")->required();
  command->add_option("--out", options->out, "The .cu file to write")->required();
  command->add_option("--gpu", options->gpu, "A profile's name, a JSON file, or auto");
  command->add_flag("--json", output.json, "One JSON document on stdout");
  command->callback([options, &output] { export_text(*options, output); });
}

}  // namespace vqgen::cli
