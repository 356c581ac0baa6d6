#include "cli/measurement_json.h"

#include "core/problem/config.h"
#include "runtime/tuning/journal/journal_lines.h"

namespace vqgen::cli {

Json measurement_json(const Measurement& m) {
  Json json = to_json(m);
  json["plan"] = to_json(m.plan);
  return json;
}

}  // namespace vqgen::cli
