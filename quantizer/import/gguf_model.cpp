#include "quantizer/import/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "core/error.h"
#include "core/files/digest.h"
#include "quantizer/import/gguf_codes.h"
#include "quantizer/import/gguf_config.h"
#include "quantizer/model_folder.h"

namespace vqgen {
namespace {

constexpr std::uint64_t kShardBytes = 5'000'000'000;

// A tensor that the architecture has.
struct Expected {
  std::string name;  // in the GGUF file
  std::string becomes;
  std::vector<std::int64_t> shape;
  bool needed = true;
  std::int64_t heads = 0;  // whose rows are permuted; 0: none are
  // Matrices that are stored one behind the other. Each becomes a tensor, whose number takes the
  // place of the star in `becomes`.
  std::int64_t experts = 0;
};

std::string of_expert(std::string name, std::int64_t expert) {
  const std::size_t star = name.find('*');
  return star == std::string::npos ? name : name.replace(star, 1, fmt::format("{}", expert));
}

void round(const GgufRows& rows, std::span<const float> weights, DType dtype,
           std::span<std::uint16_t> elements) {
  const std::uint16_t endless = dtype == DType::f16 ? 0x7c00 : 0x7f80;
  bool finite = true;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    elements[i] = element_from_float(dtype, weights[i]);
    finite = finite && (elements[i] & endless) != endless;
  }
  if (!finite) rows.fail_beyond(dtype);
}

// Decodes rows of a tensor to 16-bit elements; [rows][columns].
void write_dense(const GgufRows& rows, DType dtype, const TakeBytes& take) {
  const GgufType& type = *rows.tensor().type;
  const auto columns = static_cast<std::size_t>(rows.columns());
  const auto convert = [&](std::span<const std::byte> blocks, std::span<std::byte> into) {
    std::vector<float> weights(columns);
    std::vector<std::uint16_t> elements(columns);
    type.decode(blocks.data(), columns / static_cast<std::size_t>(type.block), weights.data());
    round(rows, weights, dtype, elements);
    std::memcpy(into.data(), elements.data(), into.size());
  };
  rows.write(columns * 2, convert, take);
}

// Linear layers of a tensor that keep their codes.
struct Kept {
  std::string pattern;  // of their names
  VqFormat format;
};

class GgufPlanner {
 public:
  GgufPlanner(const std::filesystem::path& path, const std::filesystem::path& like,
              const GgufOptions& options)
      : file_(std::make_shared<const GgufFile>(path)), like_(like), all_dense_(options.dense) {
    dtype_ = options.dtype.value_or(has_bf16() ? DType::bf16 : DType::f16);
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
    note_mixed_experts();
    plan_.config = config_text();
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
        {"ffn_norm.weight", "post_attention_layernorm.weight", {c.hidden}}};
    const Expected of_mlp[] = {
        {"ffn_gate.weight", "mlp.gate_proj.weight", {c.intermediate, c.hidden}},
        {"ffn_up.weight", "mlp.up_proj.weight", {c.intermediate, c.hidden}},
        {"ffn_down.weight", "mlp.down_proj.weight", {c.hidden, c.intermediate}}};
    const Expected of_norms[] = {{"attn_q_norm.weight", "self_attn.q_norm.weight", {c.head_dim}},
                                 {"attn_k_norm.weight", "self_attn.k_norm.weight", {c.head_dim}}};
    const std::vector<Expected> of_mixture = c.experts > 0 ? mixture() : std::vector<Expected>();
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
      add_layer(c.experts > 0 ? std::span<const Expected>(of_mixture) : of_mlp);
    }
    return all;
  }

  // A layer has a router, and the matrices of all experts.
  std::vector<Expected> mixture() const {
    const GgufConfig& c = config_;
    const auto becomes = [&](int projection) {
      return fmt::format("{}.experts.*.{}.weight", c.architecture->mixture,
                         c.architecture->projections[static_cast<std::size_t>(projection)]);
    };
    const std::vector<std::int64_t> wide{c.experts, c.expert_intermediate, c.hidden};
    const std::vector<std::int64_t> narrow{c.experts, c.hidden, c.expert_intermediate};
    return {{"ffn_gate_inp.weight",
             fmt::format("{}.gate.weight", c.architecture->mixture),
             {c.experts, c.hidden}},
            {"ffn_gate_exps.weight", becomes(0), wide, true, 0, c.experts},
            {"ffn_up_exps.weight", becomes(1), wide, true, 0, c.experts},
            {"ffn_down_exps.weight", becomes(2), narrow, true, 0, c.experts}};
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

  // Does the tensor keep its codes? Says so if only its size keeps it from that.
  bool keeps_codes(const GgufTensor& tensor, const std::string& module) {
    const std::optional<VqFormat> format = gguf_codes_format(*tensor.type);
    if (all_dense_ || !format || !module.starts_with("model.layers.")) return false;
    const std::string reason =
        no_kernel_reads(*format, dtype_, *(tensor.shape.end() - 2), tensor.shape.back());
    if (reason.empty()) return true;
    plan_.notes.push_back(
        fmt::format("{} becomes dense: no kernel reads its codes: {}", tensor.name, reason));
    return false;
  }

  void add(const GgufTensor& tensor, const Expected& expected) {
    const GgufRows rows(file_, tensor, expected.heads);
    const std::string_view weight = ".weight";
    const bool matrix = tensor.shape.size() > 1;
    const std::string pattern =
        matrix ? expected.becomes.substr(0, expected.becomes.size() - weight.size()) : "";
    const bool codes = matrix && keeps_codes(tensor, pattern);
    if (codes) {
      kept_.push_back({pattern, gguf_codes_format(*tensor.type).value()});
    } else if (matrix) {
      dense_modules_.push_back(pattern);
    }
    const std::int64_t parts = std::max<std::int64_t>(expected.experts, 1);
    for (std::int64_t part = 0; part < parts; ++part) {
      const GgufRows own = rows.part(part, parts);
      if (codes) {
        add_codes(GgufCodes(own, dtype_), own, of_expert(pattern, part));
      } else {
        add_dense(own, of_expert(expected.becomes, part), matrix);
      }
    }
  }

  void add_dense(const GgufRows& rows, const std::string& name, bool matrix) {
    const TensorType type = tensor_type(dtype_);
    TensorInfo info{name, type, std::string(enum_name(type)), rows.tensor().shape};
    if (matrix) info.shape = {rows.rows(), rows.columns()};
    info.end = static_cast<std::uint64_t>(info.elements()) * 2;
    plan_.count({rows.tensor().type->name, info.dtype, "tensors", 1, rows.bytes(), info.end});
    add_tensor(std::move(info),
               [rows, dtype = dtype_](const TakeBytes& take) { write_dense(rows, dtype, take); });
  }

  void add_codes(const GgufCodes& codes, const GgufRows& rows, const std::string& module) {
    const QuantizedTensor& sizes = codes.sizes();
    std::uint64_t bytes = 0;
    for (TensorInfo& info : weight_infos(module, sizes)) {
      bytes += info.end;
      const std::string suffix = info.name.substr(module.size());
      add_tensor(std::move(info),
                 [codes, suffix](const TakeBytes& take) { codes.write(suffix, take); });
    }
    plan_.count({rows.tensor().type->name, short_name(sizes.format), "linear layers", 1,
                 rows.bytes(), bytes});
    shapes_.push_back({module, sizes.rows, sizes.columns});
  }

  // vLLM, which alone serves experts, takes all of a layer with codes or none.
  void note_mixed_experts() {
    const auto layer_of = [](const std::string& pattern) {
      return pattern.substr(0, pattern.find(".*."));
    };
    for (const std::string& dense : dense_modules_) {
      if (dense.find(".*.") == std::string::npos) continue;
      const bool mixed = std::ranges::any_of(
          kept_, [&](const Kept& kept) { return layer_of(kept.pattern) == layer_of(dense); });
      if (!mixed) continue;
      plan_.notes.push_back(
          fmt::format("{} are dense, and other experts of the layer keep codes: vLLM refuses the "
                      "folder; import with --dense",
                      dense));
      return;
    }
  }

  void add_tensor(TensorInfo info, std::function<void(const TakeBytes&)> write) {
    info.part = written_ / kShardBytes;
    written_ += info.end;
    plan_.tensors.push_back({std::move(info), std::move(write)});
  }

  std::string config_text() const {
    if (kept_.empty()) return config_.text;
    const auto count = [&](const Kept& kept) {
      return std::ranges::count(kept_, kept.format, &Kept::format);
    };
    QuantizationConfig quantization;
    quantization.dtype = dtype_;
    quantization.format = std::ranges::max_element(kept_, {}, count)->format;
    quantization.modules_to_not_convert = dense_modules_;
    for (const Kept& kept : kept_) {
      if (kept.format == quantization.format) continue;
      quantization.overrides.push_back({kept.pattern, kept.format});
    }
    quantization.weight_shapes = shape_patterns(shapes_);
    ModelConfig config;
    config.text = config_.text;
    return with_quantization(config, quantization);
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
                       {"--dtype", enum_name(dtype_)},
                       {"--dense", all_dense_}};
  }

  GgufPointer file_;
  std::filesystem::path like_;
  bool all_dense_;
  DType dtype_ = DType::f16;
  GgufConfig config_;
  std::vector<Kept> kept_;
  std::vector<WeightShape> shapes_;  // of the kept
  std::vector<std::string> dense_modules_;
  std::uint64_t written_ = 0;
  ImportPlan plan_;
};

}  // namespace

ImportPlan plan_gguf(const std::filesystem::path& path, const std::filesystem::path& like,
                     const GgufOptions& options) {
  return GgufPlanner(path, like, options).plan();
}

}  // namespace vqgen
