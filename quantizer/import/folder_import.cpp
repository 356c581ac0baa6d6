#include "quantizer/import/folder_import.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/files/digest.h"
#include "core/problem/check.h"

namespace vqgen {

FolderImport::FolderImport(const std::filesystem::path& folder, const ModelConfig& config)
    : folder_(folder),
      config_(config),
      file_(std::make_shared<const SafetensorsFile>(model_tensors_at(folder))) {}

void FolderImport::require_shape(const TensorInfo& info,
                                 const std::vector<std::int64_t>& shape) const {
  if (info.shape == shape) return;
  file_->fail(info.name, fmt::format("has shape {} where {} asks for {}; fetch the model again",
                                     shape_text(info.shape), config_.source, shape_text(shape)));
}

const TensorInfo& FolderImport::beside(const std::string& module, const char* suffix,
                                       const char* of) const {
  const TensorInfo* const info = file_->find(module + suffix);
  if (info != nullptr) return *info;
  file_->fail(module + suffix,
              fmt::format("is not there, though '{}{}' is; fetch the model again", module, of));
}

void FolderImport::require_none(const std::string& module, const char* suffix,
                                const TensorInfo& tensor) const {
  if (file_->find(module + suffix) == nullptr) return;
  file_->fail(module + suffix,
              fmt::format("is there beside '{}'; a layer has one of the two: remove the wrong one",
                          tensor.name));
}

void FolderImport::require_no_expert(const std::string& module, const TensorInfo& tensor) const {
  if (module.find(".experts.") == std::string::npos) return;
  file_->fail(tensor.name,
              "is an expert's, and mixtures of experts are not served from a folder; quantize the "
              "original with vqgen quantize --exclude '*.experts.*'");
}

bool FolderImport::is_beside(const TensorInfo& info,
                             std::initializer_list<std::string_view> suffixes,
                             const char* of) const {
  for (const std::string_view suffix : suffixes) {
    if (!info.name.ends_with(suffix)) continue;
    const std::string module = info.name.substr(0, info.name.size() - suffix.size());
    if (file_->find(module + of) != nullptr) return true;
    file_->fail(info.name,
                fmt::format("is there without '{}{}'; fetch the model again", module, of));
  }
  return false;
}

QuantizedTensor FolderImport::readable_sizes(const VqFormat& format, DType dtype, std::int64_t rows,
                                             std::int64_t columns,
                                             const std::string& tensor) const {
  const std::string source = fmt::format("{}: {}", file_->source(), tensor);
  QuantizedTensor sizes = weight_sizes(format, dtype, rows, columns, source);
  const Verdict verdict = check(Problem(Gemv{{dtype, {1, rows, columns}, format}}));
  if (verdict.ok) return sizes;
  throw Error(ErrorKind::infeasible,
              fmt::format("{}: no kernel reads it: {}", source, verdict.reason));
}

void FolderImport::add_dense(const TensorInfo& info) {
  TensorInfo as_is{info.name, info.type, info.dtype, info.shape, 0, info.end - info.begin,
                   info.part};
  const std::string_view weight = ".weight";
  if (info.name.ends_with(weight) && info.shape.size() == 2) {
    dense_modules_.push_back(info.name.substr(0, info.name.size() - weight.size()));
  }
  plan_.count({info.dtype, info.dtype, "tensors", 1, as_is.end, as_is.end});
  plan_.tensors.push_back({std::move(as_is), [file = file_, &info](const TakeBytes& take) {
                             file->read_pieces(info, take);
                           }});
}

ImportPlan FolderImport::finish(QuantizationConfig quantization,
                                const std::vector<WeightShape>& shapes, const char* codes) {
  if (shapes.empty()) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: no tensor ends in {}, though {} says that the model is quantized; "
                            "fetch the model again",
                            file_->source(), codes, config_.source));
  }
  std::vector<std::string> names;
  for (const TensorInfo& info : file_->tensors()) names.push_back(info.name);
  require_all_layers(config_, names, file_->source());
  quantization.weight_shapes = shape_patterns(shapes);
  quantization.modules_to_not_convert = dense_modules_;
  plan_.config = with_quantization(config_, quantization);
  plan_.files_from = folder_;
  plan_.files = files_beside(folder_, *file_);
  plan_.arguments = {{"SOURCE", identities_of(*file_)},
                     {"config.json", sha256_hex(std::as_bytes(std::span(config_.text)))}};
  return std::move(plan_);
}

}  // namespace vqgen
