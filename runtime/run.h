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

// Runs the prepared kernel of `config` on `backend`. With a bundle every item is run, each as
// stored_data() has it; with null, hard input drawn from `seed`. A wrong result is no error but a
// report that is not ok.
std::vector<ItemReport> run_verified(const Config& config, const Prepared& prepared,
                                     Backend& backend, const NamedBundle* bundle,
                                     const HardInput& input);

}  // namespace vqgen
