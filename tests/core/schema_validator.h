// The JSON Schema of config.json, and a validator for as much of JSON Schema (draft 2020-12) as it
// uses.
#pragma once

#include <string>

#include "core/json/json.h"

namespace vqgen {

// JSON Schema (draft 2020-12) of config.json, made from the declared fields.
Json config_schema();

// Says what is wrong with `value` by the schema `root` ("/path: reason"); empty if it is valid.
// Throws std::logic_error on an unknown keyword, so that none is skipped.
std::string schema_problem(const Json& root, const Json& value);

}  // namespace vqgen
