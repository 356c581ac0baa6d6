// Sweeps: the problems of a whole model as one file, expanded to a list of work.
//
//   {"model": {"name": "...", "source": "..."}, "dtype": "f16",
//    "formats": {"weights": ["aqlm-2x8"], "kv": [{"keys": "cq-4c8b", "values": "cq-4c8b"}]},
//    "ops": [{"name": "o_proj", "weight": 32,
//             "shape": {"m": [1, 8, 64], "out_features": 4096, "in_features": 4096}}]}
//
// Any size may be a list. An op is attention where its shape has tokens, else gemv for up to 8 rows
// and gemm above; "op" fixes it. The list is the product of sizes and formats: ops in the order of
// the file, then sizes in the order of the shape's fields, then formats.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/gpu/gpu_spec.h"
#include "heuristics/tuned/table.h"

namespace vqgen {

struct WorkItem {
  Problem problem;
  std::string label;  // "o_proj rows=1 aqlm-2x8": the op, sizes that vary, formats
  double weight = 1;  // how often a forward pass runs it; no unit
};

// A combination that no kernel does.
struct SkippedItem {
  std::string label;
  std::string reason;
};

struct Work {
  std::string name;                          // the model's, or the config file's
  std::vector<WorkItem> items;               // at least one; no problem twice
  std::vector<SkippedItem> skipped;          // for the caller to tell of
  std::optional<std::string> gpu;            // as in the config; a sweep names none
  std::optional<std::string> access_counts;  // likewise
};

// A sweep file, a config.json (a sweep of one) or the name of a shipped sweep ("llama-3-8b": no '/'
// and no ".json"). Error(bad_input) with file, JSON path and remedy: what the reader of configs
// refuses, sizes and formats that stand twice in one list, rows outside of a named op's, a config
// that fixes parts of its plan. Equal problems of several ops are one item with the sum of their
// weights, where the first stands. Error(infeasible) where no combination is left, with the first
// reason.
Work read_work(const std::string& name);
// `source` stands in messages.
Work read_work(const Json& json, const std::string& source);

// Shards: a list of work cut into parts that need nothing of each other but a folder, where each
// leaves a table of its own. Who runs the parts is the user's affair: a launcher's
// environment says which part a process is.

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

// A table that is changed. Several may change it at once, one a GPU into the user's own table, so
// each reads, changes and publishes it under one lock, that of its folder, and never over rows
// that it has not seen. A file system without locks is done without.

inline constexpr std::chrono::milliseconds kTableLockWait{60'000};

// Reads the table, or takes an empty one where there is none, publishes what `change` makes of it,
// and gives that. Error(bad_input) as read_table(), publish_text() and change(), and where another
// process holds the lock for longer than `longest`; the file is then as it was.
TunedTable change_table(const std::filesystem::path& path,
                        const std::function<TunedTable(TunedTable)>& change,
                        std::chrono::milliseconds longest = kTableLockWait);

// Puts the row in the place of its key's. Errors as change_table(), and for a row that no reader
// takes.
TunedTable put_row(const std::filesystem::path& path, const TunedRow& row,
                   std::chrono::milliseconds longest = kTableLockWait);

// What the table holds, and proof that its place takes it: it is written anew, where there is none
// beside it and away again. Errors as change_table().
TunedTable writable_table(const std::filesystem::path& path);

// Reads the table, and makes an empty one where there is none. Errors as change_table().
TunedTable made_table(const std::filesystem::path& path);

// The row of a key in the table; null where there is none.
const TunedRow* find_row(const TunedTable& table, const std::string& key);

// Error(bad_input) where a device is of another class than rows for `gpu` would say.
void require_class(const GpuSpec& gpu, const std::optional<GpuSpec>& device);

}  // namespace vqgen
