#include "quantizer/train/quantize_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/files/digest.h"
#include "core/files/files.h"
#include "quantizer/folder_files.h"
#include "quantizer/model_folder.h"
#include "quantizer/model_writer.h"
#include "quantizer/train/weight_job.h"

namespace vqgen {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeight = ".weight";

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

// Has a tensor of the decoder's layers the matrices of all experts?
bool is_of_all_experts(const TensorInfo& info) {
  return info.shape.size() == 3 && layer_number(info.name) >= 0 &&
         has_part(info.name, [](std::string_view part) { return part == "experts"; });
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
    const FolderFiles files = files_beside(request_.model, file_);
    plan_.left_out = files.left_out;
    writer_.plan(shards(), arguments(), files.copied_bytes);
    plan_.finished_layers = writer_.finished_layers();
    judge_numbers_of_rest();
    writer_.begin();
    if (request_.judged) request_.judged(plan_);
    copy_dense();
    QuantizeModelResult result;
    for (std::size_t i = 0; i < jobs_.size(); ++i) result.layers.push_back(quantize(i));
    add_files(files.copied);
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
      if (is_of_all_experts(info) && !is_excluded(module, info.name)) {
        file_.fail(info.name,
                   fmt::format("has shape {}, an axis of experts, and only an expert's own "
                               "matrix is quantized; leave it dense with --exclude "
                               "'*.experts.*'",
                               shape_text(info.shape)));
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

  // A shard for each of the source, with what its tensors become.
  std::vector<ShardPlan> shards() {
    std::map<std::size_t, std::vector<TensorInfo>> parts;
    for (const TensorInfo* info : dense_) {
      parts[info->part].push_back(
          {info->name, info->type, info->dtype, info->shape, 0, info->end - info->begin});
    }
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      std::vector<TensorInfo>& part = parts[file_.at(jobs_[i].tensor).part];
      for (TensorInfo& info : weight_infos(jobs_[i].name, sizes_[i])) {
        if (file_.find(info.name) != nullptr) {
          file_.fail(info.name, "has the name that a quantized layer's tensor gets; rename it");
        }
        plan_.quantized_bytes += info.end;
        part.push_back(std::move(info));
      }
    }
    return number_shards(std::move(parts));
  }

  // What the bytes depend on.
  Json arguments() const {
    return {{"MODEL_DIR", identities_of(file_)},
            {"config.json", sha256_hex(std::as_bytes(std::span(config_.text)))},
            {"--format", to_json(request_.format)},
            {"--exclude", request_.exclude},
            {"--dtype", enum_name(jobs_.front().dtype)},
            {"--device", request_.trained_on},
            {"--seed", request_.options.seed}};
  }

  void copy_dense() {
    for (const TensorInfo* info : dense_) {
      progress("copying " + info->name);
      file_.read_pieces(*info, [&](std::uint64_t at, std::span<const std::byte> piece) {
        writer_.write(info->name, at, piece);
      });
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

  void add_files(const std::vector<std::string>& copied) const {
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
    for (const std::string& name : copied) {
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
  ModelPlan plan_;
};

}  // namespace

QuantizeModelResult quantize_model(const QuantizeModelRequest& request) {
  return ModelQuantizer(request).run();
}

}  // namespace vqgen
