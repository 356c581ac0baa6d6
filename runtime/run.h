// A verified run: a kernel on data, judged by the double-precision reference.
#pragma once

#include <string>
#include <vector>

#include "core/json/json.h"
#include "runtime/ops/op.h"
#include "runtime/prepare.h"
#include "runtime/stored_data.h"
#include "runtime/verify/hard_input.h"

namespace vqgen {

// Runs the prepared kernel of `config` on `backend`: on every item of the bundle, each as
// stored_data() has it, or on hard input drawn from `seed` if the bundle is null. A wrong result
// throws nothing; its report is not ok.
std::vector<ItemReport> run_verified(const Config& config, const Prepared& prepared,
                                     Backend& backend, const NamedBundle* bundle,
                                     const HardInput& input);

}  // namespace vqgen
