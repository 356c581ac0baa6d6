// The rows of tuned tables that may serve a problem, by how far they are from it: the ladder's
// rungs, the nearest first. Whether one is fit to be borrowed is judged in ladder.cpp.
#pragma once

#include <string>
#include <vector>

#include "core/gpu/gpu_spec.h"
#include "heuristics/tuned/tables.h"

namespace vqgen {

// Where a plan comes from. override: the config's own fields, the rest chosen around them. exact to
// family: a row of a tuned table, for
//   exact    this problem, device class and codes
//   codes    other codes
//   dtype    the other element type of 16 bits, whose kernels move the same bytes as fast
//   bucket   another number of tokens (attention) or rows (products), up to twice or half as many
//   nearest  other sizes: kMostSteps doublings in all; equal are op, element type, formats,
//            head_dim, query heads of a KV head, window, sinks and shared_cache
//   family   this problem on another device class of the same architecture
// model and rules: the chooser.
enum class Rung { override, exact, codes, dtype, bucket, nearest, family, model, rules };
template <>
inline constexpr auto enum_names<Rung> = std::array{
    "override", "exact", "codes", "dtype", "bucket", "nearest", "family", "model", "rules"};

// Of rung nearest: the sum over the sizes of |log2(there / here)|, a factor of 4 in all. A
// judgement, not a measurement: 4096x4096 may borrow from 14336x4096 or 1024x4096, its like in the
// same model, and not from 28672x8192.
inline constexpr double kMostSteps = 2;

struct Neighbour {
  Rung rung = Rung::exact;
  FoundRow found = {};
  TunedRow row = {};         // read when it is judged
  double steps = 0;          // of its rung; 0 for exact, codes, dtype and bucket's own size
  std::string differs = {};  // "tokens 8192 instead of 4096; codes zipf:1 instead of uniform"
  std::string refused = {};  // why it is not borrowed
};

// Rows of exactly this problem on the rungs exact, codes and family; those of the same problem with
// the other element type on dtype; those of other sizes on bucket and nearest. In the order in
// which they are to be tried: by rung, steps, the larger size, nearer codes, the earlier table, the
// key. None of the rows is read yet.
std::vector<Neighbour> same_problem(const TunedTables& tables, const Problem& problem,
                                    const GpuSpec& gpu, const std::string& codes);
std::vector<Neighbour> other_dtype(const TunedTables& tables, const Problem& problem,
                                   const GpuSpec& gpu, const std::string& codes);
std::vector<Neighbour> other_sizes(const TunedTables& tables, const Problem& problem,
                                   const GpuSpec& gpu, const std::string& codes);

}  // namespace vqgen
