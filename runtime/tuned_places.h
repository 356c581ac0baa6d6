// Where tuned tables are found, from the environment as the caller read it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "heuristics/tuned/tables.h"

namespace vqgen {

// The variables that decide; empty ones count as unset.
struct TunedEnvironment {
  std::optional<std::string> vqgen_tuned_path = {};  // VQGEN_TUNED_PATH
  std::optional<std::string> xdg_data_home = {};     // XDG_DATA_HOME
  std::optional<std::string> home = {};              // HOME
};

// XDG_DATA_HOME/vqgen/tuned, else HOME/.local/share/vqgen/tuned; relative values count as unset
// (XDG's rule). nullopt without either.
std::optional<std::filesystem::path> default_tuned_dir(const TunedEnvironment& environment);

// The user's tables in the order they are asked: VQGEN_TUNED_PATH's files and the *.jsonl files of
// its folders by name, else those of the default folder, which need not exist. A path that is named
// and is not there is given as it is, for reading it to say so.
std::vector<std::filesystem::path> table_files(const TunedEnvironment& environment);

// The user's tables, then those that ship. Error(bad_input) for a damaged one with Damage::fail.
std::shared_ptr<const TunedTables> find_tables(const TunedEnvironment& environment, Damage damage);

}  // namespace vqgen
