// A workbench whose candidates misbehave as their plans say, served by a worker process.
#pragma once

#include <memory>
#include <string>

#include "runtime/tuning/worker/worker_lines.h"

namespace vqgen::test {

// A candidate's behaviour, given by its plan's chunk_columns.
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
  abort_after_compile,  // after the whole batch, with no candidate in flight
  abort_in_round,       // in the third round of the finals
  wrong_when_seated,
  leaves_a_child,  // that would run on; its id is in a file named by the setup's codes
};

// Splits only distinguish plans; a healthy plan takes 10 us plus one per split.
Plan plan_that(Deed deed, int splits = 1);

// The time that every candidate gains with each move of the data.
inline constexpr double kMovedUs = 0.25;

// The setup's codes decide: "no device" throws Error(device), "dies" aborts before it is ready,
// "stays" is never ready.
std::unique_ptr<Workbench> fake_workbench(const WorkerSetup& setup);

}  // namespace vqgen::test
