#include "cli/measurement_json.h"

#include "core/config.h"

namespace vqgen::cli {

Json measurement_json(const Measurement& m) {
  Json json = {{"plan", to_json(m.plan)}, {"outcome", enum_name(m.outcome)}};
  if (m.outcome != Outcome::timed) {
    json["why"] = m.why;
    return json;
  }
  json["time_us"] = m.time_us;
  json["low_us"] = m.low_us;
  json["high_us"] = m.high_us;
  json["rel_err"] = m.rel_err;
  json["registers"] = m.registers;
  json["spill_bytes"] = m.spill_bytes;
  json["shared_bytes"] = m.shared_bytes;
  json["blocks_per_sm"] = m.blocks_per_sm;
  return json;
}

}  // namespace vqgen::cli
