// The built vqgen on a terminal.
#pragma once

#include "tests/cli/tool.h"

namespace vqgen {

// Runs vqgen() with a terminal of 80 columns as stderr; `err` is all that was written to it.
Outcome vqgen_on_terminal(const Arguments& arguments, const Variables& variables);

}  // namespace vqgen
