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
    return {{"enum", enum_names<Member>}};
  } else if constexpr (std::is_integral_v<Member>) {
    if (!rule.only.empty()) {
      return {{"type", "integer"}, {"enum", std::vector<int>(rule.only.begin(), rule.only.end())}};
    }
    return {{"type", "integer"},
            {"minimum", static_cast<std::int64_t>(rule.min)},
            {"maximum", static_cast<std::int64_t>(rule.max)}};
  } else if constexpr (std::is_same_v<Member, std::vector<int>>) {
    return {{"type", "array"}, {"items", value_schema<int>(rule)}};
  } else if constexpr (std::is_same_v<Member, std::vector<VqFormat>>) {
    return {{"type", "array"}, {"items", {{"$ref", "#/$defs/format"}}}};
  } else {
    constexpr bool placement = std::is_same_v<Member, Placement>;
    static_assert(placement || std::is_same_v<Member, CodeLayout>,
                  "config.json holds booleans, names, integers, placements, layouts and formats");
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

Json format_schema() {
  return {{"oneOf",
           {format_name_schema("a preset's name, or a format file from the config's folder"),
            {{"$ref", "#/$defs/format"}}}}};
}

// The fields of a format: all required ones, some over a preset's, or parts.
Json format_object_schema() {
  Json schema = object_schema<VqFormat>(false);
  const Json required = schema.at("required");
  schema.erase("required");
  schema["properties"]["preset"] = format_name_schema(
      "a preset's name, or a format file from the config's folder, whose fields stand where none "
      "are given here");
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

template <class Op>
Json op_schema(std::vector<std::string> operands) {
  Json properties = {
      {"op", {{"const", Op::kOp}}},
      {"dtype", {{"enum", enum_names<decltype(Op::dtype)>}, {"default", "f16"}}},
      {"shape", object_schema<decltype(Op::shape)>(false)},
      {"gpu", {{"type", "string"}, {"description", "a GPU profile's name or file"}}},
      {"access_counts",
       {{"type", "string"},
        {"description", "a profile file of vqgen count-accesses, from the config's folder"}}},
      {"plan", plan_schema<Op>()},
  };
  if (!why_no_access_counts(Op{}).empty()) properties.erase("access_counts");
  Json required = {"op", "shape"};
  for (const std::string& operand : operands) {
    properties[operand] = format_schema();
    required.push_back(operand);
  }
  return {{"type", "object"},
          {"additionalProperties", false},
          {"properties", properties},
          {"required", required}};
}

}  // namespace

Json config_schema() {
  return {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
          {"title", "vqgen config.json"},
          {"$defs",
           {{"format", format_object_schema()},
            {"layout", object_schema<CodeLayout>(false)},
            {"placement", object_schema<Placement>(false)}}},
          {"oneOf",
           {op_schema<AttentionDecode>({"keys", "values"}), op_schema<Gemv>({"weights"}),
            op_schema<Gemm>({"weights"}), op_schema<KvAppend>({"keys", "values"}),
            op_schema<KvDequantize>({"keys", "values"}), op_schema<AttentionMerge>({}),
            op_schema<Int8Quantize>({}), op_schema<Int8Dequantize>({})}}};
}

}  // namespace vqgen
