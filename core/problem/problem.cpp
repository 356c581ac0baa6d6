#include "core/problem/problem.h"

#include <fmt/format.h>
#include <vq/layout/hadamard.h>

#include <bit>

#include "core/ceil_div.h"
#include "core/error.h"
#include "core/problem/head_dims.h"

namespace vqgen {
namespace {

// Elements of a cache: far from overflow, and beyond any device.
constexpr double kMaxElements = 1e13;

class Validator {
 public:
  explicit Validator(std::string where) : where_(std::move(where)) {}

  void require(bool fine, const std::string& path, const std::string& message) const {
    if (fine) return;
    throw Error(ErrorKind::bad_input, fmt::format("{}: {}: {}", where_, path, message));
  }

  void no_parts(const VqFormat& format, const std::string& path, const char* what) const {
    require(!format.in_parts(), path + "/parts",
            fmt::format("parts are of keys and values alone; give the {} one format", what));
    require(format.channels.empty(), path + "/channels",
            "goes with a part of keys or values alone; remove it, or list parts");
  }

  // `row` is the name and length of the axis that vectors lie along.
  void format(const VqFormat& format, const std::string& path, const char* row,
              std::int64_t length) const {
    require(length % format.vector_size == 0, path + "/vector_size",
            fmt::format("{} does not divide {} {}", format.vector_size, row, length));
    if (const std::optional<FormatFault> fault = format_fault(format)) {
      require(false, path + "/" + fault->field, fault->message);
    }
    const std::string problem = layout_problem(format, format.layout);
    require(problem.empty(), path + "/layout", problem);
    const bool grouped = format.scope == Scope::channel_group;
    const bool tiled = format.scope == Scope::tile;
    require(grouped || format.token_scales || format.group_channels == 0, path + "/group_channels",
            "goes with scope channel_group or token_scales only; remove it or set the scope");
    require(tiled == (format.tile_rows > 0) && tiled == (format.tile_columns > 0),
            path + "/tile_rows", "tile_rows and tile_columns go with scope tile, both above 0");
    if (grouped) {
      require(format.channels_per_group() % format.vector_size == 0, path + "/group_channels",
              fmt::format("{} is not a multiple of vector_size {}", format.channels_per_group(),
                          format.vector_size));
    }
    if (tiled) {
      require(format.tile_columns % format.vector_size == 0, path + "/tile_columns",
              fmt::format("{} is not a multiple of vector_size {}", format.tile_columns,
                          format.vector_size));
    }
  }

  // Each channel of a head in exactly one part.
  void parts(const VqFormat& format, const std::string& path, int head_dim, const char* row) const {
    require(format.parts.size() >= 2 && std::ssize(format.parts) <= kMostRowParts, path,
            fmt::format("{} parts, where a row has 2 to {}; for one give its fields alone",
                        format.parts.size(), kMostRowParts));
    require(head_dim <= vq::kMostPartChannels, std::string("/shape/") + row,
            fmt::format("{} is more than the {} channels that rows in parts have", head_dim,
                        vq::kMostPartChannels));
    std::vector<bool> taken(static_cast<std::size_t>(head_dim), false);
    for (std::size_t i = 0; i < format.parts.size(); ++i) {
      const VqFormat& part = format.parts[i];
      const std::string at = fmt::format("{}/{}", path, i);
      require(!part.in_parts(), at + "/parts",
              "a part has none of its own; give its channels and the fields of one format");
      require(!part.channels.empty(), at + "/channels",
              "is missing: the channels of a head that the part has, as [0, 1, ..]");
      for (const int channel : part.channels) {
        require(channel < head_dim, at + "/channels",
                fmt::format("{} is beyond the {} channels of a head; give parts of {}{}", channel,
                            head_dim, head_dim, klt_remedy(format, path, head_dim)));
        const auto number = static_cast<std::size_t>(channel);
        require(!taken[number], at + "/channels",
                fmt::format("{} is there twice; give each channel to one part, once", channel));
        taken[number] = true;
      }
      part_format(part, at);
      require(part.layout == format.layout && part.layout.words == 1, at + "/layout",
              "a row has all parts, so they have one layout, of runs of 1 word");
      require(part.entry_type == format.entry_type && part.stage_scales == format.stage_scales, at,
              "parts have one entry_type, and all of them stage_scales or none; set them alike");
    }
    for (int channel = 0; channel < head_dim; ++channel) {
      require(taken[static_cast<std::size_t>(channel)], path,
              fmt::format("channel {} is in no part; add it to the channels of one{}", channel,
                          klt_remedy(format, path, head_dim)));
    }
  }

  void part_format(const VqFormat& part, const std::string& path) const {
    const auto channels = static_cast<int>(part.channels.size());
    require(part.decoder == Decoder::table, path,
            "a part has codebooks of entries, and no scalar codes or lattice");
    require(
        !part.token_scales && part.group_tokens == 0 && !part.common_scale, path,
        "parts have no scales of tokens or common to stages; set token_scales, group_tokens and "
        "common_scale to none");
    require(!part.smooth && !part.hadamard, path,
            "the channels of a part are quantized as they are; set smooth and hadamard to false");
    require(!has_basis(part), path,
            "center and klt are of all parts together; set them beside parts");
    VqFormat alone = part;
    alone.channels.clear();
    cache_format(alone, path, channels, "the part's channels");
  }

  void cache_format(const VqFormat& format, const std::string& path, int head_dim,
                    const char* row) const {
    no_parts(format, path, "part");
    this->format(format, path, row, head_dim);
    require(format.decoder != Decoder::signs, path + "/decoder",
            "signs is for weights only; use table or e8p");
    require(format.group_inputs == 0, path + "/group_inputs",
            "is of weights alone; remove it, or take token_scales or group_tokens");
    require(format.scope != Scope::tile, path + "/scope",
            "a tile of weights means nothing in a KV cache; use tensor, head or channel_group");
    if (format.scope == Scope::channel_group) {
      require(head_dim % format.channels_per_group() == 0, path + "/group_channels",
              fmt::format("{} does not divide {} {}", format.channels_per_group(), row, head_dim));
    }
    const int together = format.group_tokens;
    require(together == 0 || (together >= 16 && head_dim % together == 0 &&
                              std::has_single_bit(static_cast<unsigned>(together))),
            path + "/group_tokens",
            fmt::format("{} is no power of two from 16 on that divides {} {}, among whose "
                        "rows the scales of a group are shared out",
                        together, row, head_dim));
    if (format.token_scales && format.group_channels > 0) {
      require(format.group_channels >= 8 && head_dim % format.group_channels == 0 &&
                  (format.group_channels == head_dim ||
                   std::has_single_bit(static_cast<unsigned>(format.group_channels))),
              path + "/group_channels",
              fmt::format("{} is no power of two from 8 on that divides {} {}, as scales of "
                          "tokens take; 0 means all channels",
                          format.group_channels, row, head_dim));
    }
    require(!format.output_scales, path + "/output_scales",
            "is for weights only; remove it, or "
            "take a format of caches (vqgen list formats)");
    require(!format.hadamard || vq::paley_order(head_dim) > 0, path,
            fmt::format("hadamard takes a head_dim that is a power of two, or one times 12, 20 or "
                        "28, not {}; set it to false, as in {{\"preset\": NAME, \"hadamard\": "
                        "false}}",
                        head_dim));
  }

  void operand(const VqFormat& format, const std::string& path, int head_dim,
               const char* row) const {
    require(!format.klt || (!format.smooth && !format.hadamard), path + "/klt",
            "a rotation of its own goes without smooth and hadamard; set both to false");
    if (format.in_parts()) {
      parts(format, path + "/parts", head_dim, row);
    } else {
      cache_format(format, path, head_dim, row);
    }
  }

  // The formats of keys and values, and pages.
  template <class Op>
  void cache(const Op& op) const {
    const int page = op.shape.page_tokens;
    require(page == 0 || (page >= 16 && std::has_single_bit(static_cast<unsigned>(page))),
            "/shape/page_tokens",
            fmt::format("{} is none of 16, 32, 64, 128 and 256, nor 0 for a cache without pages",
                        page));
    operand(op.keys, "/keys", op.shape.head_dim, "head_dim");
    operand(op.values, "/values", op.shape.value_dim(), value_dim_field(op.shape));
    for (const VqFormat* format : {&op.keys, &op.values}) {
      const int rows = format->layout.rows;
      require(page % rows == 0, "/shape/page_tokens",
              fmt::format("{} are no whole groups of {} rows, as a layout has them; use {} or more",
                          page, rows, rows));
    }
    group(op, op.keys.group_tokens, "/keys/group_tokens");
    group(op, op.values.group_tokens, "/values/group_tokens");
    flush_block(op);
    raw_pages(op);
    require(!op.values.smooth && !op.values.hadamard, "/values",
            "smooth and hadamard transform keys only (VecInfer eq. 3-8); remove them here");
  }

  // Tokens wait in the window's ring until as many are there as are encoded together, a `what`,
  // beside new query tokens.
  template <class Op>
  void waiting(const Op& op, int tokens, const std::string& path, const char* what) const {
    int least = tokens;
    if constexpr (requires { op.shape.query_tokens; }) {
      if (!op.shape.tree_mask)
        least += op.shape.query_tokens - 1;  // drafts of a tree are not there
    }
    require(op.shape.recent_tokens >= least, "/shape/recent_tokens",
            fmt::format("{} is too few for {} {}, whose tokens stay raw until the {} is full; "
                        "set it to {} at least",
                        op.shape.recent_tokens, path, tokens, what, least));
  }

  // A page holds whole groups.
  template <class Op>
  void group(const Op& op, int tokens, const std::string& path) const {
    if (tokens == 0) return;
    waiting(op, tokens, path, "group");
    require(op.shape.page_tokens % tokens == 0, "/shape/page_tokens",
            fmt::format("{} are no whole groups of {} {}; use {} or more", op.shape.page_tokens,
                        path, tokens, tokens));
  }

  template <class Op>
  void flush_block(const Op& op) const {
    const int tokens = op.shape.flush_block;
    if (tokens == 1) return;
    const char* grouped = op.keys.group_tokens > 0     ? "/keys/group_tokens"
                          : op.values.group_tokens > 0 ? "/values/group_tokens"
                                                       : nullptr;
    require(
        grouped == nullptr, "/shape/flush_block",
        fmt::format("{} goes with formats whose tokens are encoded one by one, and {} is not 0; "
                    "remove one of the two",
                    tokens, grouped == nullptr ? "" : grouped));
    waiting(op, tokens, "/shape/flush_block", "batch");
  }

  // Pages of raw rows hold tokens whose codes are there too.
  template <class Op>
  void raw_pages(const Op& op) const {
    const auto& shape = op.shape;
    const int page = shape.raw_page_tokens;
    if (page == 0) return;
    require(page % 8 == 0, "/shape/raw_page_tokens", fmt::format("{} is no multiple of 8", page));
    require(shape.recent_tokens > 0, "/shape/raw_page_tokens",
            fmt::format("{} is given, and recent_tokens is 0; set the newest tokens that are read "
                        "raw, or leave it out",
                        page));
    require(shape.sinks == 0, "/shape/sinks",
            fmt::format("{} have slots, and raw_page_tokens has none; remove one of the two",
                        shape.sinks));
    require(shape.flush_block == 1, "/shape/flush_block",
            fmt::format("{} tokens wait in slots until they are encoded, and raw_page_tokens has "
                        "none; remove one of the two",
                        shape.flush_block));
    require(least_window(op.keys, op.values) == 0, "/shape/raw_page_tokens",
            "goes with formats whose tokens are encoded one by one, and group_tokens is not 0; "
            "remove one of the two");
  }

  void size(const char* what, double elements) const {
    require(elements <= kMaxElements, "/shape",
            fmt::format("{} of {:.3g} elements is beyond any device; at most {:.0g}", what,
                        elements, kMaxElements));
  }

 private:
  std::string where_;
};

void validate(const AttentionDecode& op, const Validator& validator) {
  const AttentionShape& shape = op.shape;
  if (const auto fault = mask_fault(shape)) {
    validator.require(false, std::string("/shape/") + fault->field, fault->message);
  }
  validator.require(shape.logit_softcap == 0 || !op.keys.center, "/shape/logit_softcap",
                    "bounds whole scores, and centered keys leave out what their mean adds; take "
                    "keys without center, such as vecinfer-d4b8i8");
  validator.require(!shape.shared_prefix || least_window(op.keys, op.values) == 0,
                    "/shape/shared_prefix", "goes without group_tokens in formats; leave it out");
  validator.require(
      shape.query_heads % shape.kv_heads == 0, "/shape/query_heads",
      fmt::format("{} is not a multiple of kv_heads {}", shape.query_heads, shape.kv_heads));
  validator.cache(op);
  validator.size("a cache", 1.0 * shape.batch * shape.kv_heads * longest_row(shape) *
                                static_cast<double>(shape.tokens));
}

void validate(const KvAppend& op, const Validator& validator) {
  const AppendShape& shape = op.shape;
  validator.cache(op);
  const double token = 1.0 * shape.batch * shape.kv_heads * longest_row(shape);
  validator.size("a cache", token * static_cast<double>(shape.tokens));
  validator.size("new tokens", token * shape.new_tokens);
}

void validate(const KvDequantize& op, const Validator& validator) {
  const DequantizeShape& shape = op.shape;
  validator.cache(op);
  validator.size("a cache", 1.0 * shape.batch * shape.kv_heads * longest_row(shape) *
                                static_cast<double>(shape.tokens));
}

void validate(const AttentionMerge& op, const Validator& validator) {
  const MergeShape& shape = op.shape;
  validator.size("a result", static_cast<double>(shape.rows) * shape.heads * shape.head_dim);
}

void validate(const ScalarMatrix& op, const Validator& validator) {
  validator.require(!op.decodes || op.shape.scales == Scales::given, "/shape/scales",
                    "int8_dequantize takes the scales that int8_quantize wrote; use given");
  validator.size("a matrix", op.elements());
}

template <class Op>
void validate_rows(const Op& op, const Validator& validator) {
  if constexpr (requires { Op::kMostRows; }) {
    validator.require(op.shape.rows >= Op::kLeastRows && op.shape.rows <= Op::kMostRows, "/shape/m",
                      fmt::format("{} takes {} to {} rows, not {}; use {}", Op::kOp, Op::kLeastRows,
                                  Op::kMostRows, op.shape.rows,
                                  op.shape.rows < Gemm::kLeastRows ? Gemv::kOp : Gemm::kOp));
  }
}

// The format of weights of so many columns.
void validate_weights(const VqFormat& format, std::int64_t in_features,
                      const Validator& validator) {
  validator.no_parts(format, "/weights", "weights");
  validator.format(format, "/weights", "in_features", in_features);
  validator.require(
      !format.is_scalar(), "/weights/decoder",
      fmt::format("{} is for KV caches only; use table, e8p or signs", enum_name(format.decoder)));
  if (const auto fault = groups_fault(format, in_features)) {
    validator.require(false, std::string("/weights/") + fault->field, fault->message);
  }
  validator.require(format.scope != Scope::head, "/weights/scope",
                    "weights have no heads; use tensor, channel_group or tile");
  validator.require(!format.smooth && !format.hadamard, "/weights",
                    "smooth and hadamard transform keys only; remove them here");
  validator.require(!has_basis(format), "/weights",
                    "center and klt are of keys and values; remove them here");
}

void validate(const Linear& op, const Validator& validator) {
  validate_weights(op.weights, op.shape.in_features, validator);
  validator.size(op.shape.grouped() ? "all experts' matrices together" : "a matrix",
                 static_cast<double>(op.shape.matrices()) *
                     static_cast<double>(op.shape.out_features) *
                     static_cast<double>(op.shape.in_features));
  if (const auto fault = linear_fault(op.shape)) {
    validator.require(false, std::string("/shape/") + fault->field, fault->message);
  }
}

void validate(const WeightDequantize& op, const Validator& validator) {
  const WeightRowsShape& shape = op.shape;
  validate_weights(op.weights, shape.in_features, validator);
  validator.require(shape.rows <= shape.out_features, "/shape/rows",
                    fmt::format("{} are more than the {} rows of the matrix; lower them",
                                shape.rows, shape.out_features));
  validator.size("a matrix",
                 static_cast<double>(shape.out_features) * static_cast<double>(shape.in_features));
}

}  // namespace

void validate(const Problem& problem, const std::string& where) {
  std::visit(
      [&](const auto& op) {
        validate_rows(op, Validator(where));
        validate(op, Validator(where));
      },
      problem);
}

const Linear* as_linear(const Problem& problem) {
  if (const auto* gemv = std::get_if<Gemv>(&problem)) return gemv;
  return std::get_if<Gemm>(&problem);
}

const ScalarMatrix* as_scalar(const Problem& problem) {
  if (const auto* quantize = std::get_if<Int8Quantize>(&problem)) return quantize;
  return std::get_if<Int8Dequantize>(&problem);
}

std::string op_name(const Problem& problem) {
  return std::visit([](const auto& op) { return std::string(op.kOp); }, problem);
}

}  // namespace vqgen
