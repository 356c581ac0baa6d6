// Where vqgen-nvrtc stands: beside the code that asks, in a build tree and in an installed copy,
// wherever that was moved to.
#pragma once

#include <filesystem>
#include <string>

namespace vqgen {

// `given` where it is not empty; else the first that is there of places beside the program or
// library that holds this function, and below the prefix that was configured. Error(device), with
// what was tried, where there is none.
std::string find_nvrtc_helper(const std::string& given);

// The folder of that; empty where there is none.
std::filesystem::path nvrtc_helper_folder(const std::string& given);

}  // namespace vqgen
