// --shard of vqgen tune: "I/N" by hand, or "auto" for what the launcher says. Not by itself: an
// array of Slurm may as well be one of different sweeps, each whole.
#pragma once

#include <string>

#include "runtime/tuning/sweep/shard.h"

namespace vqgen::cli {

// The whole for "". Error(bad_input) for what is no shard, and for auto where no launcher is found
// or it says half.
LauncherShard choose_shard(const std::string& flag);

}  // namespace vqgen::cli
