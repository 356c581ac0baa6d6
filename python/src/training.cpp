#include "python/src/training.h"

#include <memory>
#include <nlohmann/json.hpp>

namespace vqgen::python {
namespace {

using Shape = std::vector<std::int64_t>;

// The stride of a dimension of one element counts nothing: PyTorch tells 1.
bool is_dense(const Tensor& tensor) {
  std::int64_t inner = 1;
  for (int i = tensor.view().ndim - 1; i >= 0; --i) {
    if (tensor.view().shape[i] != 1 && tensor.stride(i) != inner) return false;
    inner *= tensor.view().shape[i];
  }
  return true;
}

void require_vectors(const Tensor& data, const DLDevice& device) {
  const DLTensor& view = data.view();
  if (view.ndim == 3 && is_dense(data) && view.dtype == DLDataType{kFloat, 32, 1} &&
      view.device.type == device.type && view.device.id == device.id) {
    return;
  }
  throw bad_input("'vectors' is " + data.words() +
                  "; it has to be float32 [units, rows, columns], contiguous, on " +
                  (device.type == kCpu ? "cpu" : "cuda:" + std::to_string(device.id)));
}

// What is written has as many bytes as the training writes.
void require_written(const char* name, const Tensor& tensor, const Shape& shape, int bits,
                     const Tensor& vectors) {
  const DLTensor& view = tensor.view();
  const bool same = view.ndim == static_cast<int>(shape.size()) &&
                    std::equal(shape.begin(), shape.end(), view.shape);
  if (same && is_dense(tensor) && view.dtype.bits == bits && view.dtype.lanes == 1 &&
      view.device.type == kCpu && !tensor.read_only()) {
    return;
  }
  std::string wanted;
  for (const std::int64_t size : shape) {
    wanted += (wanted.empty() ? "[" : ", ") + std::to_string(size);
  }
  throw bad_input(std::string("'") + name + "' is " + tensor.words() + "; for 'vectors', " +
                  vectors.words() + ", it has to be " + wanted + "] of " + std::to_string(bits) +
                  " bits, writable, contiguous, on cpu (arrays' .shape has to be that of their "
                  "DLPack)");
}

}  // namespace

std::string fields_of(const std::string& format) {
  char* json = nullptr;
  require(vqgen_format_fields(format.c_str(), &json));
  const std::unique_ptr<char, decltype(&vqgen_text_free)> owned(json, &vqgen_text_free);
  return json;
}

Training::Training(const DLDevice& device, PyObject* vectors, PyObject* codebooks, PyObject* scales,
                   const std::string& format, int element, std::uint64_t seed, int iterations)
    : format_(fields_of(format)),
      vectors_(vectors, "vectors", nullptr),
      codebooks_(codebooks, "codebooks", nullptr) {
  require_vectors(vectors_, device);
  const auto fields = nlohmann::json::parse(format_);
  if (fields.contains("parts")) {
    throw bad_input("keys in parts are trained part by part; give the format of one");
  }
  const DLTensor& view = vectors_.view();
  const Shape stages{view.shape[0], fields.at("num_codebooks").get<std::int64_t>()};
  Shape entries = stages;
  entries.push_back(std::int64_t{1} << fields.at("index_bits").get<int>());
  entries.push_back(fields.at("vector_size").get<std::int64_t>());
  require_written("codebooks", codebooks_, entries, 16, vectors_);
  if (fields.at("stage_scales").get<bool>() != (scales != Py_None)) {
    throw bad_input(
        "'scales' is given where the format has no stage_scales, or missing where it "
        "has; give it with stage_scales alone");
  }
  if (scales != Py_None) {
    scales_.emplace(scales, "scales", nullptr);
    require_written("scales", *scales_, stages, 32, vectors_);
  }
  args_.struct_bytes = sizeof(args_);
  args_.element = element;
  args_.iterations = iterations;
  args_.seed = seed;
  args_.units = view.shape[0];
  args_.rows = view.shape[1];
  args_.columns = view.shape[2];
  args_.vectors = static_cast<const float*>(vectors_.data());
  args_.codebooks = codebooks_.data();
  args_.stage_scales = scales_ ? static_cast<float*>(scales_->data()) : nullptr;
}

void Training::run(vqgen_runtime* runtime) const {
  vqgen_training_args args = args_;
  args.format = format_.c_str();
  require(vqgen_train_codebooks(runtime, &args));
}

}  // namespace vqgen::python
