// Why a plan is what it is, a line a decision, for the head of the kernel text and for people.
#pragma once

#include <string>
#include <vector>

#include "core/check.h"

namespace vqgen {

std::vector<std::string> explain(const Plan& plan, const Problem& problem, const GpuSpec& gpu);

}  // namespace vqgen
