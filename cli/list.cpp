// vqgen list: what ships with vqgen by name, a line each that begins with the name. Completion of
// shells reads the names here.
#include <algorithm>

#include "cli/command.h"
#include "core/profiles.h"
#include "runtime/tuning/sweep/sweep.h"

namespace vqgen::cli {
namespace {

// Of the names' column.
std::size_t width_of(const std::vector<std::string>& names) {
  std::size_t width = 0;
  for (const std::string& name : names) width = std::max(width, name.size());
  return width;
}

void list_formats(Output& output) {
  const std::vector<std::string> names = format_names();
  for (const std::string& name : names) {
    const auto& [format, source] = find_format_profile(name, "list");
    std::string codebooks;
    for_each_part(format, 0, [&](const VqFormat& part, int) {
      codebooks += fmt::format("{}{} x {:>5} entries of {}", codebooks.empty() ? "" : ", ",
                               part.residuals, part.entries(), part.vector_size);
    });
    output.line("{:<{}}  {:>5.4g} bits  {}  {}", name, width_of(names), format.bits_per_element(),
                codebooks, source);
    output.document["formats"].push_back({{"name", name},
                                          {"bits_per_element", format.bits_per_element()},
                                          {"entries", format.entries()},
                                          {"format", to_json(format)},
                                          {"source", source}});
  }
}

void list_gpus(Output& output) {
  const std::vector<std::string> names = gpu_names();
  for (const std::string& name : names) {
    const GpuSpec spec = find_gpu(name);
    output.line("{:<{}}  {:<7}  {:>3} SMs  {:>3.0f} GB  {}", name, width_of(names), spec.arch,
                spec.sms, static_cast<double>(spec.memory_bytes) * 1e-9, spec.name);
    output.document["gpus"].push_back({{"name", name}, {"spec", to_json(spec)}});
  }
}

void list_sweeps(Output& output) {
  const std::vector<std::string> names = sweep_names();
  for (const std::string& name : names) {
    const Work work = read_work(name);
    output.line("{:<{}}  {:>3} problems  {}", name, width_of(names), work.items.size(), work.name);
    Json problems = Json::array();
    for (const WorkItem& item : work.items) problems.push_back(item.label);
    output.document["sweeps"].push_back(
        {{"name", name}, {"model", work.name}, {"problems", std::move(problems)}});
  }
}

void list(const std::string& what, Output& output) {
  if (what == "formats") return list_formats(output);
  if (what == "gpus") return list_gpus(output);
  list_sweeps(output);
}

}  // namespace

void add_list(CLI::App& app, Output& output) {
  const auto [command, what] = add_command<std::string>(
      app, output, "list", "Name the formats, GPUs or sweeps that ship, with their figures", list);
  command->add_option("what", *what, "formats, gpus or sweeps")
      ->required()
      ->check(CLI::IsMember({"formats", "gpus", "sweeps"}));
}

}  // namespace vqgen::cli
