// How signals end the tool.
#pragma once

namespace vqgen::cli {

// From here on SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGPIPE end this process as they always do, but
// after its leftovers (core/json/leftovers.h); those that the caller ignores, as nohup does, stay
// ignored. A file that grows past its limit is an error of the write. Called once, first thing in
// main().
void end_cleanly_on_signals();

}  // namespace vqgen::cli
