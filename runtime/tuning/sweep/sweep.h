// Sweeps: the problems of a whole model as one file, expanded to a list of work.
//
//   {"model": {"name": "...", "source": "..."}, "dtype": "f16",
//    "formats": {"weights": ["aqlm-2x8"], "kv": [{"keys": "cq-4c8b", "values": "cq-4c8b"}]},
//    "ops": [{"name": "o_proj", "weight": 32,
//             "shape": {"m": [1, 8, 64], "out_features": 4096, "in_features": 4096}}]}
//
// Any size may be a list. An op is attention if its shape has tokens, else gemv for up to 8 rows
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
  double weight = 1;  // runs per forward pass; no unit
};

// A combination that no kernel serves.
struct SkippedItem {
  std::string label;
  std::string reason;
};

struct Work {
  std::string name;                          // the model's, or the config file's
  std::vector<WorkItem> items;               // at least one; no problem twice
  std::vector<SkippedItem> skipped;          // for the caller to report
  std::optional<std::string> gpu;            // as in the config; a sweep names none
  std::optional<std::string> access_counts;  // as `gpu`
};

// Reads a sweep file, a config.json (a sweep of one) or a shipped sweep ("llama-3-8b": no '/' and
// no ".json"). Equal problems are one item with the sum of their weights. Error(bad_input) has
// file, JSON path and remedy; Error(infeasible) has the first reason if no combination is left.
Work read_work(const std::string& name);
// Messages name `source`.
Work read_work(const Json& json, const std::string& source);

// Shards: parts of a list of work that share nothing but a folder, in which each leaves its own
// table. The user runs the parts; a launcher's environment says which part a process is.

struct Shard {
  int index = 0;  // from 0, as launchers count
  int count = 1;
  bool operator==(const Shard&) const = default;
};

// Reads "I/N" with I from 0 to N-1 and N up to 65536. Error(bad_input) names `what`.
Shard read_shard(const std::string& text, const std::string& what);

// The value of an environment variable; nullopt if it is not set.
using ReadVariable = std::function<std::optional<std::string>(const char* name)>;

struct LauncherShard {
  Shard shard;
  std::string reason;  // "task 3 of a Slurm array of 16"
};

// The place among a launcher's processes: Open MPI's rank, else PMI's, else a Slurm step's, within
// the task of a Slurm array if there is one; nullopt if none is set. Throws Error(bad_input) for
// incomplete places, numbers out of range, and arrays with gaps, whose numbers are not stable.
std::optional<LauncherShard> find_shard(const ReadVariable& variable);

// Reads --shard of vqgen tune: "I/N", "auto" (the launcher's place) or "" (the whole). "auto" must
// be asked for, since a Slurm array may run different sweeps, each whole. Throws Error(bad_input)
// for other text, and for auto if no launcher is found or its place is incomplete.
LauncherShard choose_shard(const std::string& flag, const ReadVariable& variable);

// The shard's items, as increasing indices. Each item belongs to exactly one shard of a count, and
// shard sizes differ by at most one. Items are dealt out back and forth by the arithmetic of one
// call, the most first, since references and replays take as long.
std::vector<std::size_t> items_of(const Work& work, const Shard& shard);

// Multiply-adds of one call.
double arithmetic_of(const Problem& problem);

// "LABEL-DIGEST.journal": the label's safe characters, and a digest of the row's key, which
// identifies problem, GPU and codes (tuned_key()). The shard is left out, so that another number of
// shards resumes the same journals.
std::filesystem::path item_journal(const std::filesystem::path& folder, const std::string& label,
                                   const std::string& key);

// Changes a table. Several processes may change it at once (one per GPU), so each reads, changes
// and publishes it under a lock on its folder, and never overwrites rows that it has not seen.

inline constexpr std::chrono::milliseconds kTableLockWait{60'000};

// Reads the table (empty if there is none), publishes and returns what `change` makes of it. Throws
// Error(bad_input) as read_table(), publish_text() and change(), if the file system has no locks,
// and if another process holds the lock for longer than `longest`; the file is then as it was.
TunedTable change_table(const std::filesystem::path& path,
                        const std::function<TunedTable(TunedTable)>& change,
                        std::chrono::milliseconds longest = kTableLockWait);

// Puts the row in place of the row with its key. Throws as change_table(), and for a row that no
// reader takes.
TunedTable put_row(const std::filesystem::path& path, const TunedRow& row,
                   std::chrono::milliseconds longest = kTableLockWait);

// Reads the table and proves that its place can be written: it rewrites the table, or makes and
// removes one beside it. Throws as change_table().
TunedTable writable_table(const std::filesystem::path& path);

// Reads the table, and makes an empty one if there is none. Throws as change_table().
TunedTable made_table(const std::filesystem::path& path);

// The row with a key; null if there is none.
const TunedRow* find_row(const TunedTable& table, const std::string& key);

// Throws Error(bad_input) if the device is of another class than rows for `gpu` would say.
void require_class(const GpuSpec& gpu, const std::optional<GpuSpec>& device);

}  // namespace vqgen
