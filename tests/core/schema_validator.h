// The JSON Schema of config.json, and as much of JSON Schema (draft 2020-12) as it speaks.
#pragma once

#include <string>

#include "core/json/json.h"

namespace vqgen {

// JSON Schema (draft 2020-12) of config.json, made from the declared fields.
Json config_schema();

// What is wrong with `value` by the schema `root`, "/path: reason"; empty where it is valid. Throws
// std::logic_error on a keyword that it does not know, so that none is passed over.
std::string schema_problem(const Json& root, const Json& value);

}  // namespace vqgen
