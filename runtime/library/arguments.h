// The arguments of ops as JSON, as their declarations say (runtime/ops/argument.h).
#pragma once

#include "core/json/json.h"
#include "core/problem/problem.h"

namespace vqgen::library {

// The arguments that this problem takes: name, type, and shape of the largest call.
Json described_arguments(const Problem& problem);

}  // namespace vqgen::library
