// The worker's side: a process that does jobs on a workbench for the tuner that started it.
#pragma once

#include <functional>
#include <memory>

#include "runtime/tuning/worker/worker_lines.h"

namespace vqgen {

// Makes the workbench of a setup; Error where that cannot be.
using MakeWorkbench = std::function<std::unique_ptr<Workbench>(const WorkerSetup& setup)>;

// Serves standard input and output, both of which it takes over: what else is printed goes to
// standard error. Returns the exit code: 0 when the tuner closes, at an Error its own after telling
// it, since a device that failed once is not to be trusted. The process ends at once when the tuner
// goes away, whatever the workbench does at the time.
int serve_worker(const MakeWorkbench& make);

}  // namespace vqgen
