#include "core/problem/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/profiles.h"

namespace vqgen {
namespace {

constexpr std::array kOps{AttentionDecode::kOp, Gemv::kOp, Gemm::kOp, KvAppend::kOp};

std::vector<std::string> known_fields(std::vector<std::string> operands) {
  std::vector<std::string> known{"op", "dtype", "shape", "gpu", "hotness", "plan"};
  known.insert(known.end(), operands.begin(), operands.end());
  return known;
}

template <class Op>
void read_common(const JsonCursor& root, Op& op) {
  if (root.has("dtype")) {
    op.dtype = static_cast<DType>(root.at("dtype").choice(enum_names<DType>));
  }
  read_fields(root.member("shape", ": the sizes of the problem"), op.shape);
}

// Attention, or what appends to its cache.
template <class Op>
Problem read_cache_op(const JsonCursor& root) {
  root.expect_object(known_fields({"keys", "values"}));
  Op op;
  read_common(root, op);
  op.keys =
      read_format(root.member("keys", ": the format of the keys, a preset, a file or an object"));
  op.values = read_value_format(
      root.member("values", ": the format of the values, a preset, a file or an object"));
  return op;
}

template <class Op>
Problem read_linear(const JsonCursor& root) {
  root.expect_object(known_fields({"weights"}));
  Op op;
  read_common(root, op);
  op.weights = read_format(
      root.member("weights", ": the format of the weights, a preset, a file or an object"));
  return op;
}

std::string name_at(const JsonCursor& cursor) {
  std::string name = cursor.string();
  if (name.empty()) cursor.fail("must not be empty; leave the field out or give a name");
  return name;
}

Json common_json(const char* name, const auto& op) {
  return {{"op", name}, {"dtype", enum_name(op.dtype)}, {"shape", to_json(op.shape)}};
}

template <class Op>
Json cache_json(const Op& op) {
  Json json = common_json(op.kOp, op);
  json["keys"] = to_json(op.keys);
  json["values"] = to_json(op.values);
  return json;
}
Json problem_json(const AttentionDecode& op) { return cache_json(op); }
Json problem_json(const KvAppend& op) { return cache_json(op); }
template <class Op>
Json problem_json(const Op& op) {
  Json json = common_json(op.kOp, op);
  json["weights"] = to_json(op.weights);
  return json;
}

}  // namespace

Config read_config(const std::filesystem::path& path) {
  return read_config(parse_json_file(path), path.string());
}

Config read_config(const Json& json, const std::string& source) {
  const JsonCursor root(json, source);
  if (!json.is_object()) root.fail("must be an object with the fields op, shape and formats");
  Config config;
  config.source = source;
  const std::size_t op =
      root.member("op", ": attention_decode, gemv, gemm or kv_append").choice(kOps);
  config.problem = op == 0   ? read_cache_op<AttentionDecode>(root)
                   : op == 1 ? read_linear<Gemv>(root)
                   : op == 2 ? read_linear<Gemm>(root)
                             : read_cache_op<KvAppend>(root);
  if (root.has("gpu")) config.gpu = name_at(root.at("gpu"));
  if (root.has("hotness")) {
    const std::filesystem::path folder = std::filesystem::path(source).parent_path();
    config.hotness = (folder / name_at(root.at("hotness"))).string();
  }
  if (root.has("plan")) {
    config.plan = root.at("plan").value();
    if (!config.plan.is_object()) root.at("plan").fail("must be an object of the plan's fields");
  }
  validate(config.problem, source);
  return config;
}

JsonCursor Config::plan_cursor() const { return JsonCursor(plan, source, "/plan"); }

Plan with_overrides(Plan plan, const Config& config) {
  return with_fields(std::move(plan), config.plan_cursor());
}

GpuSpec named_gpu(const Config& config) {
  try {
    return find_gpu(*config.gpu);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: /gpu: {}", config.source, error.what()));
  }
}

Json to_json(const Problem& problem) {
  return std::visit([](const auto& op) { return problem_json(op); }, problem);
}

}  // namespace vqgen
