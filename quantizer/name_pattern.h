// Names of tensors and modules by patterns with stars.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vqgen {

// What the stars of `pattern` ("layer*.k") match in `name`, each star the shortest text that lets
// the rest match (dots included, possibly empty); nullopt if the name does not match.
std::optional<std::vector<std::string>> match_pattern(std::string_view pattern,
                                                      std::string_view name);

// `pattern` with its stars replaced, in order. Requires as many texts as stars.
std::string fill_pattern(std::string_view pattern, const std::vector<std::string>& texts);

std::size_t star_count(std::string_view pattern);

// The item that a tensor belongs to: its name up to the last dot ("layer0.k" is of "layer0"), or
// all of it where there is none.
std::string item_name(std::string_view tensor);

}  // namespace vqgen
