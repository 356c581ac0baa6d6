#include "quantizer/import/aqlm.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "quantizer/import/folder_import.h"
#include "quantizer/model_folder.h"
#include "quantizer/pack.h"

namespace vqgen {
namespace {

constexpr const char* kCodes = ".codes";
constexpr const char* kCodebooks = ".codebooks";
constexpr const char* kScales = ".scales";

// A linear layer's codes as the checkpoint has them.
struct AqlmCodes {
  TensorsPointer file;
  const TensorInfo* info = nullptr;
  int code_bytes = 1;  // 1 or 2
  int bits = 8;
  std::int64_t rows = 0;
  std::int64_t row_codes = 0;
  std::int64_t row_words = 0;

  std::size_t row_bytes() const {
    return static_cast<std::size_t>(row_codes) * static_cast<std::size_t>(code_bytes);
  }
};

// A row's codes as numbers from 0 to 2^bits - 1.
void read_row(const AqlmCodes& from, std::int64_t row, std::span<const std::byte> bytes,
              std::span<std::uint32_t> codes) {
  const std::int32_t half = 1 << (from.bits - 1);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    std::int32_t code = std::to_integer<std::int8_t>(bytes[i]);
    if (from.code_bytes == 2) {
      std::int16_t wide = 0;
      std::memcpy(&wide, bytes.data() + 2 * i, sizeof wide);
      code = wide;
    }
    if (code < -half || code >= half) {
      from.file->fail(from.info->name,
                      fmt::format("code {} of row {} is {}, which is no number of {} bits; fetch "
                                  "the file again",
                                  i, row, code, from.bits));
    }
    codes[i] = static_cast<std::uint32_t>(code) & ((std::uint32_t{1} << from.bits) - 1);
  }
}

void write_codes(const AqlmCodes& from, const TakeBytes& take) {
  const std::size_t row_bytes = from.row_bytes();
  const auto words = static_cast<std::size_t>(from.row_words);
  const bool same_bits = from.bits == 8 * from.code_bytes;
  if (same_bits && row_bytes == 4 * words) {
    from.file->read_pieces(*from.info, take);
    return;
  }
  const auto at_a_time =
      static_cast<std::int64_t>(std::max(kCodeBytesAtATime / row_bytes, std::size_t{1}));
  std::vector<std::byte> bytes;
  std::vector<std::uint32_t> codes(static_cast<std::size_t>(from.row_codes)), packed;
  for (std::int64_t first = 0; first < from.rows; first += at_a_time) {
    const auto rows = static_cast<std::size_t>(std::min(at_a_time, from.rows - first));
    bytes.resize(rows * row_bytes);
    from.file->read_bytes(*from.info, static_cast<std::uint64_t>(first) * row_bytes, bytes);
    packed.assign(rows * words, 0);
    for (std::size_t row = 0; row < rows; ++row) {
      const auto of_row = std::span(bytes).subspan(row * row_bytes, row_bytes);
      const auto into = std::span(packed).subspan(row * words, words);
      if (same_bits) {
        std::memcpy(into.data(), of_row.data(), row_bytes);
        continue;
      }
      read_row(from, first + static_cast<std::int64_t>(row), of_row, codes);
      pack_row(codes, from.bits, into);
    }
    take(static_cast<std::uint64_t>(first) * words * 4, std::as_bytes(std::span(packed)));
  }
}

class AqlmPlanner {
 public:
  AqlmPlanner(const std::filesystem::path& folder, const ModelConfig& config)
      : import_(folder, config), file_(import_.file()), config_(config) {}

  ImportPlan plan() {
    read_settings();
    std::vector<WeightShape> shapes;
    for (const TensorInfo& info : file_.tensors()) {
      if (info.name.ends_with(kCodes)) {
        shapes.push_back(add_layer(info));
      } else if (!is_of_layer(info)) {
        import_.add_dense(info);
      }
    }
    QuantizationConfig quantization;
    quantization.dtype = dtype_.value_or(DType::f16);
    quantization.format = format_;
    return import_.finish(std::move(quantization), shapes, kCodes);
  }

 private:
  void read_settings() {
    const JsonCursor root(*config_.quantization, config_.source,
                          std::string("/") + kQuantizationKey);
    const auto size = [&](const char* key, double most) {
      return static_cast<int>(root.member(key).integer(1, most));
    };
    format_.vector_size = size("in_group_size", 1024);
    format_.num_codebooks = size("num_codebooks", 1024);
    format_.index_bits = size("nbits_per_codebook", 64);
    format_.output_scales = true;
    if (const int outputs = size("out_group_size", 1024); outputs != 1) {
      root.at("out_group_size")
          .fail(fmt::format("is {}: it needs vectors along output features, which vqgen's weights "
                            "do not have; take a model with 1",
                            outputs));
    }
    const auto refuse = [&](const char* key, int value, const std::string& needs) {
      root.at(key).fail(
          fmt::format("is {}: it needs weights with {}, which no kernel reads; take "
                      "another model, or quantize the original with vqgen quantize",
                      value, needs));
    };
    const int group = format_.vector_size;
    if (group != 2 && group != 4 && group != 8) {
      refuse("in_group_size", group, fmt::format("vector_size {}", group));
    }
    if (format_.num_codebooks > 4) {
      refuse("num_codebooks", format_.num_codebooks,
             fmt::format("{} residual stages", format_.num_codebooks));
    }
    if (format_.index_bits < 2 || format_.index_bits > 16) {
      refuse("nbits_per_codebook", format_.index_bits,
             fmt::format("codes of {} bits", format_.index_bits));
    }
    method_ = fmt::format("{} {}x{}", kAqlmMethod, format_.num_codebooks, format_.index_bits);
  }

  AqlmCodes judge_codes(const TensorInfo& info) const {
    AqlmCodes codes{import_.pointer(), &info, format_.index_bits > 8 ? 2 : 1, format_.index_bits};
    const char* const dtype = codes.code_bytes == 2 ? "I16" : "I8";
    if (info.dtype != dtype) {
      file_.fail(info.name, fmt::format("is {} where codes of {} bits are {}; fetch the model "
                                        "again",
                                        info.dtype, format_.index_bits, dtype));
    }
    const std::vector<std::int64_t>& shape = info.shape;
    const bool sized = shape.size() == 3 && shape[0] >= 1 && shape[0] <= kMostFeatures &&
                       shape[1] >= 1 && shape[1] <= kMostFeatures / format_.vector_size &&
                       shape[2] == format_.num_codebooks;
    if (!sized) {
      file_.fail(info.name,
                 fmt::format("has shape {} where {} asks for [out_features, in_features / {}, {}]; "
                             "fetch the model again",
                             shape_text(shape), config_.source, format_.vector_size,
                             format_.num_codebooks));
    }
    codes.rows = shape[0];
    codes.row_codes = shape[1] * shape[2];
    codes.row_words = format_.row_words(shape[1] * format_.vector_size);
    const auto bytes = static_cast<std::uint64_t>(codes.rows) * codes.row_bytes();
    if (info.end - info.begin != bytes) {
      file_.fail(info.name,
                 fmt::format("has {} bytes where {} {} takes {}; fetch the file again",
                             info.end - info.begin, info.dtype, shape_text(shape), bytes));
    }
    return codes;
  }

  DType judge_codebooks(const TensorInfo& info) {
    import_.require_shape(info, {format_.num_codebooks, format_.codes(), 1, format_.vector_size});
    if (info.type != TensorType::f16 && info.type != TensorType::bf16) {
      file_.fail(info.name,
                 fmt::format("is {} where F16 or BF16 is wanted; convert it", info.dtype));
    }
    const DType dtype = info.type == TensorType::f16 ? DType::f16 : DType::bf16;
    if (dtype_ && dtype != *dtype_) {
      file_.fail(info.name,
                 fmt::format("is {} where other codebooks are not; convert it", info.dtype));
    }
    dtype_ = dtype;
    return dtype;
  }

  WeightShape add_layer(const TensorInfo& info) {
    const std::string module = info.name.substr(0, info.name.size() - std::strlen(kCodes));
    import_.require_no_expert(module, info);
    const AqlmCodes codes = judge_codes(info);
    const TensorInfo& books = import_.beside(module, kCodebooks, kCodes);
    const TensorInfo& scales = file_.floats(import_.beside(module, kScales, kCodes).name);
    const DType dtype = judge_codebooks(books);
    import_.require_shape(scales, {codes.rows, 1, 1, 1});
    const QuantizedTensor sizes = import_.readable_sizes(
        format_, dtype, codes.rows, info.shape[1] * format_.vector_size, info.name);
    for (const char* const suffix : {".weight", ".output_scales"}) {
      import_.require_none(module, suffix, info);
    }
    const std::uint64_t bytes = import_.add_layer(
        module, sizes, false, info.part,
        [&](std::string_view suffix) { return writer(suffix, codes, books, scales); });
    const std::uint64_t before =
        (info.end - info.begin) + (books.end - books.begin) + (scales.end - scales.begin);
    import_.plan().count({method_, short_name(format_), "linear layers", 1, before, bytes});
    return {module, sizes.rows, sizes.columns};
  }

  std::function<void(const TakeBytes&)> writer(std::string_view suffix, const AqlmCodes& codes,
                                               const TensorInfo& books, const TensorInfo& scales) {
    const TensorsPointer file = import_.pointer();
    if (suffix == kCodes) return [codes](const TakeBytes& take) { write_codes(codes, take); };
    if (suffix == kCodebooks) {
      return [file, &books](const TakeBytes& take) {
        file->read_finite(books.name);
        file->read_pieces(books, take);
      };
    }
    return [file, &scales](const TakeBytes& take) {
      const std::vector<float> values = file->read_finite(scales.name);
      take(0, std::as_bytes(std::span(values)));
    };
  }

  // Codebooks and scales of a layer, which its codes bring in; those of none are refused.
  bool is_of_layer(const TensorInfo& info) const {
    return import_.is_beside(info, {kCodebooks, kScales}, kCodes);
  }

  FolderImport import_;
  const SafetensorsFile& file_;
  const ModelConfig& config_;
  VqFormat format_;
  std::string method_;  // "aqlm 2x8"
  std::optional<DType> dtype_;
};

}  // namespace

ImportPlan plan_aqlm(const std::filesystem::path& folder, const ModelConfig& config) {
  return AqlmPlanner(folder, config).plan();
}

}  // namespace vqgen
