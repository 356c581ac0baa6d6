// The plans that choose() takes for each problem of problems.jsonl on each shipped GPU, as
// choices.txt holds them: the problem, then each plan and the GPUs that take it.
//
//   {"op": "gemv", "dtype": "f16", "shape": {...}, "weights": "aqlm-2x8"}
//     a10 h200: linear_lut/sub_vectors_per_lane=4
//     t4: refused: ...
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace vqgen::test {

// GPU to plan name, or to "refused: " and the reason.
using Choices = std::map<std::string, std::string>;

std::filesystem::path choices_file();

// The lines of problems.jsonl, each a config.
std::vector<std::string> golden_problems();

Choices choices_of(const std::string& problem);

// The choices in the format of the file.
std::string text_of(const std::string& problem, const Choices& choices);

// Problem to choices, read from the file. Throws std::runtime_error, which names an invalid line.
std::map<std::string, Choices> read_choices();

// One line per plan that differs: its GPUs, the old plan and the new one; empty if none differs.
std::string difference(const Choices& was, const Choices& is);

}  // namespace vqgen::test
