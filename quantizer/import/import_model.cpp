#include "quantizer/import/import_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/files/files.h"
#include "quantizer/import/aqlm.h"
#include "quantizer/import/bitsandbytes.h"
#include "quantizer/import/gguf_model.h"
#include "quantizer/import/import_plan.h"
#include "quantizer/import/quip.h"
#include "quantizer/model_writer.h"

namespace vqgen {
namespace {

namespace fs = std::filesystem;

// Methods of other checkpoints that people look for here, and what vqgen lacks for them.
struct Unread {
  const char* method;
  const char* lacks;
};
constexpr Unread kUnread[] = {{"vptq", "vectors along output features"},
                              {"exl3", "rotations and codebooks computed from a trellis"},
                              {"higgs", "rotations of groups of inputs"},
                              {"gptq", "an importer"},
                              {"awq", "an importer"},
                              {"compressed-tensors", "an importer"}};

constexpr const char* kOriginal = "quantize the original model with vqgen quantize";

std::string method_of(const ModelConfig& config) {
  const JsonCursor root(*config.quantization, config.source, std::string("/") + kQuantizationKey);
  return root.member("quant_method").string();
}

[[noreturn]] void refuse_method(const ModelConfig& config, const std::string& method) {
  const std::string where = fmt::format("{}: quant_method '{}'", config.source, method);
  if (method == kQuantMethod) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: is vqgen's already; load the folder as it is", where));
  }
  for (const Unread& each : kUnread) {
    if (method != each.method) continue;
    throw Error(ErrorKind::bad_input, fmt::format("{}: is not read: it needs {}, which vqgen "
                                                  "does not have; {}",
                                                  where, each.lacks, kOriginal));
  }
  throw Error(
      ErrorKind::bad_input,
      fmt::format("{}: is not read; 'aqlm', 'bitsandbytes' and QuIP# are: {}", where, kOriginal));
}

// Does the config say that the model is QuIP#'s? QTIP has the key too, with settings of its own.
bool is_quip(const ModelConfig& config) {
  const Json json = parse_json(config.text, config.source);
  const JsonCursor root(json, config.source);
  if (!root.has(kQuipKey)) return false;
  if (root.at(kQuipKey).has("decode_mode")) {
    root.at(kQuipKey).fail(
        fmt::format("is of QTIP, which is not read: it needs codebooks computed from a trellis, "
                    "which vqgen does not have; {}",
                    kOriginal));
  }
  return true;
}

// People give the folder that they have fetched a GGUF file into.
void refuse_gguf_folder(const fs::path& folder) {
  std::error_code code;
  if (fs::exists(folder / "config.json", code)) return;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".gguf")) names.push_back(name);
  }
  if (names.empty()) return;
  throw Error(ErrorKind::bad_input,
              fmt::format("{}: the folder has no config.json, but {}; give a GGUF file itself",
                          folder.string(), *std::ranges::min_element(names)));
}

ImportPlan plan_folder(const fs::path& folder) {
  refuse_gguf_folder(folder);
  const ModelConfig config = read_model_config(folder);
  if (!config.quantization) {
    if (is_quip(config)) return plan_quip(folder, config);
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: there is no '{}': the model is not quantized; quantize it with "
                            "vqgen quantize",
                            config.source, kQuantizationKey));
  }
  const std::string method = method_of(config);
  if (method == kBitsandbytesMethod) return plan_bitsandbytes(folder, config);
  if (method != kAqlmMethod) refuse_method(config, method);
  return plan_aqlm(folder, config);
}

ImportPlan plan_of(const ImportRequest& request) {
  std::error_code code;
  if (!fs::is_directory(request.source, code)) {
    return plan_gguf(request.source, request.like, {request.dtype, request.dense});
  }
  for (const auto& [option, given] :
       {std::pair{"--like", !request.like.empty()}, std::pair{"--dtype", request.dtype.has_value()},
        std::pair{"--dense", request.dense}}) {
    if (!given) continue;
    throw Error(ErrorKind::bad_input,
                fmt::format("import: {} goes with a GGUF file, and {} is a folder; leave it out",
                            option, request.source.string()));
  }
  return plan_folder(request.source);
}

std::vector<ShardPlan> shards_of(const ImportPlan& plan) {
  std::map<std::size_t, std::vector<TensorInfo>> parts;
  for (const ImportedTensor& tensor : plan.tensors) {
    parts[tensor.info.part].push_back(tensor.info);
  }
  return number_shards(std::move(parts));
}

void write_tensors(const ImportPlan& plan, const ImportRequest& request, ModelWriter& writer) {
  std::uint64_t all = 0;
  for (const ImportedTensor& tensor : plan.tensors) all += tensor.info.end;
  std::uint64_t done = 0;
  for (const ImportedTensor& tensor : plan.tensors) {
    if (request.progress) {
      request.progress(static_cast<double>(done) / static_cast<double>(all), tensor.info.name);
    }
    tensor.write([&](std::uint64_t offset, std::span<const std::byte> bytes) {
      writer.write(tensor.info.name, offset, bytes);
    });
    done += tensor.info.end;
  }
}

}  // namespace

void ImportPlan::count(const ImportedKind& one) {
  for (ImportedKind& kind : kinds) {
    if (kind.from != one.from || kind.to != one.to) continue;
    kind.count += one.count;
    kind.bytes_before += one.bytes_before;
    kind.bytes_after += one.bytes_after;
    return;
  }
  kinds.push_back(one);
}

ImportReport import_model(const ImportRequest& request) {
  ModelWriter writer(request.out, request.source);
  const ImportPlan plan = plan_of(request);
  const ImportReport report{plan.kinds, plan.files.left_out, plan.notes};
  writer.plan(shards_of(plan), plan.arguments, plan.files.copied_bytes);
  writer.begin();
  try {
    if (request.judged) request.judged(report);
    write_tensors(plan, request, writer);
    writer.add_file("config.json", std::as_bytes(std::span(plan.config)));
    for (const std::string& name : plan.files.copied) {
      writer.add_file(name, read_file(plan.files_from / name, kMostSmallFile));
    }
  } catch (const Error&) {
    writer.discard();
    throw;
  }
  writer.publish();
  return report;
}

}  // namespace vqgen
