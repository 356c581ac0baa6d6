// Suggestions for unknown names.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace vqgen {

// True if the names differ at most in the case of ASCII letters.
bool same_but_case(std::string_view a, std::string_view b);

// "; did you mean 'h200'?", a part of a message: the first of `names` with the fewest edits
// (insert, drop, replace, swap neighbours; case aside) from `given`. If all need more than one edit
// per three letters: the first that begins with `given`, else contains it, else "".
// A former name (core/former_names.h) with its present one among `names`: "; it is named 'mma'".
std::string did_you_mean(std::string_view given, std::span<const std::string> names);

// did_you_mean() joined to more of the remedy: "; did you mean 'h200'? Else ", or "; ".
std::string suggest_then(std::string_view given, std::span<const std::string> names);

// "a, b and c more": at most eight names instead of a list that nobody reads.
std::string few_of(std::span<const std::string> names);

}  // namespace vqgen
