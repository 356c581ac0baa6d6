// What was probably meant by a name that nothing has.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace vqgen {

// Whether the names differ in the case of ASCII letters at most.
bool same_but_case(std::string_view a, std::string_view b);

// "; did you mean 'h200'?", a part of a message: of `names` the first of those that are fewest
// edits from `given`, case aside. An edit inserts, drops or replaces a letter, or swaps two that
// stand together. Where each takes more edits than one for three letters, the first that begins
// with `given`, else that holds it; empty where none does.
//
// A name from before 0.1.0 (core/former_names.h) whose present name is among `names` gets that one:
// "; it is named 'mma'".
std::string did_you_mean(std::string_view given, std::span<const std::string> names);

// did_you_mean() and what joins it to more of the remedy: "; did you mean 'h200'? Else ", or "; ".
std::string suggest_then(std::string_view given, std::span<const std::string> names);

// "a, b and c more" in place of a list that nobody reads: eight names at most.
std::string few_of(std::span<const std::string> names);

}  // namespace vqgen
