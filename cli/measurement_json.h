// A measurement as JSON: the plan, what became of it, and the figures or the reason.
#pragma once

#include "core/json.h"
#include "runtime/measure.h"

namespace vqgen::cli {

Json measurement_json(const Measurement& m);

}  // namespace vqgen::cli
