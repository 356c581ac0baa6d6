// The plan of a name, read as from a row of a table.
#pragma once

#include <string>

#include "core/plan/plan_name.h"

namespace vqgen {

inline Plan named(const std::string& name) {
  const Json json = name;
  return read_plan_name(JsonCursor(json, "t.jsonl", "/plan"));
}

}  // namespace vqgen
