// A measurement as JSON: as in a journal, but that its plan is the object of its fields.
#pragma once

#include "core/json/json.h"
#include "runtime/measure.h"

namespace vqgen::cli {

Json measurement_json(const Measurement& m);

}  // namespace vqgen::cli
