#include "tests/core/schema_validator.h"

#include <algorithm>
#include <set>
#include <stdexcept>

namespace vqgen {
namespace {

bool has_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "integer") return value.is_number_integer();
  throw std::logic_error("type " + type);
}

class Validator {
 public:
  explicit Validator(const Json& root) : root_(root) {}

  std::string problem(const Json& schema, const Json& value, const std::string& path) const {
    for (const auto& [keyword, rule] : schema.items()) {
      const std::string found = judge(keyword, rule, schema, value, path);
      if (!found.empty()) return found;
    }
    return "";
  }

 private:
  std::string judge(const std::string& keyword, const Json& rule, const Json& schema,
                    const Json& value, const std::string& path) const {
    static const std::set<std::string> kNotes{"$schema", "$defs", "title", "description",
                                              "default"};
    const auto unless = [&](bool fine) { return fine ? "" : path + ": " + keyword; };
    if (kNotes.contains(keyword)) return "";
    if (keyword == "type") return unless(has_type(value, rule));
    if (keyword == "const") return unless(value == rule);
    if (keyword == "enum") return unless(std::find(rule.begin(), rule.end(), value) != rule.end());
    if (keyword == "minimum") return unless(!value.is_number() || value >= rule);
    if (keyword == "maximum") return unless(!value.is_number() || value <= rule);
    if (keyword == "required") return required(rule, value, path);
    if (keyword == "properties") return properties(rule, value, path);
    if (keyword == "additionalProperties") {
      if (rule != false) throw std::logic_error("additionalProperties other than false");
      return additional(schema.at("properties"), value, path);
    }
    if (keyword == "oneOf" || keyword == "anyOf") return some_of(keyword, rule, value, path);
    if (keyword == "items") return items(rule, value, path);
    if (keyword == "$ref") return problem(target(rule), value, path);
    throw std::logic_error("the schema's keyword " + keyword + " is unknown to this test");
  }

  std::string required(const Json& names, const Json& value, const std::string& path) const {
    for (const std::string name : names) {
      if (value.is_object() && !value.contains(name)) return path + ": required " + name;
    }
    return "";
  }

  std::string items(const Json& schema, const Json& value, const std::string& path) const {
    for (std::size_t i = 0; value.is_array() && i < value.size(); ++i) {
      const std::string found = problem(schema, value.at(i), path + "/" + std::to_string(i));
      if (!found.empty()) return found;
    }
    return "";
  }

  std::string properties(const Json& schemas, const Json& value, const std::string& path) const {
    if (!value.is_object()) return "";
    for (const auto& [name, schema] : schemas.items()) {
      if (!value.contains(name)) continue;
      const std::string found = problem(schema, value.at(name), path + "/" + name);
      if (!found.empty()) return found;
    }
    return "";
  }

  std::string additional(const Json& known, const Json& value, const std::string& path) const {
    if (!value.is_object()) return "";
    for (const auto& [name, unused] : value.items()) {
      if (!known.contains(name)) return path + ": additional " + name;
    }
    return "";
  }

  std::string some_of(const std::string& keyword, const Json& schemas, const Json& value,
                      const std::string& path) const {
    int valid = 0;
    std::string reasons;
    for (const Json& schema : schemas) {
      const std::string found = problem(schema, value, path);
      valid += found.empty() ? 1 : 0;
      reasons += found.empty() ? "" : " (" + found + ")";
    }
    if (valid == 1 || (valid > 1 && keyword == "anyOf")) return "";
    return path + ": " + keyword + ": " + std::to_string(valid) + " are valid" + reasons;
  }

  const Json& target(const std::string& reference) const {
    if (!reference.starts_with('#')) throw std::logic_error("$ref " + reference);
    return root_.at(Json::json_pointer(reference.substr(1)));
  }

  const Json& root_;
};

}  // namespace

std::string schema_problem(const Json& root, const Json& value) {
  return Validator(root).problem(root, value, "");
}

}  // namespace vqgen
