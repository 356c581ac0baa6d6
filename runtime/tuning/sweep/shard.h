// Shards: a list of work cut into parts that need nothing of each other but a folder, where each
// leaves a table of its own. Who runs the parts is the user's affair: a launcher's
// environment says which part a process is.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/tuning/sweep/sweep.h"

namespace vqgen {

struct Shard {
  int index = 0;  // from 0, as launchers count
  int count = 1;
  bool operator==(const Shard&) const = default;
};

// "I/N" with I from 0 to N-1 and N up to 65536. Error(bad_input) that names `what`.
Shard read_shard(const std::string& text, const std::string& what);

// The value of a variable of the environment; nullopt where it is not set.
using ReadVariable = std::function<std::optional<std::string>(const char* name)>;

struct LauncherShard {
  Shard shard;
  std::string reason;  // "task 3 of a Slurm array of 16"
};

// The place among the processes of a launcher: Open MPI's rank, else PMI's, else that of a Slurm
// step, within the task of a Slurm array where there is one. nullopt where none says.
// Error(bad_input) for half a place, numbers out of range, and arrays that do not count from 0
// without gaps: after another submission of some of an array's tasks the same number would be
// another shard.
std::optional<LauncherShard> find_shard(const ReadVariable& variable);

// --shard of vqgen tune: "I/N" by hand, or "auto" for what the launcher says. Not by itself: an
// array of Slurm may as well be one of different sweeps, each whole. The whole for "".
// Error(bad_input) for what is no shard, and for auto where no launcher is found or it says half.
LauncherShard choose_shard(const std::string& flag, const ReadVariable& variable);

// Items of the shard, as indices that increase. Each item belongs to exactly one of the shards of a
// count; how many they have differs by one at most. Dealt out in turns, back and forth, from the
// most to the least arithmetic of one call, which is what references and replays take.
std::vector<std::size_t> items_of(const Work& work, const Shard& shard);

// Multiply-adds of one call.
double arithmetic_of(const Problem& problem);

// "LABEL-DIGEST.journal", of what is safe in a name of the label and of the key of the row that is
// looked for, which tells problems, GPUs and codes apart (tuned_key()). Without the shard, so that
// another number of shards goes on from the same journals.
std::filesystem::path item_journal(const std::filesystem::path& folder, const std::string& label,
                                   const std::string& key);

}  // namespace vqgen
