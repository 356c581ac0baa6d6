// Sweeps: the problems of a whole model as one file, expanded to a list of work.
//
//   {"model": {"name": "...", "source": "..."}, "dtype": "f16",
//    "formats": {"weights": ["aqlm-2x8"], "kv": [{"keys": "cq-4c8b", "values": "cq-4c8b"}]},
//    "ops": [{"name": "o_proj", "weight": 32,
//             "shape": {"rows": [1, 8, 64], "out_features": 4096, "in_features": 4096}}]}
//
// Any size may be a list. An op is attention where its shape has tokens, else gemv for up to 8 rows
// and gemm above; "op" fixes it. The list is the product of sizes and formats: ops in the order of
// the file, then sizes in the order of the shape's fields, then formats.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/problem/config.h"

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
  std::string name;                    // the model's, or the config file's
  std::vector<WorkItem> items;         // at least one; no problem twice
  std::vector<SkippedItem> skipped;    // for the caller to tell of
  std::optional<std::string> gpu;      // as in the config; a sweep names none
  std::optional<std::string> hotness;  // likewise
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

}  // namespace vqgen
