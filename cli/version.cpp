// vqgen version: the tool's version, as --version says it too.
#include "cli/command.h"

namespace vqgen::cli {

void add_version(CLI::App& app, Output& output) {
  auto* command = app.add_subcommand("version", "Say which version this is");
  command->add_flag("--json", output.json, "One JSON document on stdout");
  command->callback([&output] {
    output.line("vqgen {}", VQGEN_VERSION);
    output.document["version"] = VQGEN_VERSION;
  });
}

}  // namespace vqgen::cli
