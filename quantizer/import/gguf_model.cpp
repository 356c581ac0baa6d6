#include "quantizer/import/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <thread>

#include "core/error.h"
#include "core/files/digest.h"
#include "core/parallel.h"
#include "quantizer/import/gguf_config.h"
#include "quantizer/import/gguf_file.h"

namespace vqgen {
namespace {

using GgufPointer = std::shared_ptr<const GgufFile>;

constexpr std::uint64_t kShardBytes = 5'000'000'000;
constexpr std::int64_t kWeightsAtATime = 1 << 22;  // weights that are decoded at a time
constexpr int kMostThreads = 8;

// A tensor that the architecture has.
struct Expected {
  std::string name;  // in the GGUF file
  std::string becomes;
  std::vector<std::int64_t> shape;
  bool needed = true;
  std::int64_t heads = 0;  // whose rows are permuted; 0: none are
};

// Decodes rows of a tensor to 16-bit elements; [rows][columns], with the rows of heads in the order
// of Hugging Face: those of RoPE's first halves before those of its second.
class DenseWriter {
 public:
  DenseWriter(GgufPointer file, const GgufTensor& tensor, DType dtype, std::int64_t heads)
      : file_(std::move(file)), tensor_(tensor), dtype_(dtype) {
    columns_ = tensor.shape.back();
    rows_ = tensor.rows();
    if (heads == 0) return;
    if (tensor.shape.size() == 1) std::swap(rows_, columns_);  // a bias, a number per row
    head_rows_ = rows_ / heads;
  }

  void write(const TakeBytes& take) const {
    const std::int64_t together =
        head_rows_ * std::max<std::int64_t>(kWeightsAtATime / (columns_ * head_rows_), 1);
    std::vector<std::byte> bytes;
    std::vector<std::uint16_t> elements;
    const auto row_bytes = tensor_.bytes / static_cast<std::uint64_t>(rows_);
    for (std::int64_t first = 0; first < rows_; first += together) {
      const std::int64_t rows = std::min(together, rows_ - first);
      bytes.resize(static_cast<std::size_t>(rows) * row_bytes);
      elements.resize(static_cast<std::size_t>(rows * columns_));
      file_->read_bytes(tensor_, static_cast<std::uint64_t>(first) * row_bytes, bytes);
      decode(bytes, rows, elements);
      take(static_cast<std::uint64_t>(first * columns_) * 2, std::as_bytes(std::span(elements)));
    }
  }

 private:
  void decode(std::span<const std::byte> bytes, std::int64_t rows,
              std::span<std::uint16_t> elements) const {
    const int threads =
        std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMostThreads);
    const auto columns = static_cast<std::size_t>(columns_);
    const std::size_t row_bytes = bytes.size() / static_cast<std::size_t>(rows);
    const auto parts = static_cast<std::size_t>(std::min<std::int64_t>(threads, rows));
    in_parallel(parts, threads, [&](std::size_t part) {
      const auto share = [&](std::size_t number) {
        return rows * static_cast<std::int64_t>(number) / static_cast<std::int64_t>(parts);
      };
      std::vector<float> weights(columns);
      for (std::int64_t row = share(part); row < share(part + 1); ++row) {
        const std::size_t blocks = columns / static_cast<std::size_t>(tensor_.type->block);
        tensor_.type->decode(bytes.data() + static_cast<std::size_t>(row) * row_bytes, blocks,
                             weights.data());
        round(weights, elements.subspan(static_cast<std::size_t>(place(row)) * columns, columns));
      }
    });
  }

  // Where a row goes: of a head, pairs (0, 1), (2, 3), .. become 0, 2, .., 1, 3, ..
  std::int64_t place(std::int64_t row) const {
    if (head_rows_ == 1) return row;
    const std::int64_t in_head = row % head_rows_;
    return row - in_head + in_head % 2 * (head_rows_ / 2) + in_head / 2;
  }

  void round(std::span<const float> weights, std::span<std::uint16_t> elements) const {
    const std::uint16_t endless = dtype_ == DType::f16 ? 0x7c00 : 0x7f80;
    bool finite = true;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      elements[i] = element_from_float(dtype_, weights[i]);
      finite = finite && (elements[i] & endless) != endless;
    }
    if (finite) return;
    file_->fail(tensor_.name,
                dtype_ == DType::f16
                    ? "holds a number that f16 does not hold; give --dtype bf16, or fetch the file "
                      "again"
                    : "holds a number that bf16 does not hold; fetch the file again");
  }

  GgufPointer file_;
  const GgufTensor& tensor_;
  DType dtype_;
  std::int64_t rows_ = 0, columns_ = 0;
  std::int64_t head_rows_ = 1;  // rows that are permuted among each other
};

class GgufPlanner {
 public:
  GgufPlanner(const std::filesystem::path& path, const std::filesystem::path& like,
              std::optional<DType> dtype)
      : file_(std::make_shared<const GgufFile>(path)), like_(like) {
    dtype_ = dtype.value_or(has_bf16() ? DType::bf16 : DType::f16);
    config_ = read_gguf_config(*file_, like, dtype_);
  }

  ImportPlan plan() {
    std::set<std::string> taken;
    std::vector<std::pair<const GgufTensor*, Expected>> order;
    for (Expected& each : expected()) {
      const GgufTensor* const tensor = file_->find(each.name);
      if (tensor == nullptr && !each.needed) continue;
      if (tensor == nullptr) file_->fail(each.name, "is not there; fetch the file again");
      if (tensor->shape != each.shape) {
        file_->fail(each.name, fmt::format("has shape {} where the metadata asks for {}; fetch the "
                                           "file again",
                                           shape_text(tensor->shape), shape_text(each.shape)));
      }
      if (each.heads > 0 && each.shape.size() == 1 && tensor->type->block > 1) {
        file_->fail(each.name, fmt::format("is {}, and biases are F32, F16 or BF16; fetch the file "
                                           "again",
                                           tensor->type->name));
      }
      taken.insert(each.name);
      order.emplace_back(tensor, std::move(each));
    }
    refuse_others(taken);
    std::ranges::sort(
        order, {}, [](const auto& each) { return std::pair(each.first->part, each.first->begin); });
    for (const auto& [tensor, each] : order) add(*tensor, each);
    plan_.config = config_.text;
    add_files();
    add_arguments();
    return std::move(plan_);
  }

 private:
  bool has_bf16() const {
    return std::ranges::any_of(file_->tensors(), [](const auto& each) {
      return std::string_view(each.second.type->name) == "BF16";
    });
  }

  std::vector<Expected> expected() const {
    const GgufConfig& c = config_;
    const std::int64_t queries = c.heads * c.head_dim, keys = c.kv_heads * c.head_dim;
    const std::int64_t q_heads = c.architecture->permuted ? c.heads : 0;
    const std::int64_t k_heads = c.architecture->permuted ? c.kv_heads : 0;
    const bool biases = c.architecture->biases, norms = c.architecture->head_norms;
    std::vector<Expected> all{
        {"token_embd.weight", "model.embed_tokens.weight", {c.vocabulary, c.hidden}},
        {"output_norm.weight", "model.norm.weight", {c.hidden}},
        {"output.weight", "lm_head.weight", {c.vocabulary, c.hidden}, !c.tied}};
    const Expected of_layer[] = {
        {"attn_norm.weight", "input_layernorm.weight", {c.hidden}},
        {"attn_q.weight", "self_attn.q_proj.weight", {queries, c.hidden}, true, q_heads},
        {"attn_k.weight", "self_attn.k_proj.weight", {keys, c.hidden}, true, k_heads},
        {"attn_v.weight", "self_attn.v_proj.weight", {keys, c.hidden}},
        {"attn_output.weight", "self_attn.o_proj.weight", {c.hidden, queries}},
        {"attn_q.bias", "self_attn.q_proj.bias", {queries}, biases, q_heads},
        {"attn_k.bias", "self_attn.k_proj.bias", {keys}, biases, k_heads},
        {"attn_v.bias", "self_attn.v_proj.bias", {keys}, biases},
        {"attn_output.bias", "self_attn.o_proj.bias", {c.hidden}, false},
        {"ffn_norm.weight", "post_attention_layernorm.weight", {c.hidden}},
        {"ffn_gate.weight", "mlp.gate_proj.weight", {c.intermediate, c.hidden}},
        {"ffn_up.weight", "mlp.up_proj.weight", {c.intermediate, c.hidden}},
        {"ffn_down.weight", "mlp.down_proj.weight", {c.hidden, c.intermediate}}};
    const Expected of_norms[] = {{"attn_q_norm.weight", "self_attn.q_norm.weight", {c.head_dim}},
                                 {"attn_k_norm.weight", "self_attn.k_norm.weight", {c.head_dim}}};
    for (std::int64_t layer = 0; layer < c.layers; ++layer) {
      const auto add_layer = [&](std::span<const Expected> tensors) {
        for (Expected each : tensors) {
          each.name = fmt::format("blk.{}.{}", layer, each.name);
          each.becomes = fmt::format("model.layers.{}.{}", layer, each.becomes);
          all.push_back(std::move(each));
        }
      };
      add_layer(of_layer);
      if (norms) add_layer(of_norms);
    }
    return all;
  }

  void refuse_others(const std::set<std::string>& taken) {
    for (const auto& [name, tensor] : file_->tensors()) {
      if (taken.contains(name)) continue;
      if (name == "rope_freqs.weight") {
        plan_.notes.push_back(
            fmt::format("{} is not carried over: config.json of --like scales RoPE", name));
        continue;
      }
      const bool experts = name.find("_exps.") != std::string::npos ||
                           name.find("ffn_gate_inp") != std::string::npos;
      file_->fail(name,
                  fmt::format("is {}, which is not imported; quantize the original model with "
                              "vqgen quantize",
                              experts ? "of a mixture of experts"
                                      : fmt::format("no tensor of {} that vqgen knows",
                                                    config_.architecture->name)));
    }
  }

  void add(const GgufTensor& tensor, const Expected& expected) {
    const TensorType type = tensor_type(dtype_);
    TensorInfo info{expected.becomes, type, std::string(enum_name(type)), tensor.shape};
    info.end = static_cast<std::uint64_t>(info.elements()) * 2;
    info.part = written_ / kShardBytes;
    written_ += info.end;
    plan_.count({tensor.type->name, info.dtype, "tensors", 1, tensor.bytes, info.end});
    const DenseWriter writer(file_, tensor, dtype_, expected.heads);
    plan_.tensors.push_back(
        {std::move(info), [writer](const TakeBytes& take) { writer.write(take); }});
  }

  void add_files() {
    if (like_.empty()) {
      plan_.notes.push_back(
          "the tokenizer is not carried over: copy its files from the unquantized model, or give "
          "--like HF_DIR, a folder with them and config.json");
      return;
    }
    plan_.files_from = like_;
    plan_.files = files_beside(like_);
    plan_.files.left_out.clear();  // other weights than those that are imported
  }

  void add_arguments() {
    Json files = Json::array();
    for (const auto& path : file_->paths()) files.push_back(identity_of(path));
    plan_.arguments = {{"SOURCE", std::move(files)},
                       {"config.json", sha256_hex(std::as_bytes(std::span(plan_.config)))},
                       {"--dtype", enum_name(dtype_)}};
  }

  GgufPointer file_;
  std::filesystem::path like_;
  DType dtype_ = DType::f16;
  GgufConfig config_;
  std::uint64_t written_ = 0;
  ImportPlan plan_;
};

}  // namespace

ImportPlan plan_gguf(const std::filesystem::path& path, const std::filesystem::path& like,
                     std::optional<DType> dtype) {
  return GgufPlanner(path, like, dtype).plan();
}

}  // namespace vqgen
