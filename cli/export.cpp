// vqgen export: the kernel text, for plain nvcc.
#include "cli/shared_options.h"
#include "core/files/files.h"

namespace vqgen::cli {
namespace {

struct ExportArguments {
  PlanRequest request;
  std::string out;
};

void export_text(const ExportArguments& options, Output& output) {
  const PlanSetting setting = plan_setting(options.request);
  const auto& [environment, config, tables, plan, backend, gpu] = setting;
  output.step("planning {}", config.source);
  const Planned planned = plan_with(config, gpu.spec, access_counts_of(config), plan);
  const KernelSource source = source_for(config, planned.plan, gpu.spec, Machine::cuda);
  publish_text(options.out, source.text);
  report_gpu(gpu, output);
  output.line("wrote {}: {} bytes, compile with nvcc -std=c++17 -arch={} -cubin", options.out,
              source.text.size(), source.arch);
  output.document["arch"] = source.arch;
  output.document["out"] = options.out;
  output.document["bytes"] = source.text.size();
  for (const KernelEntry& entry : source.entries) output.document["kernels"].push_back(entry.name);
  report_source(planned.from, output);
}

}  // namespace

void add_export(CLI::App& app, Output& output) {
  const auto [command, options] = add_command<ExportArguments>(
      app, output, "export", "Write the kernel text, which plain nvcc compiles", export_text);
  add_examples(*command,
               "vqgen export examples/configs/tinycode-layer.json --gpu h200 --out out/kernel.cu",
               "vqgen export examples/configs/llama3-8b-merge.json --gpu a100 --out out/merge.cu");
  command->add_option("config", options->request.config, "config.json")->required();
  command->add_option("--out", options->out, "The .cu file to write")->required();
  command->add_option("--gpu", options->request.gpu,
                      "The GPU to plan for: a name, a JSON file, or auto");
}

}  // namespace vqgen::cli
