// A workbench whose candidates misbehave as their plans say, to be served by a worker process.
#pragma once

#include <memory>
#include <string>

#include "runtime/tuning/worker/worker_lines.h"

namespace vqgen::test {

// What a candidate does, told by its plan's chunk_columns.
enum class Deed {
  healthy = 1,
  late,  // but in time
  hang,  // while it is verified or timed
  segfault,
  abort,
  exit_0,
  garbage,  // on the socket
  endless_line,
  half_a_line,  // and the end
  out_of_turn,  // says that all is done
  closes_and_stays,
  device_fault,     // Error(device)
  says_and_aborts,  // the reason, on standard error
  wrong,            // with an infinite error
  not_a_time,       // NaN
  zero_time,
  hang_in_compile,
  abort_in_compile,
  slow_compile,         // a little
  abort_after_compile,  // of the whole batch, when no candidate is in flight
  abort_in_round,       // the third of the finals
  wrong_when_seated,
  leaves_a_child,  // that would run on, its id in the setup's codes, a file's name
};

// Splits only tell plans apart; a healthy one takes 10 us and as many as it has splits.
Plan plan_that(Deed deed, int splits = 1);

// What all take longer for each time that data moved.
inline constexpr double kMovedUs = 0.25;

// By the setup's codes: "no device" is Error(device), "dies" aborts before it is ready, "stays" is
// never ready.
std::unique_ptr<Workbench> fake_workbench(const WorkerSetup& setup);

}  // namespace vqgen::test
