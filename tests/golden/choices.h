// What choose() takes for each problem of problems.jsonl on each GPU that ships, as choices.txt
// holds it: the problem, then each plan and the GPUs that take it.
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

// The part of the file that holds them.
std::string text_of(const std::string& problem, const Choices& choices);

// Problem to choices, by the file. Throws std::runtime_error that names a line that is none of its.
std::map<std::string, Choices> read_choices();

// A line for each plan that differs, with its GPUs, what was and what is; empty where none does.
std::string difference(const Choices& was, const Choices& is);

}  // namespace vqgen::test
