#include "quantizer/train/quantize_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <set>

#include "core/error.h"
#include "core/files/digest.h"
#include "core/files/files.h"
#include "quantizer/model_folder.h"
#include "quantizer/train/model_writer.h"
#include "quantizer/train/weight_job.h"

namespace vqgen {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostSmallFile = std::uint64_t{1} << 28;
constexpr std::size_t kCopied = 1 << 24;  // bytes that are copied at a time
constexpr const char* kWeight = ".weight";

// Files of weights in any form, which are not copied; and the cache's bundle, which is bound to the
// dense model.
constexpr const char* kWeightFiles[] = {".safetensors", ".safetensors.index.json",
                                        ".bin",         ".bin.index.json",
                                        ".pt",          ".pth",
                                        ".ckpt",        ".gguf",
                                        ".h5",          ".msgpack",
                                        ".npz",         ".onnx",
                                        ".bundle"};

bool has_part(std::string_view name, const std::function<bool(std::string_view)>& wanted) {
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    if (wanted(name.substr(begin, end - begin))) return true;
    begin = end + 1;
  }
  return false;
}

// Is a two-dimensional weight of the decoder's layers no linear layer's?
bool is_other(std::string_view module) {
  const std::string_view last = module.substr(module.rfind('.') + 1);
  return last == "gate" || last == "router" || last == "shared_expert_gate" ||
         has_part(module, [](std::string_view part) {
           return part.find("embed") != std::string_view::npos;
         });
}

// The first and last bytes of a file and some between, with its size: which file it is.
Json identity_of(const std::string& path) {
  constexpr std::uint64_t kSample = 1 << 20;
  const OpenFile file(path);
  Digest digest;
  for (const std::uint64_t at : {std::uint64_t{0}, file.size() / 2, file.size()}) {
    const std::uint64_t begin = std::min(at, file.size() - std::min(file.size(), kSample));
    std::string sample(static_cast<std::size_t>(std::min(kSample, file.size() - begin)), '\0');
    file.read(begin, std::as_writable_bytes(std::span(sample)));
    digest.add(sample);
  }
  return {{"file", fs::path(path).filename().string()},
          {"bytes", file.size()},
          {"sha256", digest.hex()}};
}

class ModelQuantizer {
 public:
  explicit ModelQuantizer(const QuantizeModelRequest& request)
      : request_(request),
        config_(read_model_config(folder())),
        file_(model_tensors_at(request.model)),
        writer_(request.out, request.model) {}

  QuantizeModelResult run() {
    if (config_.quantization) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{}: has a '{}': the model is quantized already; give the original",
                              config_.source, kQuantizationKey));
    }
    select();
    judge_headers();
    list_files();
    writer_.plan(shards(), arguments(), small_bytes_);
    plan_.finished_layers = writer_.finished_layers();
    judge_numbers_of_rest();
    writer_.begin();
    if (request_.judged) request_.judged(plan_);
    copy_dense();
    QuantizeModelResult result;
    for (std::size_t i = 0; i < jobs_.size(); ++i) result.layers.push_back(quantize(i));
    add_files();
    writer_.publish();
    result.plan = plan_;
    return result;
  }

 private:
  const fs::path& folder() const {
    std::error_code code;
    if (!fs::is_directory(request_.model, code)) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{}: is no folder; give the folder of a Hugging Face model, or a "
                              "file by --input",
                              request_.model.string()));
    }
    return request_.model;
  }

  void progress(const std::string& label) const {
    if (request_.options.progress) request_.options.progress(0, label);
  }

  // Shares the tensors into those that are quantized and those that are copied.
  void select() {
    std::vector<std::size_t> excluded(request_.exclude.size());
    const auto is_excluded = [&](const std::string& module, const std::string& tensor) {
      bool any = false;
      for (std::size_t i = 0; i < excluded.size(); ++i) {
        if (!match_pattern(request_.exclude[i], module) &&
            !match_pattern(request_.exclude[i], tensor)) {
          continue;
        }
        ++excluded[i];
        any = true;
      }
      return any;
    };
    std::vector<std::string> names;
    for (const TensorInfo& info : file_.tensors()) {
      names.push_back(info.name);
      const bool matrix = info.name.ends_with(kWeight) && info.shape.size() == 2;
      const std::string module =
          matrix ? info.name.substr(0, info.name.size() - std::string_view(kWeight).size()) : "";
      const bool linear = matrix && layer_number(module) >= 0 && !is_other(module);
      if (linear && !is_excluded(module, info.name)) {
        require_linear(module, info);
        matches_.push_back({info.name, module, {}});
        continue;
      }
      dense_.push_back(&info);
      plan_.dense_bytes += info.end - info.begin;
      if (matrix) plan_.dense_modules.push_back(module);
    }
    require_all_layers(config_, names, file_.source());
    if (matches_.empty()) {
      throw Error(ErrorKind::bad_input,
                  fmt::format("{}: no linear layer is left to quantize: no two-dimensional "
                              "'*.weight' in a numbered layer, or --exclude leaves all out",
                              file_.source()));
    }
    for (std::size_t i = 0; i < excluded.size(); ++i) {
      if (excluded[i] > 0 || !request_.options.warn) continue;
      request_.options.warn(
          fmt::format("--exclude '{}' matches no linear layer", request_.exclude[i]));
    }
  }

  // What is stored otherwise than [out_features, in_features], or is loaded otherwise.
  void require_linear(const std::string& module, const TensorInfo& info) const {
    if (has_part(module, [](std::string_view part) { return part == "experts"; })) {
      file_.fail(info.name,
                 "is an expert's, and mixtures of experts are not served from a folder; leave them "
                 "dense with --exclude '*.experts.*'");
    }
    const TensorInfo* const bias = file_.find(module + ".bias");
    if (bias == nullptr || bias->shape == std::vector<std::int64_t>{info.shape[0]}) return;
    file_.fail(info.name,
               fmt::format("has shape {} where its bias has {}: it is stored transposed, as GPT-2 "
                           "has it; leave it out with --exclude",
                           shape_text(info.shape), shape_text(bias->shape)));
  }

  void judge_headers() {
    std::optional<DType> common;
    judge_each(matches_, [&](const PatternMatch& match) {
      const TensorInfo& info = file_.floats(match.tensor);
      const DType dtype = choose_dtype(request_.dtype, info);
      if (common && *common != dtype) {
        file_.fail(match.tensor, fmt::format("is {} where '{}' is not; choose one with --dtype",
                                             info.dtype, matches_.front().tensor));
      }
      common = dtype;
      jobs_.push_back(
          {&file_, match.tensor, match.item, request_.format, dtype, request_.any_format});
      sizes_.push_back(judge_weight(jobs_.back()));
    });
    plan_.layers = jobs_.size();
    for (const QuantizedTensor& sizes : sizes_) plan_.weights += sizes.rows * sizes.columns;
  }

  void judge_numbers_of_rest() {
    judge_each(matches_, [&](const PatternMatch& match) {
      const WeightJob& job = jobs_[static_cast<std::size_t>(&match - matches_.data())];
      if (!writer_.finished(match.item).is_null()) return;
      progress("reading " + match.tensor);
      judge_numbers(job, read_weight(job));
    });
  }

  void list_files() {
    const std::set<std::string> of_tensors = sources();
    for (const fs::directory_entry& entry : fs::directory_iterator(request_.model)) {
      const std::string name = entry.path().filename().string();
      std::error_code code;
      const bool regular = entry.is_regular_file(code);
      const bool weights =
          std::ranges::any_of(kWeightFiles, [&](const char* end) { return name.ends_with(end); });
      if (name == "config.json" || (weights && of_tensors.contains(name)) ||
          name == fs::path(file_.source()).filename()) {
        continue;
      }
      if (!regular || weights || name.starts_with('.') || entry.file_size() > kMostSmallFile) {
        plan_.left_out.push_back(name);
        continue;
      }
      small_.push_back(name);
      small_bytes_ += entry.file_size();
    }
    std::ranges::sort(small_);
    std::ranges::sort(plan_.left_out);
  }

  // The names of the files that tensors are in.
  std::set<std::string> sources() const {
    std::set<std::string> names;
    for (const TensorInfo& info : file_.tensors()) {
      names.insert(fs::path(file_.source_of(info)).filename().string());
    }
    return names;
  }

  // A shard for each of the source, with what its tensors become.
  std::vector<ShardPlan> shards() {
    std::map<std::size_t, std::vector<TensorInfo>> parts;
    for (const TensorInfo* info : dense_) {
      parts[info->part].push_back(
          {info->name, info->type, info->dtype, info->shape, 0, info->end - info->begin});
    }
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      std::vector<TensorInfo>& part = parts[file_.at(jobs_[i].tensor).part];
      for (WeightTensor& tensor : weight_tensors(sizes_[i])) {
        TensorInfo info{jobs_[i].name + tensor.suffix, tensor.type,
                        std::string(enum_name(tensor.type)), std::move(tensor.shape)};
        const bool wide = tensor.type == TensorType::f32 || tensor.type == TensorType::i32;
        info.end = static_cast<std::uint64_t>(info.elements()) * (wide ? 4 : 2);
        if (file_.find(info.name) != nullptr) {
          file_.fail(info.name, "has the name that a quantized layer's tensor gets; rename it");
        }
        plan_.quantized_bytes += info.end;
        part.push_back(std::move(info));
      }
    }
    std::vector<ShardPlan> shards;
    for (auto& [part, tensors] : parts) {
      shards.emplace_back(
          fmt::format("model-{:05}-of-{:05}.safetensors", shards.size() + 1, parts.size()),
          std::move(tensors));
    }
    return shards;
  }

  // What the bytes depend on.
  Json arguments() const {
    std::set<std::string> paths;
    for (const TensorInfo& info : file_.tensors()) paths.insert(file_.source_of(info));
    Json model = Json::array();
    for (const std::string& path : paths) model.push_back(identity_of(path));
    return {{"MODEL_DIR", std::move(model)},
            {"config.json", sha256_hex(std::as_bytes(std::span(config_.text)))},
            {"--format", to_json(request_.format)},
            {"--exclude", request_.exclude},
            {"--dtype", enum_name(jobs_.front().dtype)},
            {"--device", request_.trained_on},
            {"--seed", request_.options.seed}};
  }

  void copy_dense() {
    std::vector<std::byte> bytes;
    for (const TensorInfo* info : dense_) {
      progress("copying " + info->name);
      const std::uint64_t size = info->end - info->begin;
      for (std::uint64_t at = 0; at < size; at += bytes.size()) {
        bytes.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kCopied, size - at)));
        file_.read_bytes(*info, at, bytes);
        writer_.write(info->name, at, bytes);
      }
    }
  }

  LayerReport quantize(std::size_t i) {
    const WeightJob& job = jobs_[i];
    LayerReport report{job.name, short_name(job.format), 0, true};
    Json facts = writer_.finished(job.name);
    if (facts.is_null()) {
      std::vector<TensorReport> reports;
      TrainOptions options = part_of(request_.options, i, jobs_.size());
      options.warn = {};  // codebooks serve no other data than what they are trained on
      const QuantizedTensor weights = quantize_weight(job, read_weight(job), options, reports);
      facts = {{"relative_error", reports.front().input.relative}};
      std::vector<ModelWriter::NamedBytes> tensors;
      for (const WeightTensor& tensor : weight_tensors(weights)) {
        tensors.emplace_back(job.name + tensor.suffix, weight_bytes(weights, tensor));
      }
      writer_.finish(job.name, tensors, facts);
      report.from_earlier_run = false;
    }
    report.relative_error = facts.at("relative_error").get<double>();
    if (request_.finished) request_.finished(report, i + 1);
    return report;
  }

  void add_files() const {
    QuantizationConfig quantization;
    quantization.dtype = jobs_.front().dtype;
    quantization.format = request_.format;
    std::vector<WeightShape> shapes;
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      shapes.push_back({jobs_[i].name, sizes_[i].rows, sizes_[i].columns});
    }
    quantization.weight_shapes = shape_patterns(shapes);
    quantization.modules_to_not_convert = plan_.dense_modules;
    const std::string text = with_quantization(config_, quantization);
    writer_.add_file("config.json", std::as_bytes(std::span(text)));
    for (const std::string& name : small_) {
      writer_.add_file(name, read_file(request_.model / name, kMostSmallFile));
    }
  }

  const QuantizeModelRequest& request_;
  ModelConfig config_;
  SafetensorsFile file_;
  ModelWriter writer_;
  std::vector<PatternMatch> matches_;  // the tensors that are quantized
  std::vector<WeightJob> jobs_;        // as matches_
  std::vector<QuantizedTensor> sizes_;
  std::vector<const TensorInfo*> dense_;
  std::vector<std::string> small_;  // files that are copied
  std::uint64_t small_bytes_ = 0;
  ModelPlan plan_;
};

}  // namespace

QuantizeModelResult quantize_model(const QuantizeModelRequest& request) {
  return ModelQuantizer(request).run();
}

}  // namespace vqgen
