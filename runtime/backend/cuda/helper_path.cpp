#include "runtime/backend/cuda/helper_path.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "core/error.h"

namespace vqgen {
namespace {

// Relative to the folder of the code, or absolute, in the order of trial.
constexpr const char* kPlaces[] = {VQGEN_NVRTC_HELPER_PLACES};

// The folder of the program or shared library that this code is linked into.
std::filesystem::path own_folder() {
  Dl_info info{};
  void* extra = nullptr;
  std::error_code ignored;
  const auto* const here = reinterpret_cast<const void*>(&own_folder);
  const bool told = ::dladdr1(here, &info, &extra, RTLD_DL_LINKMAP) != 0;
  const char* const library = told ? static_cast<const link_map*>(extra)->l_name : "";
  // The loader has no name for the program itself, and argv[0] may be any.
  const bool program = *library == '\0';
  const std::filesystem::path file = program
                                         ? std::filesystem::read_symlink("/proc/self/exe", ignored)
                                         : std::filesystem::canonical(library, ignored);
  return file.parent_path();
}

}  // namespace

std::string find_nvrtc_helper(const std::string& given) {
  std::vector<std::string> tried;
  if (!given.empty()) {
    tried = {given};
  } else {
    const std::filesystem::path folder = own_folder();
    for (const char* place : kPlaces) {
      tried.push_back((folder / place / "vqgen-nvrtc").lexically_normal().string());
    }
  }
  for (const std::string& path : tried) {
    std::error_code ignored;
    const bool file = std::filesystem::is_regular_file(path, ignored);
    if (file && ::access(path.c_str(), X_OK) == 0) return std::filesystem::absolute(path).string();
  }
  throw Error(ErrorKind::device,
              fmt::format("vqgen-nvrtc, the program in which NVRTC runs, was not found; tried {}; "
                          "install vqgen whole, or set VQGEN_NVRTC_HELPER to it",
                          fmt::join(tried, ", ")));
}

std::filesystem::path nvrtc_helper_folder(const std::string& given) {
  try {
    return std::filesystem::path(find_nvrtc_helper(given)).parent_path();
  } catch (const Error&) {
    return {};  // who needs it says so
  }
}

}  // namespace vqgen
