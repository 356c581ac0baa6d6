// The folder of temporary files, and whether others can put theirs in the place of what this user
// makes there: code is written to such folders, and run from them.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <string>

namespace vqgen {

// Whether others than its owner can write there: all users, or a group that is not this process's
// own. The own one is let through, since with a umask of 002 it is the user's private group.
bool open_to_others(const struct stat& status);
// Whether it is this user's or root's.
bool is_ours(const struct stat& status);

// Why others could put another folder in the place of one in `folder`, with the remedy; empty where
// they cannot: it is root's or this user's, and it and all above it are sticky if others can write
// there.
std::string unsafe_parent(const std::filesystem::path& folder);

// TMPDIR, or /tmp where that is not set; absolute. Error(bad_input) where it is no folder, or
// unsafe_parent().
std::filesystem::path temporary_folder();

}  // namespace vqgen
