// vqgen list: what ships with vqgen by name, a line each that begins with the name. Completion of
// shells reads the names here.
#include <algorithm>

#include "cli/command.h"
#include "core/format/stored.h"
#include "core/profiles.h"
#include "heuristics/cost.h"
#include "heuristics/tuned/tables.h"
#include "runtime/tuning/sweep/sweep.h"

namespace vqgen::cli {
namespace {

// Width of the names' column.
std::size_t width_of(const std::vector<std::string>& names) {
  std::size_t width = 0;
  for (const std::string& name : names) width = std::max(width, name.size());
  return width;
}

// A row of a cache has the channels of a head, one of weights as many as large layers have.
constexpr int kListedHeadDim = 128, kListedInputs = 4096;

std::string short_text(const VqFormat& format) {
  if (format.is_scalar()) {
    return fmt::format("{} numbers of {} bits", enum_name(format.decoder),
                       format.index_bits / format.vector_size);
  }
  std::string codebooks;
  for_each_part(format, 0, [&](const VqFormat& part, int) {
    codebooks += fmt::format("{}{} x {} entries of {}", codebooks.empty() ? "" : ", ",
                             part.num_codebooks, part.entries(), part.vector_size);
  });
  return codebooks;
}

void list_formats(Output& output) {
  const std::vector<std::string> names = formats_for({});
  for (const std::string& name : names) {
    const FormatProfile profile = find_format_profile(name, "list");
    const VqFormat& format = profile.format;
    const std::string_view use = enum_name(*profile.use);
    const bool weights = profile.use == FormatUse::weights;
    const double bits = stored_bits(format, weights ? kListedInputs : kListedHeadDim);
    output.line("{:<{}}  {:<7}  {:>5.4g} bits  {}{}  {}", name, width_of(names), use, bits,
                profile.recommended ? "recommended: " : "", short_text(format), profile.source);
    output.document["formats"].push_back({{"name", name},
                                          {"use", use},
                                          {"recommended", profile.recommended},
                                          {"bits_per_element", bits},
                                          {"entries", format.entries()},
                                          {"format", to_json(format)},
                                          {"source", profile.source}});
  }
}

// What ships that was timed on a GPU, by the name of its profile.
struct Timed {
  std::size_t tuned_rows = 0;
  bool cost_model = false;  // its coefficients were fitted to times of this GPU

  bool any() const { return tuned_rows > 0 || cost_model; }
  std::string text() const {
    if (!any()) return "only modelled";
    if (tuned_rows == 0) return "timed: cost model";
    return fmt::format("timed: {}{} tuned rows", cost_model ? "cost model, " : "", tuned_rows);
  }
};

Timed timed_on(const std::string& gpu) {
  Timed timed{.cost_model = cost_profile().gpu == gpu};
  for (const ShippedTable& table : shipped_tables()) {
    if (table.name != "tuned/" + gpu + ".jsonl") continue;
    timed.tuned_rows = TableReader(table.text, table.name).size();
  }
  return timed;
}

void list_gpus(Output& output) {
  const std::vector<std::string> names = gpu_names();
  for (const std::string& name : names) {
    const GpuSpec spec = find_gpu(name);
    const Timed timed = timed_on(name);
    output.line("{:<{}}  {:<7}  {:>3} SMs  {:>3.0f} GB  {}  ({})", name, width_of(names), spec.arch,
                spec.sms, static_cast<double>(spec.memory_bytes) * 1e-9, spec.name, timed.text());
    output.document["gpus"].push_back({{"name", name},
                                       {"spec", to_json(spec)},
                                       {"timed", timed.any()},
                                       {"tuned_rows", timed.tuned_rows},
                                       {"cost_model", timed.cost_model}});
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
  add_examples(*command, "vqgen list formats", "vqgen list gpus --json");
  command->add_option("what", *what, "formats, gpus or sweeps")
      ->required()
      ->check(CLI::IsMember({"formats", "gpus", "sweeps"}));
}

}  // namespace vqgen::cli
