// vqgen cache: its subcommands, one function each, and what they share.
#pragma once

#include <cstdint>
#include <string>

#include "cli/command.h"
#include "runtime/cache/places.h"

namespace vqgen::cli {

// The cache as the environment places it, its warnings noted.
std::unique_ptr<ArtifactCache> open_cache(const Output& output);
// The user's folder. Error(bad_input) where the environment names none.
std::filesystem::path user_folder();

// "0123456789ab", which is enough to tell one entry from another.
std::string short_digest(const std::string& digest);
// Notes the damage, if there is any, and sets the exit code for it.
void report_damage(std::int64_t damaged, Output& output);

// Puts the faults in the document, names the first on stderr, and sets the exit code for them.
void report_faults(const std::vector<CacheFault>& faults, Output& output);
// Error(bad_input) where kernels of a folder or pack must not be run.
void require_trust(const std::filesystem::path& path, Trust trust);

void cache_ls(Output& output);
void cache_verify(Output& output);
void cache_explain(const std::string& config, const std::string& gpu, Output& output);
void cache_pack(const std::string& out, const std::string& from, Output& output);
void cache_unpack(const std::string& pack, const std::string& to, Output& output);

}  // namespace vqgen::cli
