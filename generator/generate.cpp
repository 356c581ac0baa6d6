#include "generator/generate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "core/ceil_div.h"
#include "core/files/digest.h"
#include "core/gpu/gpu_arch.h"
#include "core/problem/config.h"

namespace vqgen {
namespace {

// A template ("vq/kernels/linear_simt/kernel.cuh") with everything it includes put in once, in
// order, with #line marks. <vq/machine.cuh> and <vq/annotations.h> come from the machine's folder.
// Includes outside vq/ stay, which only the host machine has.
class Amalgamator {
 public:
  explicit Amalgamator(Machine machine)
      : machine_folder_(machine == Machine::cuda ? "machine/cuda/" : "machine/host/") {}

  void add(std::string_view path) {
    if (!seen_.insert(std::string(path)).second) return;
    std::string_view text = find(path);
    mark(1, path);
    for (int line = 1; !text.empty(); ++line) {
      const std::size_t end = text.find('\n');
      add_line(text.substr(0, end), line, path);
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
  }

  std::string take() { return std::move(text_); }

 private:
  std::string_view find(std::string_view path) const {
    const std::string on_machine = machine_folder_ + std::string(path);
    std::string_view found;
    for (const EmbeddedFile& file : embedded_templates()) {
      if (file.path == on_machine) return file.text;
      if (file.path == path) found = file.text;
    }
    if (found.empty()) throw std::logic_error("no template " + std::string(path));
    return found;
  }

  void mark(int line, std::string_view path) {
    text_ += fmt::format("#line {} \"{}\"\n", line, path);
  }

  void add_line(std::string_view line, int number, std::string_view path) {
    constexpr std::string_view kInclude = "#include <vq/";
    if (line == "#pragma once") {
      text_ += '\n';
    } else if (line.starts_with(kInclude)) {
      const std::size_t begin = line.find('<') + 1;
      add(line.substr(begin, line.find('>') - begin));
      mark(number + 1, path);
    } else {
      text_ += line;
      text_ += '\n';
    }
  }

  std::string machine_folder_;
  std::set<std::string> seen_;
  std::string text_;
};

// Assignments of `value`, one per line, in the order of its visit(); `path` is what they assign to.
template <class T>
std::string assignments(const std::string& path, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return fmt::format("    {} = {};\n", path, value ? "true" : "false");
  } else if constexpr (std::is_enum_v<T>) {
    return fmt::format("    {} = {}::{};\n", path, vq::EnumNames<T>::kType, enum_name(value));
  } else if constexpr (std::is_integral_v<T>) {
    return fmt::format("    {} = {};\n", path, value);
  } else if constexpr (std::is_array_v<T>) {
    using Element = std::remove_extent_t<T>;
    std::string text;
    if constexpr (std::is_integral_v<Element>) {
      return fmt::format("    vq::assign({}, {{{}}});\n", path, fmt::join(value, ", "));
    } else {
      int i = 0;
      const std::string nothing = assignments(path, Element{});
      for (const Element& each : value) {
        if (assignments(path, each) != nothing) {
          text += assignments(fmt::format("{}[{}]", path, i), each);
        }
        ++i;
      }
    }
    return text;
  } else {
    std::string text;
    if constexpr (requires { value.none(); }) {
      if (value.none()) return text;
    }
    T::visit([&](const char* name, auto member, const auto&...) {
      text += assignments(fmt::format("{}.{}", path, name), value.*member);
    });
    return text;
  }
}

// Problem and plan as the struct that the templates take.
template <class Facts, class P>
std::string plan_text(const Facts& facts, const P& plan) {
  return fmt::format(
      "struct Plan {{\n"
      "  VQ_HD static constexpr auto config() {{\n"
      "    vq::{} problem{{}};\n{}"
      "    vq::{} plan{{}};\n{}"
      "    return vq::configure(problem, plan);\n"
      "  }}\n"
      "}};\n",
      Facts::kType, assignments("problem", facts), P::kType, assignments("plan", plan));
}

// "attention_dequantize_simt_d4b8_d8b12_f16_1f0e8a77c3": op, dataflow, formats of the operands,
// element type, and digits of a digest of all that is compiled in, so that no two kernels share a
// name.
std::string suffix(const Problem& problem, const Plan& plan, const std::string& compiled_in) {
  std::string text = fmt::format("_{}", dataflow_name(plan));
  std::visit(
      [&](const auto& op) {
        for_each_operand(op, [&](Operand, const VqFormat& format) {
          text += fmt::format("_{}", short_name(format));
        });
        text += fmt::format("_{}", enum_name(op.dtype));
      },
      problem);
  return fmt::format("{}_{}", text, Digest().add(compiled_in).hex().substr(0, 10));
}

// `VQ_KERNEL(name, threads, vq::Args) { vq::function<Plan>(args); }`. _ENDS_FIRST: the next launch
// may not overlap it; _AHEAD: the function waits for the previous launch itself; _AHEAD_RESIDENT:
// registers leave room for several blocks; _AHEAD_CLUSTERS: blocks form clusters.
std::string entry_text(const KernelEntry& entry, const vq::Launch& launch, const char* args) {
  const bool clusters = launch.cluster > 1;
  const int blocks = clusters ? launch.cluster : launch.resident;
  return fmt::format(
      "\n// Launch: grid ({}, {}, {}), {} threads, {} bytes of dynamic shared memory{}.\n"
      "VQ_KERNEL{}({}, {}, vq::{}) {{ vq::{}<Plan>(args); }}\n",
      entry.grid.x, entry.grid.y, entry.grid.z, entry.threads, entry.shared_bytes,
      clusters ? fmt::format(", clusters of (1, 1, {}) by themselves", blocks) : "",
      clusters              ? "_AHEAD_CLUSTERS"
      : launch.resident > 0 ? "_AHEAD_RESIDENT"
      : launch.ahead        ? "_AHEAD"
      : launch.ends_first   ? "_ENDS_FIRST"
                            : "",
      entry.name,
      blocks > 0 ? fmt::format("{}, {}", entry.threads, blocks) : std::to_string(entry.threads),
      args, launch.function);
}

// " batch=1 head_dim=128 ...": one line of a JSON object's members, less those that `defaults` has
// with the same value.
std::string members(const Json& object, const Json& defaults = Json::object()) {
  std::string line;
  for (const auto& [key, value] : object.items()) {
    if (defaults.contains(key) && defaults[key] == value) continue;
    line += fmt::format(" {}={}", key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return line;
}

std::string head(const Problem& problem, const Plan& plan, const KernelSource& source,
                 const GpuSpec& gpu, const std::vector<std::string>& reasons) {
  Json json = to_json(problem);
  std::string text =
      fmt::format("// {}: a fused vector-quantization kernel, written by vqgen.\n//\n",
                  source.entries.front().name);
  text += fmt::format("// Problem  {} {},{}\n", json["op"].get<std::string>(),
                      json["dtype"].get<std::string>(), members(json["shape"]));
  for (const char* operand : {"keys", "values", "weights"}) {
    if (json.contains(operand))
      text += fmt::format("//   {:<8}{}\n", operand, members(json[operand], to_json(VqFormat{})));
  }
  text += fmt::format("// Plan    {}\n//   for {} ({})\n", members(to_json(plan)), gpu.name,
                      source.arch);
  for (const std::string& reason : reasons) text += fmt::format("//   {}\n", reason);
  if (source.machine == Machine::cuda) {
    text += fmt::format("// Compile  nvcc -std=c++17 -arch={} -cubin -o kernel.cubin FILE.cu\n",
                        source.arch);
  }
  return text;
}

// Most blocks per SM; 0: no limit. From sm_90 on a kernel starts before the previous one has ended,
// while some SMs are busy: without a limit its blocks crowd the free SMs. GEMMs get one block
// (docs/lab/merge-and-launch.md); other ops are not measured.
int most_together(const vq::Launch& launch, const Problem& problem, const GpuSpec& gpu) {
  if (arch_number(gpu.arch) < 90 || !launch.ahead) return launch.together;
  const std::int64_t even =
      ceil_div(launch.x * launch.y * launch.z, std::int64_t{cluster_sms(gpu, launch.cluster)});
  constexpr std::int64_t kMostOfAttention = 4;
  const bool attention = std::holds_alternative<AttentionDecode>(problem);
  const std::int64_t most = attention ? kMostOfAttention : as_linear(problem) != nullptr ? 1 : 0;
  return even <= most ? static_cast<int>(even) : launch.together;
}

// Dynamic shared memory of a block on this GPU: enough to keep more than the wanted blocks off an
// SM.
std::int64_t asked_shared_bytes(const vq::Launch& launch, const Problem& problem,
                                const GpuSpec& gpu) {
  const int together = most_together(launch, problem, gpu);
  if (together == 0) return launch.shared_bytes;
  constexpr int kGranule = 1024;
  const int asked = (gpu.shared_bytes_per_sm / (together + 1) / kGranule + 1) * kGranule;
  return std::max<std::int64_t>(launch.shared_bytes, std::min(asked, gpu.shared_bytes_per_block));
}

}  // namespace

std::string template_text(const std::string& path, Machine machine) {
  Amalgamator templates(machine);
  templates.add(path);
  return templates.take();
}

KernelSource generate(const Problem& problem, const Plan& plan, const GpuSpec& gpu, Machine machine,
                      const std::vector<std::string>& reasons) {
  const vq::CallShape shape = call_shape(plan, problem);
  KernelSource source;
  source.op = op_name(problem);
  source.machine = machine;
  source.arch = machine == Machine::cuda ? gpu.arch : "host";
  Amalgamator templates(machine);
  templates.add(fmt::format("vq/kernels/{}/kernel.cuh", kernel_name(plan)));
  const auto changes_basis = [](const vq::Launch& launch) {
    const std::string_view function = launch.function;
    return function.starts_with("attention_") && function.ends_with("_basis");
  };
  if (std::any_of(shape.launches, shape.launches + shape.count, changes_basis)) {
    templates.add("vq/ops/attention_basis.cuh");
  }
  visit_plan(plan, problem, [&]<class P, class Op>(const P& each, const Op& op) {
    using Args = ArgsOf<Op>;
    source.args_bytes = sizeof(Args);
    std::string text = plan_text(facts(op), each);
    const std::string end = suffix(problem, plan, text);
    for (int i = 0; i < shape.count; ++i) {
      const vq::Launch& launch = shape.launches[i];
      const auto size = [](std::int64_t blocks) { return static_cast<unsigned>(blocks); };
      const std::string part = *launch.part == 0 ? "" : fmt::format("_{}", launch.part);
      source.entries.push_back({source.op + part + end,
                                {size(launch.x), size(launch.y), size(launch.z)},
                                static_cast<unsigned>(launch.threads),
                                machine == Machine::cuda ? asked_shared_bytes(launch, problem, gpu)
                                                         : launch.shared_bytes});
      text += entry_text(source.entries.back(), launch, Args::kType);
    }
    source.text = "\n" + templates.take() + "#line 1 \"plan\"\n" + text;
  });
  source.text = head(problem, plan, source, gpu, reasons) + source.text;
  return source;
}

}  // namespace vqgen
