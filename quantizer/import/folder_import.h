// What importers of Hugging Face folders share: judging tensors by name, carrying dense ones over,
// and finishing the plan. Internal to them.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/format/quantized_tensor.h"
#include "quantizer/import/import_plan.h"
#include "quantizer/model_config.h"
#include "quantizer/model_folder.h"

namespace vqgen {

inline constexpr std::size_t kCodeBytesAtATime = 1 << 22;  // bytes of codes that are read at a time

using TensorsPointer = std::shared_ptr<const SafetensorsFile>;

class FolderImport {
 public:
  FolderImport(const std::filesystem::path& folder, const ModelConfig& config);

  const SafetensorsFile& file() const { return *file_; }
  TensorsPointer pointer() const { return file_; }
  const ModelConfig& config() const { return config_; }
  ImportPlan& plan() { return plan_; }

  // Refuses a tensor with another shape than the settings ask for.
  void require_shape(const TensorInfo& info, const std::vector<std::int64_t>& shape) const;
  // MODULE.SUFFIX, which a layer with MODULE.OF has to have.
  const TensorInfo& beside(const std::string& module, const char* suffix, const char* of) const;
  // Refuses MODULE.SUFFIX beside the codes `tensor`.
  void require_none(const std::string& module, const char* suffix, const TensorInfo& tensor) const;
  // Refuses weights of a mixture of experts.
  void require_no_expert(const std::string& module, const TensorInfo& tensor) const;
  // True of a tensor MODULE.SUFFIX with one of the suffixes, which the layer MODULE.OF brings in.
  // Refuses one without a layer.
  bool is_beside(const TensorInfo& info, std::initializer_list<std::string_view> suffixes,
                 const char* of) const;
  // weight_sizes() of the codes `tensor`; Error(infeasible) if no kernel reads such weights.
  QuantizedTensor readable_sizes(const VqFormat& format, DType dtype, std::int64_t rows,
                                 std::int64_t columns, const std::string& tensor) const;
  // Carries a tensor over as it is.
  void add_dense(const TensorInfo& info);
  // Adds the tensors of a layer of `sizes`, in the shard of its codes, and returns their bytes.
  // write_of(suffix) gives what writes one of them.
  template <class WriteOf>
  std::uint64_t add_layer(const std::string& module, const QuantizedTensor& sizes, bool rotated,
                          std::size_t part, const WriteOf& write_of);

  // The plan, once all tensors are in it. `quantization` has dtype, format and what else is the
  // method's; `shapes` are those of the layers, of which there is one, whose codes end in `codes`.
  ImportPlan finish(QuantizationConfig quantization, const std::vector<WeightShape>& shapes,
                    const char* codes);

 private:
  std::filesystem::path folder_;
  const ModelConfig& config_;
  TensorsPointer file_;
  std::vector<std::string> dense_modules_;
  ImportPlan plan_;
};

template <class WriteOf>
std::uint64_t FolderImport::add_layer(const std::string& module, const QuantizedTensor& sizes,
                                      bool rotated, std::size_t part, const WriteOf& write_of) {
  std::uint64_t bytes = 0;
  for (TensorInfo& each : weight_infos(module, sizes, rotated)) {
    bytes += each.end;
    each.part = part;
    auto write = write_of(std::string_view(each.name).substr(module.size()));
    plan_.tensors.push_back({std::move(each), std::move(write)});
  }
  return bytes;
}

}  // namespace vqgen
