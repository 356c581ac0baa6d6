// The folder of temporary files, and whether others can replace what this user makes there: code is
// written to such folders and run from them.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <string>

namespace vqgen {

// True if others than its owner can write there: all users, or a group that is not this process's
// own. The own group may, since with a umask of 002 it is the user's private group.
bool open_to_others(const struct stat& status);
// True if this user or root owns the folder.
bool is_ours(const struct stat& status);

// Why others could replace a folder in `folder`, with the remedy; empty if they cannot: root or
// this user owns it, and it and its parents are sticky if others can write there.
std::string unsafe_parent(const std::filesystem::path& folder);

// TMPDIR, or /tmp if it is not set; absolute. Throws Error(bad_input) if it is not a folder, or is
// an unsafe_parent().
std::filesystem::path temporary_folder();

}  // namespace vqgen
