// Whether code may be loaded from a place: only where nobody but its owner can put or change it.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace vqgen {

// Whether others than its owner can write there: all users, or a group that is not this process's
// own. The own one is let through, since with a umask of 002 it is the user's private group.
bool open_to_others(const struct stat& status);
// Whether it is this user's or root's.
bool is_ours(const struct stat& status);

// own: the user's folder, which must be the user's or root's. named: a folder or pack of
// VQGEN_CACHE_PATH, whose owner is trusted by naming it, so that nobody else may be able to put
// another in its place.
enum class Trust { own, named };
// Why kernels of `path` must not be run, with the remedy; empty where they may be, and where there
// is nothing.
std::string distrust(const std::filesystem::path& path, Trust trust);

// Makes the folder and those above it that are missing, which others cannot write to whatever the
// umask is.
std::error_code make_closed_folders(const std::filesystem::path& folder);

}  // namespace vqgen
