// CodeLayout: how the codes of a tensor are stored, in groups of rows and runs of words, by which
// kernels bring words of several rows at once. A fact of the data, which ops of all row counts
// read; so it is part of the format, and no plan's to choose. templates/vq/layout/codes.h has the
// order.
#pragma once

#include <vq/layout/codes.h>

#include <string>

#include "core/json/fields.h"

namespace vqgen {

using vq::CodeLayout;

// Of rows times words: an access.
inline constexpr int kMostRunWords = 4;

// What is wrong with it and the remedy; empty where nothing is.
std::string layout_problem(const CodeLayout& layout);

}  // namespace vqgen
