// What was probably meant by a name that nothing has.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace vqgen {

// Whether the names differ in the case of ASCII letters at most.
bool same_but_case(std::string_view a, std::string_view b);

// "; did you mean 'h200'?", the end of a message: of `names` the first of those that are fewest
// edits from `given`, case aside. An edit inserts, drops or replaces a letter, or swaps two that
// stand together. Empty where each takes more edits than one for three letters.
std::string did_you_mean(std::string_view given, std::span<const std::string> names);

}  // namespace vqgen
