// vqgen-nvrtc is found from a program and from a library, in a build tree and wherever an installed
// copy was moved.
#include "runtime/backend/cuda/nvrtc_file.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/files/files.h"
#include "tests/in_folder.h"

namespace vqgen {
namespace {

using ::testing::HasSubstr;

// The folder of this program.
std::filesystem::path own_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

class HelperPath : public test::InFolder {
 protected:
  void helper(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder_ / folder);
    publish_text(folder_ / folder / "vqgen-nvrtc", "");
    std::filesystem::permissions(folder_ / folder / "vqgen-nvrtc",
                                 std::filesystem::perms::owner_all);
  }
  // The answer of a library in that folder.
  std::string found_from(const std::filesystem::path& folder) const {
    std::filesystem::create_directories(folder_ / folder);
    const std::filesystem::path library = folder_ / folder / "libprobe.so";
    std::filesystem::copy_file(own_folder() / VQGEN_HELPER_PROBE, library);
    void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return ::dlerror();
    using Probe = const char* (*)();
    return reinterpret_cast<Probe>(::dlsym(handle, "vqgen_probe_helper"))();
  }
};

TEST_F(HelperPath, FromAProgramOfTheBuildTree) {
  EXPECT_EQ(find_nvrtc_helper(""), (own_folder() / "vqgen-nvrtc").string());
}

TEST_F(HelperPath, FromAnInstalledLibraryWhereverItIs) {
  helper("prefix/libexec/vqgen");
  const std::string installed = found_from("prefix/" VQGEN_LIBRARY_FOLDER);
  EXPECT_EQ(installed, (folder_ / "prefix/libexec/vqgen/vqgen-nvrtc").string());
}

TEST_F(HelperPath, FromALibraryOfTheBuildTree) {
  helper("build/bin");
  EXPECT_EQ(found_from("build"), (folder_ / "build/bin/vqgen-nvrtc").string());
}

TEST_F(HelperPath, WhatIsMissingIsNamedWithEachPlace) {
  EXPECT_THAT(found_from("alone/lib"),
              ::testing::AllOf(HasSubstr((folder_ / "alone/lib/vqgen-nvrtc").string()),
                               HasSubstr((folder_ / "alone/libexec/vqgen/vqgen-nvrtc").string()),
                               HasSubstr("VQGEN_NVRTC_HELPER")));
}

// A given path is taken, and no other is tried.
TEST_F(HelperPath, AGivenOneOverridesAll) {
  helper("here");
  const std::string path = (folder_ / "here/vqgen-nvrtc").string();
  EXPECT_EQ(find_nvrtc_helper(path), path);
}

}  // namespace
}  // namespace vqgen
