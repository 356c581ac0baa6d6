// As much of JSON Schema (draft 2020-12) as config_schema() speaks.
#pragma once

#include <string>

#include "core/json.h"

namespace vqgen {

// What is wrong with `value` by the schema `root`, "/path: reason"; empty where it is valid. Throws
// std::logic_error on a keyword that it does not know, so that none is passed over.
std::string schema_problem(const Json& root, const Json& value);

}  // namespace vqgen
