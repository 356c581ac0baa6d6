// Names of configs, plans and options that files and scripts from before 0.1.0 have.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace vqgen {

// The present name of `former` among `names`; null if none of its present names is there.
const std::string* present_name(std::string_view former, std::span<const std::string> names);

}  // namespace vqgen
