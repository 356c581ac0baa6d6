// The JSON Schema of config.json, from the declared fields.
#include "core/access/takes_access_counts.h"
#include "core/problem/config.h"
#include "tests/core/schema_validator.h"

namespace vqgen {
namespace {

template <class Member>
Json value_schema(const Rule& rule) {
  if constexpr (std::is_same_v<Member, bool>) {
    return {{"type", "boolean"}};
  } else if constexpr (std::is_enum_v<Member>) {
    const std::span<const char* const> names = names_within<Member>(rule);
    return {{"enum", std::vector<std::string>(names.begin(), names.end())}};
  } else if constexpr (std::is_integral_v<Member>) {
    if (!rule.only.empty()) {
      return {{"type", "integer"}, {"enum", std::vector<int>(rule.only.begin(), rule.only.end())}};
    }
    return {{"type", "integer"},
            {"minimum", static_cast<std::int64_t>(rule.min)},
            {"maximum", static_cast<std::int64_t>(rule.max)}};
  } else if constexpr (std::is_floating_point_v<Member>) {
    return {{"type", "number"}, {"minimum", rule.min}, {"maximum", rule.max}};
  } else if constexpr (std::is_same_v<Member, std::vector<int>>) {
    return {{"type", "array"}, {"items", value_schema<int>(rule)}};
  } else if constexpr (std::is_same_v<Member, std::vector<VqFormat>>) {
    return {{"type", "array"}, {"items", {{"$ref", "#/$defs/format"}}}};
  } else {
    constexpr bool placement = std::is_same_v<Member, Placement>;
    static_assert(placement || std::is_same_v<Member, CodeLayout>,
                  "config.json holds booleans, names, numbers, placements, layouts and formats");
    return {{"$ref", placement ? "#/$defs/placement" : "#/$defs/layout"}};
  }
}

template <HasFields T>
Json object_schema(bool partial) {
  Json properties = Json::object();
  Json required = Json::array();
  for_each_field<T>([&]<class Member>(const Field<T, Member>& field) {
    Json schema = value_schema<Member>(field.rule);
    schema["description"] = field.doc;
    if (!field.rule.required) schema["default"] = to_json_value(T{}.*field.member);
    properties[field.name] = schema;
    if (field.rule.required && !partial) required.push_back(field.name);
  });
  return {{"type", "object"},
          {"additionalProperties", false},
          {"properties", properties},
          {"required", required}};
}

Json format_name_schema(const char* description) {
  return {{"type", "string"}, {"description", description}};
}

// What the fields of a format may be for an operand, beside what $defs/format says.
Json limits_of(Operand operand) {
  const Json off = {{"const", false}}, zero = {{"const", 0}}, none = {{"const", Json::array()}};
  if (operand == Operand::weights) {
    return {{"decoder", {{"enum", {"table", "e8p", "signs"}}}},
            {"scope", {{"enum", {"tensor", "channel_group", "tile"}}}},
            {"smooth", off},
            {"hadamard", off},
            {"center", off},
            {"klt", off},
            {"token_scales", off},
            {"group_tokens", zero},
            {"channels", none},
            {"parts", none}};
  }
  Json limits = {{"decoder", {{"enum", {"table", "e8p", "scalar", "e4m3", "affine"}}}},
                 {"scope", {{"enum", {"tensor", "head", "channel_group"}}}},
                 {"output_scales", off},
                 {"group_inputs", zero},
                 {"group_scale_bits", zero},
                 {"group_minima", off},
                 {"tile_rows", zero},
                 {"tile_columns", zero}};
  if (operand == Operand::keys) return limits;
  for (const char* transform : {"smooth", "hadamard"}) limits[transform] = off;
  return limits;
}

Json format_schema(Operand operand) {
  return {{"oneOf",
           {format_name_schema("a preset's name, or a format file from the config's folder"),
            {{"$ref", "#/$defs/format"}, {"properties", limits_of(operand)}}}}};
}

// The fields of a format: all required ones, some over a preset's, or parts.
Json format_object_schema() {
  Json schema = object_schema<VqFormat>(false);
  const Json required = schema.at("required");
  schema.erase("required");
  schema["properties"]["preset"] = format_name_schema(
      "a preset's name, or a format file from the config's folder, whose fields hold where you "
      "give "
      "none");
  schema["anyOf"] = {
      {{"required", {"preset"}}}, {{"required", required}}, {{"required", {"parts"}}}};
  return schema;
}

// The fields of a plan that a user fixes: those of a named dataflow, or any that one dataflow has.
template <class Op>
Json plan_schema() {
  Json dataflows = Json::array();
  for_each_dataflow([&]<class P>(const P& plan) {
    if constexpr (std::is_base_of_v<OpOf<P>, Op>) {
      Json schema = object_schema<P>(true);
      schema["properties"]["dataflow"] = {{"const", dataflow_name(plan)}};
      schema["title"] = dataflow_name(plan);
      dataflows.push_back(std::move(schema));
    }
  });
  return {{"anyOf", std::move(dataflows)}};
}

// The sizes of an op; ops share structs of them.
template <class Op>
Json shape_schema() {
  Json schema = object_schema<decltype(Op::shape)>(false);
  if constexpr (std::is_same_v<Op, Int8Dequantize>) {  // its scales are an argument
    schema["properties"]["scales"]["enum"] = {enum_name(Scales::given)};
  }
  if constexpr (requires { Op::kMostRows; }) {
    schema["properties"]["m"].update({{"minimum", Op::kLeastRows}, {"maximum", Op::kMostRows}});
  }
  return schema;
}

template <class Op>
Json op_schema() {
  Json properties = {
      {"op", {{"const", Op::kOp}}},
      {"dtype", {{"enum", enum_names<decltype(Op::dtype)>}, {"default", "f16"}}},
      {"shape", shape_schema<Op>()},
      {"gpu", {{"type", "string"}}},
      {"access_counts", {{"type", "string"}}},
      {"plan", plan_schema<Op>()},
      {"version", {{"enum", {kConfigVersion}}, {"default", kConfigVersion}}},
  };
  if (!why_no_access_counts(Op{}).empty()) properties.erase("access_counts");
  Json required = {"op", "shape"};
  Op op;
  for_each_operand(op, [&](Operand operand, const VqFormat&) {
    const std::string name(enum_name(operand));
    properties[name] = format_schema(operand);
    required.push_back(name);
  });
  for (const auto& [name, property] : properties.items()) {
    property["description"] = config_field_doc(name);
  }
  return {{"type", "object"},
          {"additionalProperties", false},
          {"properties", properties},
          {"required", required}};
}

}  // namespace

Json config_schema() {
  return {
      {"$schema", "https://json-schema.org/draft/2020-12/schema"},
      {"title", "vqgen config.json"},
      {"$defs",
       {{"format", format_object_schema()},
        {"layout", object_schema<CodeLayout>(false)},
        {"placement", object_schema<Placement>(false)}}},
      {"oneOf",
       {op_schema<AttentionDecode>(), op_schema<Gemv>(), op_schema<Gemm>(), op_schema<KvAppend>(),
        op_schema<KvDequantize>(), op_schema<AttentionMerge>(), op_schema<Int8Quantize>(),
        op_schema<Int8Dequantize>(), op_schema<WeightDequantize>()}}};
}

}  // namespace vqgen
