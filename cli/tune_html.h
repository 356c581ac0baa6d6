// A tuned sweep as one page: well-formed XML that browsers read as HTML, with its pictures inside,
// without scripts and without anything from elsewhere, in light and dark.
#pragma once

#include <filesystem>
#include <string>

#include "cli/tune_figures.h"

namespace vqgen::cli {

std::string tune_html(const TunedSweep& sweep);

// Publishes it whole. Error(bad_input) as publish_text().
void write_html(const std::filesystem::path& path, const TunedSweep& sweep);

}  // namespace vqgen::cli
