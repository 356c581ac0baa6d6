#include "tests/fuzz/draw.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "core/problem/problem.h"
#include "core/profiles.h"

namespace vqgen::test {
namespace {

constexpr std::array<std::int64_t, 10> kModelSizes{768,   2048,  4096,  5120,  8192,
                                                   11008, 14328, 14336, 28672, 128256};

std::int64_t multiple(std::int64_t size, std::int64_t of) {
  return std::max<std::int64_t>(1, size / of) * of;
}

// Halves `size` a random number of times, as long as `of` divides it.
std::int64_t halved(Draw& draw, std::int64_t size, std::int64_t of) {
  while (size % (2 * of) == 0 && !draw.one_in(3)) size /= 2;
  return size;
}

struct Limits {
  std::int64_t batch, heads, group, tokens, new_tokens, rows, features, experts;
  int table_bits;  // of codes whose tables each channel group or tile has
};
constexpr Limits kAny{65535, 65535, 65535, 2147482623, 65536, 256, 1 << 24, 128, 16};
constexpr Limits kSmall{3, 3, 9, 320, 20, 64, 640, 9, 8};

void add_layout(Draw& draw, Json& format) {
  if (!draw.one_in(4)) return;
  const auto side = [&] {
    return draw.of(draw.wrong() ? std::array{0, 3, 4} : std::array{1, 2, 4});
  };
  const int rows = side();
  format["layout"] = {{"rows", rows}, {"words", rows == 4 && !draw.wrong() ? 1 : side()}};
}

Json draw_format(Draw& draw, const Limits& limits) {
  Json format;
  const bool lattice = draw.one_in(10);
  const std::array<std::int64_t, 3> vectors{2, 4, 8};
  format["vector_size"] = draw.wrong() ? draw.size(300) : lattice ? 8 : draw.of(vectors);
  format["index_bits"] = draw.wrong()     ? draw.field(2, 16)
                         : lattice        ? 16
                         : draw.one_in(3) ? draw.of({8, 16})
                                          : 2 + static_cast<int>(draw.below(15));
  if (lattice) format["decoder"] = "e8p";
  if (!draw.one_in(3)) {
    format["num_codebooks"] =
        draw.wrong() ? draw.field(1, 64) : 1 + static_cast<int>(draw.below(4));
  }
  if (draw.one_in(4)) format["stage_scales"] = true;
  const bool eligible = !lattice && format["vector_size"] != 2;
  if (eligible ? draw.one_in(4) : draw.wrong()) {
    format["entry_type"] = "int8";
    format["stage_scales"] = !draw.wrong();
  }
  add_layout(draw, format);
  if (limits.table_bits < 16 && format["num_codebooks"] == 4 && format["index_bits"] > 12 &&
      !lattice) {
    format["num_codebooks"] = 2;
  }
  return format;
}

bool few_entries(const Json& format, const Limits& limits) {
  return format.contains("decoder") || format["index_bits"] <= limits.table_bits;
}

Json draw_part(Draw& draw, const std::vector<int>& channels, const Limits& limits) {
  Json part;
  std::vector<int> sizes;
  for (const int size : kVectorSizes) {
    if (channels.size() % static_cast<std::size_t>(size) == 0 || draw.wrong())
      sizes.push_back(size);
  }
  const bool small = limits.table_bits < kAny.table_bits;
  part["channels"] = channels;
  part["vector_size"] = sizes.empty() ? 2 : draw.of(sizes);
  part["index_bits"] =
      draw.wrong() ? draw.field(2, 16) : 2 + static_cast<int>(draw.below(small ? 8 : 15));
  part["num_codebooks"] =
      draw.wrong() ? draw.field(1, 64) : 1 + static_cast<int>(draw.below(small ? 5 : 36));
  if (draw.one_in(2)) part["scope"] = "head";
  if (draw.wrong()) part[draw.of({"smooth", "hadamard", "stage_scales"})] = true;
  return part;
}

// Keys whose channels are divided among 2 to 4 parts, by octets.
Json draw_parts(Draw& draw, std::int64_t head_dim, const Limits& limits) {
  std::vector<int> channels(static_cast<std::size_t>(head_dim));
  for (std::size_t i = 0; i < channels.size(); ++i) channels[i] = static_cast<int>(i);
  for (std::size_t i = channels.size(); i > 1 && !draw.one_in(999); --i) {
    std::swap(channels[i - 1], channels[draw.below(i)]);
  }
  if (draw.wrong()) channels[0] = channels.back();
  Json keys;
  const std::size_t count = draw.wrong() ? draw.below(7) : 2 + draw.below(3);
  auto from = channels.begin();
  keys["parts"] = Json::array();
  for (std::size_t left = count; left > 0; --left) {
    const std::size_t octets = static_cast<std::size_t>(channels.end() - from) / 8;
    const std::size_t taken = octets < left ? 0 : 1 + draw.below(octets - left + 1);
    const auto end = left == 1 ? channels.end() : from + static_cast<std::ptrdiff_t>(8 * taken);
    keys["parts"].push_back(draw_part(draw, {from, end}, limits));
    from = end;
  }
  if (draw.wrong()) keys["vector_size"] = 8;
  return keys;
}

// Affine or scalar codes whose scales serve groups of tokens, or tokens and groups of channels;
// mostly with zeros.
Json number_format(Draw& draw, std::int64_t head_dim) {
  Json format;
  const bool floats = draw.one_in(6);
  format["decoder"] = floats ? "e4m3" : draw.one_in(3) ? "scalar" : "affine";
  format["vector_size"] = floats != draw.wrong() ? 2 : draw.of({2, 4});
  format["index_bits"] = 16;
  const auto part = [&](std::int64_t least) {
    return draw.wrong() ? draw.size(200) : halved(draw, head_dim, least);
  };
  if (draw.one_in(2)) {
    const std::int64_t tokens = part(16);
    format["group_tokens"] = draw.wrong() ? tokens : std::min<std::int64_t>(tokens, 128);
  } else {
    format["token_scales"] = true;
    if (!draw.one_in(3)) format["group_channels"] = part(8);
  }
  add_layout(draw, format);
  return format;
}

// A page holds whole groups. Tokens stay raw until their flush block or group is full; a config has
// only one of the two.
void hold_groups(Draw& draw, Json& config) {
  Json& shape = config["shape"];
  const std::int64_t queries = shape.value("query_tokens", std::int64_t{1});
  const std::int64_t room = shape.value("recent_tokens", std::int64_t{0}) - queries + 1;
  if (room > 0 && draw.one_in(2))
    shape["flush_block"] = draw.field(1, static_cast<double>(draw.wrong() ? 4096 : room));
  for (const char* operand : {"keys", "values"}) {
    const Json& format = config[operand];
    const std::int64_t tokens = format.is_object() ? format.value("group_tokens", std::int64_t{0})
                                : format == "int4-kivi-keys" ? 32
                                                             : 0;
    if (tokens == 0 || draw.wrong()) continue;
    const std::int64_t least = tokens + queries - 1;
    shape.erase("flush_block");
    shape["recent_tokens"] = std::max(shape.value("recent_tokens", std::int64_t{0}), least);
    if (shape.value("page_tokens", std::int64_t{0}) > 0) {
      shape["page_tokens"] = std::max(shape.value("page_tokens", std::int64_t{0}), tokens);
    }
  }
}

Json cache_format(Draw& draw, std::int64_t head_dim, bool keys, const Limits& limits) {
  if (keys ? draw.one_in(6) : draw.wrong()) return draw_parts(draw, head_dim, limits);
  if (draw.one_in(4) && limits.table_bits == kAny.table_bits) return draw.of(format_names());
  if (draw.one_in(4)) return number_format(draw, head_dim);
  Json format = draw_format(draw, limits);
  switch (draw.below(4)) {
    case 0:
      format["scope"] = "head";
      break;
    case 1: {
      format["scope"] = "channel_group";
      const std::int64_t whole = few_entries(format, limits) ? head_dim : head_dim / 2;
      format["group_channels"] =
          few_entries(format, limits)
              ? halved(draw, whole, std::max<std::int64_t>(1, format["vector_size"]))
              : whole;
      break;
    }
    default:
      if (draw.wrong()) format["scope"] = "tile";
      break;
  }
  if (keys ? draw.one_in(4) : draw.wrong()) format["smooth"] = true;
  if (keys ? draw.one_in(4) : draw.wrong()) format["hadamard"] = true;
  return format;
}

Json cache_problem(Draw& draw, const std::string& op, const Limits& limits) {
  Json config;
  Json& shape = config["shape"];
  config["op"] = op;
  const auto head_dim =
      draw.wrong() ? draw.size(1024) : std::int64_t{draw.of({64, 96, 128, 128, 128, 256})};
  // Most draws have sizes as servers do.
  const auto usual = [&](std::int64_t size, std::int64_t most) {
    return draw.size(draw.extremes() || draw.one_in(4) ? most : std::min(size, most));
  };
  const std::int64_t kv_heads = usual(64, limits.heads);
  shape["batch"] = usual(128, limits.batch);
  shape["kv_heads"] = kv_heads;
  shape["head_dim"] = head_dim;
  shape["tokens"] = usual(1 << 18, limits.tokens);
  if (op == KvAppend::kOp) {
    shape["new_tokens"] = usual(64, limits.new_tokens);
  } else if (op == AttentionDecode::kOp) {
    const std::int64_t heads = kv_heads * usual(8, limits.group);
    shape["query_heads"] =
        draw.wrong()
            ? heads + 1
            : std::max(kv_heads, std::min<std::int64_t>(heads, 65535 / kv_heads * kv_heads));
    if (draw.one_in(4)) shape["query_tokens"] = draw.field(1, 16);
    if (draw.one_in(8)) {
      shape["query_tokens"] = draw.field(2, 64);
      shape[draw.one_in(2) ? "tree_mask" : "shared_prefix"] = true;
    }
    const bool in_tree =
        (shape.contains("tree_mask") || shape.contains("shared_prefix")) && !draw.wrong();
    if (draw.one_in(4) && !in_tree) shape["batch_invariant"] = true;
  }
  if (draw.one_in(3)) {
    shape["page_tokens"] = draw.wrong() ? draw.field(0, 256) : draw.of({0, 16, 32, 64, 128, 256});
  }
  if (draw.one_in(3)) shape["recent_tokens"] = draw.field(0, limits.tokens < 1024 ? 100 : 4096);
  if (draw.one_in(3)) shape["sinks"] = draw.field(0, limits.tokens < 1024 ? 8 : 64);
  config["keys"] = cache_format(draw, head_dim, true, limits);
  config["values"] = cache_format(draw, head_dim, false, limits);
  hold_groups(draw, config);
  return config;
}

// Signs beside the numbers of entries, and scales of groups of inputs.
void add_signs_and_groups(Draw& draw, Json& format) {
  const bool eligible = !format.contains("decoder") && format["vector_size"] <= 8;
  if (eligible ? draw.one_in(4) : draw.wrong()) {
    format["decoder"] = "signs";
    const auto signs = format["vector_size"].get<std::int64_t>();
    if (!draw.wrong()) {
      format["index_bits"] = signs + 2 + static_cast<std::int64_t>(draw.below(9));
      format.erase("num_codebooks");
    }
  }
  if (!draw.one_in(4)) return;
  format["group_inputs"] = draw.wrong() ? draw.of({8, 48, 512}) : draw.of({16, 32, 64, 128, 256});
  if (draw.one_in(2)) format["group_scale_bits"] = draw.wrong() ? 2 : draw.of({3, 4});
  if (draw.one_in(2)) format["group_minima"] = true;
}

Json weight_format(Draw& draw, std::int64_t out, std::int64_t in, const Limits& limits) {
  Json format = draw_format(draw, limits);
  add_signs_and_groups(draw, format);
  const std::int64_t v = std::max<std::int64_t>(1, format["vector_size"]);
  const bool few = few_entries(format, limits);
  switch (draw.below(4)) {
    case 0:
      if (!few && in > 4096) break;
      format["scope"] = "channel_group";
      format["group_channels"] =
          std::min<std::int64_t>(65536, few ? multiple(draw.size(in), v) : multiple(in, v));
      break;
    case 1:
      format["scope"] = "tile";
      format["tile_columns"] = std::min<std::int64_t>(
          65536, multiple(few ? std::max<std::int64_t>(32, draw.size(in)) : in, v));
      format["tile_rows"] = std::min<std::int64_t>(
          65536, few ? draw.of({draw.size(out), std::int64_t{16}, std::int64_t{128}}) : out);
      break;
    default:
      if (draw.wrong()) format["scope"] = "head";
      break;
  }
  if (draw.one_in(3)) format["output_scales"] = true;
  if (draw.wrong()) format["hadamard"] = true;
  return format;
}

void add_experts(Draw& draw, Json& shape, const Limits& limits) {
  auto rows = shape["m"].get<std::int64_t>();
  if (!draw.wrong()) shape["m"] = rows = std::min<std::int64_t>(rows, kMostExpertRows);
  shape["experts"] = draw.size(limits.experts);
  const std::int64_t all = rows * shape["experts"].get<std::int64_t>();
  const std::int64_t some = std::min({rows + draw.size(all) - 1, all, limits.tokens});
  if (all > limits.tokens || !draw.one_in(3)) shape["total_rows"] = draw.wrong() ? all + 1 : some;
}

void add_epilogue(Draw& draw, Json& shape) {
  const auto out = shape["out_features"].get<std::int64_t>();
  if (draw.one_in(2)) shape["residual"] = true;
  if (draw.one_in(3)) shape["multiplier"] = 0.25;
  if (out % 2 != 0 && !draw.wrong()) return;
  shape["gate"] = "silu";
  if (draw.one_in(2)) shape["gate_rows"] = draw.wrong() ? out : out / 2;
}

Json product(Draw& draw, bool gemv, const Limits& limits) {
  Json config;
  Json& shape = config["shape"];
  config["op"] = gemv ? "gemv" : "gemm";
  const auto features = [&] {
    if (limits.features < kModelSizes.back() || !draw.one_in(3)) return draw.size(limits.features);
    return draw.of(kModelSizes);
  };
  const std::int64_t out = features();
  const std::int64_t in = features();
  shape["m"] = draw.wrong() ? draw.size(300)
               : gemv       ? 1 + static_cast<std::int64_t>(draw.below(8))
                            : std::max<std::int64_t>(2, draw.size(limits.rows));
  if (draw.one_in(4)) add_experts(draw, shape, limits);
  shape["out_features"] = out;
  if (draw.one_in(4)) add_epilogue(draw, shape);
  if (draw.one_in(4) && limits.table_bits == kAny.table_bits) {
    shape["in_features"] = draw.wrong() ? in : multiple(in, 8);
    config["weights"] = draw.of(format_names());
    return config;
  }
  const Json format = weight_format(draw, out, in, limits);
  const std::int64_t whole = format.contains("group_scale_bits") ? 256
                             : format.contains("group_inputs")
                                 ? format["group_inputs"].get<std::int64_t>()
                                 : std::max<std::int64_t>(1, format["vector_size"]);
  shape["in_features"] =
      draw.wrong() ? in
                   : std::min<std::int64_t>(multiple(in, whole),
                                            std::max<std::int64_t>(whole, limits.features / 8 * 8));
  config["weights"] = format;
  return config;
}

// Rows of a product's weights.
Json weight_rows_problem(Draw& draw, const Limits& limits) {
  Json config = product(draw, false, limits);
  const auto out = config["shape"]["out_features"].get<std::int64_t>();
  config["op"] = WeightDequantize::kOp;
  config["shape"] = {{"rows", draw.wrong() ? out + 1 : draw.size(out)},
                     {"out_features", out},
                     {"in_features", config["shape"]["in_features"]}};
  return config;
}

Json merge_problem(Draw& draw, const Limits& limits) {
  const std::int64_t head_dim = draw.size(1024);
  return {{"op", AttentionMerge::kOp},
          {"shape",
           {{"rows", draw.size(limits.features)},
            {"heads", draw.size(limits.heads)},
            {"head_dim", draw.wrong() ? head_dim : std::max<std::int64_t>(8, head_dim / 8 * 8)},
            {"parts", draw.field(2, 8)}}}};
}

Json matrix_problem(Draw& draw, const Limits& limits) {
  const bool decodes = draw.one_in(2);
  Json config = {
      {"op", decodes ? Int8Dequantize::kOp : Int8Quantize::kOp},
      {"shape",
       {{"tokens", draw.size(limits.features)}, {"channels", draw.size(limits.features)}}}};
  if (!decodes || draw.wrong()) config["shape"]["scales"] = draw.of(enum_names<Scales>);
  return config;
}

Json draw_config(Draw& draw, const Limits& limits) {
  draw.only_extremes(draw.one_in(12));
  const std::size_t op = draw.below(9);
  Json config = op < 3    ? product(draw, op == 0, limits)
                : op == 3 ? cache_problem(draw, AttentionDecode::kOp, limits)
                : op == 4 ? cache_problem(draw, KvAppend::kOp, limits)
                : op == 5 ? cache_problem(draw, KvDequantize::kOp, limits)
                : op == 6 ? merge_problem(draw, limits)
                : op == 7 ? weight_rows_problem(draw, limits)
                          : matrix_problem(draw, limits);
  draw.only_extremes(false);
  config["dtype"] = op < 8 ? draw.of(enum_names<DType>) : draw.of(enum_names<vq::Real>);
  return config;
}

}  // namespace

Json draw_problem(Draw& draw) { return draw_config(draw, kAny); }
Json draw_small_problem(Draw& draw) { return draw_config(draw, kSmall); }

}  // namespace vqgen::test
