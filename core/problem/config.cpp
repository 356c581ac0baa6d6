#include "core/problem/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/access/takes_access_counts.h"
#include "core/json/format_version.h"
#include "core/problem/head_dims.h"
#include "core/profiles.h"
#include "core/suggest.h"

namespace vqgen {
namespace {

constexpr std::array kOps{AttentionDecode::kOp, Gemv::kOp,           Gemm::kOp,
                          KvAppend::kOp,        KvDequantize::kOp,   AttentionMerge::kOp,
                          Int8Quantize::kOp,    Int8Dequantize::kOp, WeightDequantize::kOp};

FormatUse use_of(Operand operand) {
  return operand == Operand::keys     ? FormatUse::keys
         : operand == Operand::values ? FormatUse::values
                                      : FormatUse::weights;
}

// Names in a refused problem a preset of another operand, whose fields nobody wrote here.
void require_presets_of_operands(const JsonCursor& root) {
  for (const Operand operand : {Operand::keys, Operand::values, Operand::weights}) {
    const std::string name(enum_name(operand));
    if (!root.has(name) || !root.at(name).value().is_string()) continue;
    const std::string preset = root.at(name).string();
    if (names_a_file(preset)) continue;
    const FormatProfile profile = find_format_profile(preset, name);
    const FormatUse wanted = use_of(operand);
    if (profile.serves(wanted)) continue;
    root.at(name).fail(
        fmt::format("'{}' is a format of {}; for {} take one of {}", preset,
                    *profile.use == FormatUse::cache ? "KV caches" : enum_name(*profile.use), name,
                    few_of(formats_for(wanted))));
  }
}

std::string hint_of(std::string_view field) { return fmt::format(": {}", config_field_doc(field)); }

template <class Op>
Problem read_op(const JsonCursor& root) {
  Op op;
  std::vector<std::string> known{"op", "dtype", "shape", "gpu", "access_counts", "plan", "version"};
  for_each_operand(
      op, [&](Operand operand, const VqFormat&) { known.emplace_back(enum_name(operand)); });
  root.expect_object(known);
  if (root.has("dtype")) {
    using Type = decltype(op.dtype);
    op.dtype = static_cast<Type>(root.at("dtype").choice(enum_names<Type>));
  }
  read_fields(root.member("shape", hint_of("shape")), op.shape);
  // Plans and cached kernels of a problem are found by its text, of which there is one.
  if constexpr (requires { op.shape.value_head_dim; }) {
    if (op.shape.value_head_dim == op.shape.head_dim) op.shape.value_head_dim = 0;
  }
  for_each_operand(op, [&](Operand operand, VqFormat& format) {
    const std::string name(enum_name(operand));
    const JsonCursor cursor = root.member(name, hint_of(name));
    format = operand == Operand::values ? read_value_format(cursor)
                                        : read_format(cursor, use_of(operand));
  });
  return op;
}

std::string name_at(const JsonCursor& cursor) {
  std::string name = cursor.string();
  if (name.empty()) cursor.fail("must not be empty; leave the field out or give a name");
  return name;
}

}  // namespace

const char* config_field_doc(std::string_view name) {
  const auto found = std::ranges::find(kConfigFields, name, &ConfigField::name);
  return found == kConfigFields.end() ? "" : found->doc;
}

Config read_config(const std::filesystem::path& path) {
  return read_config(parse_json_file(path), path.string());
}

Config read_config(const Json& json, const std::string& source) {
  const JsonCursor root(json, source);
  if (!json.is_object()) root.fail("must be an object with the fields op, shape and formats");
  format_version(root, "version", kConfigVersion);
  Config config;
  config.source = source;
  const std::size_t op =
      root.member("op",
                  ": attention_decode, gemv, gemm, kv_append, kv_dequantize, attention_merge, "
                  "int8_quantize, int8_dequantize or weight_dequantize")
          .choice(kOps);
  config.problem = op == 0   ? read_op<AttentionDecode>(root)
                   : op == 1 ? read_op<Gemv>(root)
                   : op == 2 ? read_op<Gemm>(root)
                   : op == 3 ? read_op<KvAppend>(root)
                   : op == 4 ? read_op<KvDequantize>(root)
                   : op == 5 ? read_op<AttentionMerge>(root)
                   : op == 6 ? read_op<Int8Quantize>(root)
                   : op == 7 ? read_op<Int8Dequantize>(root)
                             : read_op<WeightDequantize>(root);
  if (root.has("access_counts")) {
    const std::string why = why_no_access_counts(config.problem);
    if (!why.empty()) root.at("access_counts").fail(why);
  }
  if (root.has("gpu")) config.gpu = name_at(root.at("gpu"));
  if (root.has("access_counts")) {
    const std::filesystem::path folder = std::filesystem::path(source).parent_path();
    config.access_counts = (folder / name_at(root.at("access_counts"))).string();
    config.access_counts_place = source + ": /access_counts";
  }
  if (root.has("plan")) {
    config.plan = root.at("plan").value();
    if (!config.plan.is_object()) root.at("plan").fail("must be an object of the plan's fields");
  }
  try {
    validate(config.problem, source);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::bad_input) require_presets_of_operands(root);
    // No remedy for a format helps where no format of that head_dim has a kernel.
    const auto fault = head_dim_fault(config.problem);
    if (!fault || std::string(error.what()).find("head_dim") == std::string::npos) throw;
    throw Error(ErrorKind::infeasible,
                fmt::format("{}: /shape/{}: {}", source, fault->field, fault->message));
  }
  return config;
}

JsonCursor Config::plan_cursor() const { return JsonCursor(plan, source, "/plan"); }

Plan with_overrides(Plan plan, const Config& config) {
  return with_fields(std::move(plan), config.plan_cursor());
}

bool has_fixed_fields(const Plan& plan, const Config& config) {
  if (config.plan.empty()) return true;
  const JsonCursor fields = config.plan_cursor();
  if (!has_fields(plan, fields) && !dataflows_with(fields, config.problem).empty()) return false;
  return with_overrides(plan, config) == plan;
}

GpuSpec named_gpu(const Config& config) {
  try {
    return find_gpu(*config.gpu);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: /gpu: {}", config.source, error.what()));
  }
}

Json to_json(const Problem& problem) {
  Json json;
  std::visit(
      [&](const auto& op) {
        json = {{"op", op.kOp}, {"dtype", enum_name(op.dtype)}, {"shape", to_json(op.shape)}};
        for_each_operand(op, [&](Operand operand, const VqFormat& format) {
          json[std::string(enum_name(operand))] = to_json(format);
        });
      },
      problem);
  return json;
}

}  // namespace vqgen
