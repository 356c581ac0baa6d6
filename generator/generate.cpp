#include "generator/generate.h"

#include <fmt/format.h>

#include "core/config.h"
#include "generator/amalgamate.h"
#include "generator/ops/ops.h"

namespace vqgen {
namespace {

OpText text_for(const Problem& problem, const Plan& plan) {
  if (const auto* attention = std::get_if<AttentionDecode>(&problem)) {
    return op_text(*attention, std::get<AttentionDecodePlan>(plan));
  }
  if (const auto* append = std::get_if<KvAppend>(&problem)) {
    return op_text(*append, std::get<KvAppendPlan>(plan));
  }
  return op_text(op_name(problem).c_str(), *as_linear(problem), std::get<LinearPlan>(plan));
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

}  // namespace

KernelSource generate(const Problem& problem, const Plan& plan, const GpuSpec& gpu, Machine machine,
                      const std::vector<std::string>& reasons) {
  OpText op = text_for(problem, plan);
  KernelSource source;
  source.op = op_name(problem);
  source.machine = machine;
  source.arch = machine == Machine::cuda ? gpu.arch : "host";
  source.entries = std::move(op.entries);
  source.args_bytes = op.args_bytes;
  source.text = head(problem, plan, source, gpu, reasons);
  source.text += '\n';
  source.text += amalgamate(machine, op.templates);
  source.text += "#line 1 \"plan\"\n" + op.plan + op.kernels;
  return source;
}

}  // namespace vqgen
