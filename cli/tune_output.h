// What vqgen tune says of a tuning: progress, and the finalists as a table.
#pragma once

#include <string>

#include "cli/command.h"
#include "runtime/tuning/search/tune.h"

namespace vqgen::cli {

// As the step that is under way: "llama: 120 timed, 3 failed, best 8.12 us, 1.21 times the default,
// 31 s left".
void show_progress(const Output& output, const std::string& name, const TuneProgress& progress);

void print_tuning(const std::string& name, const TuneResult& result, const Output& output);

}  // namespace vqgen::cli
