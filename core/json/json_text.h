// JSON as text, whatever bytes its strings hold.
#pragma once

#include <string>

#include "core/json/json.h"

namespace vqgen {

// The value as ASCII text, in lines where `indent` is 0 or more: terminals find no control
// characters in it. What is no UTF-8, as paths may be, gets a replacement character, where Json's
// own dump() throws.
std::string json_text(const Json& value, int indent = -1);

}  // namespace vqgen
