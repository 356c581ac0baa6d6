// NVRTC known by its file: the version that the opened library says, and no guess if names do not
// tell.
#include "runtime/backend/cuda/nvrtc_file.h"

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <fstream>

#include "core/files/files.h"
#include "runtime/backend/cuda/cuda_backend.h"
#include "tests/in_folder.h"
#include "tests/message_of.h"

namespace vqgen {
namespace {

class NvrtcFiles : public test::InFolder {
 protected:
  void elf(const std::string& name, const std::string& rest = "") const {
    publish_text(folder_ / name,
                 "\x7f"
                 "ELF" +
                     rest);
  }
  void link(const std::string& name, const std::string& target) const {
    std::filesystem::create_symlink(target, folder_ / name);
  }
  // "13.0 size 4" for what is found in the folder, or "" if only opening it tells.
  std::string found() const {
    const auto file = find_nvrtc(folder_);
    if (!file) return "";
    return std::to_string(file->major) + "." + std::to_string(file->minor) + " " + file->build;
  }
};

KernelSource kernel() {
  KernelSource source;
  source.op = "probe";
  source.arch = "sm_80";
  source.text = "extern \"C\" __global__ void probe() {}\n";
  source.entries = {{"probe", Dim3{}, 32, 0}};
  return source;
}

TEST_F(NvrtcFiles, TheVersionIsInTheNameOrItsLink) {
  EXPECT_EQ(found(), "");
  elf("libnvrtc.so.12.4.127", "1234");
  link("libnvrtc.so.12", "libnvrtc.so.12.4.127");
  EXPECT_EQ(found(), "12.4 size 8");
  elf("libnvrtc.so.13.0");
  link("libnvrtc.so", "libnvrtc.so.13.0");
  EXPECT_EQ(found(), "12.4 size 8") << "the loader is asked for .12 first";
  link("libnvrtc.so.13", "libnvrtc.so");
  EXPECT_EQ(found(), "13.0 size 4");
  EXPECT_EQ(find_nvrtc(folder_ / "libnvrtc.so.12.4.127")->minor, 4);
}

// NVIDIA's wheels have the version only in the name of the builtins library.
TEST_F(NvrtcFiles, OrInTheNameOfTheOneLibraryBesideIt) {
  elf("libnvrtc.so.12");
  EXPECT_EQ(found(), "");
  elf("libnvrtc-builtins.so.12.6");
  elf("libnvrtc-builtins.so.13.1");
  link("libnvrtc-builtins.so", "libnvrtc-builtins.so.12.6");
  link("libnvrtc-builtins.so.12.6.85", "libnvrtc-builtins.so.12.6");
  EXPECT_EQ(found(), "12.6 size 4");
  elf("libnvrtc-builtins.so.12.8");
  EXPECT_EQ(found(), "") << "two of that major version";
}

// libnvrtc.so.11.2 is the SONAME of 11.2 to 11.8.
TEST_F(NvrtcFiles, TheNameOfElevenIsNotItsVersion) {
  elf("libnvrtc.so.11.2");
  link("libnvrtc.so", "libnvrtc.so.11.2");
  EXPECT_EQ(found(), "");
  elf("libnvrtc-builtins.so.11.8");
  EXPECT_EQ(found(), "11.8 size 4");
  elf("libnvrtc.so.11.5.119");
  EXPECT_EQ(find_nvrtc(folder_ / "libnvrtc.so.11.5.119")->minor, 5);
}

TEST_F(NvrtcFiles, WhatCannotBeToldIsLeftToOpening) {
  publish_text(folder_ / "libnvrtc.so.13.0", "no library");
  link("libnvrtc.so.13", "libnvrtc.so.13.0");
  EXPECT_EQ(found(), "");
  elf("libother.so.13.0");
  EXPECT_FALSE(find_nvrtc(folder_ / "libother.so.13.0").has_value());
  elf("libnvrtc.so.x.y");
  EXPECT_FALSE(find_nvrtc(folder_ / "libnvrtc.so.x.y").has_value());
  elf("libnvrtc.so.99999999999.1");
  EXPECT_FALSE(find_nvrtc(folder_ / "libnvrtc.so.99999999999.1").has_value());
  EXPECT_FALSE(find_nvrtc("libnvrtc.so.13").has_value()) << "the loader knows where";
  EXPECT_FALSE(find_nvrtc(folder_ / "missing.so").has_value());
}

// An installed copy has NVRTC beside the helper if its checkout brought NVRTC along.
TEST_F(NvrtcFiles, TheOneBesideTheHelperIsACandidateWhereItIsThere) {
  const auto has = [&] {
    const auto all = nvrtc_candidates("", folder_);
    return std::find(all.begin(), all.end(), folder_ / "libnvrtc.so.12") != all.end();
  };
  EXPECT_FALSE(has());
  elf("libnvrtc.so.12");
  EXPECT_TRUE(has());
  const auto given = nvrtc_candidates("/elsewhere/libnvrtc.so", folder_);
  EXPECT_EQ(given, std::vector<std::filesystem::path>{"/elsewhere/libnvrtc.so"});
}

TEST(NvrtcIdentity, IsTheSameBeforeAndAfterOpening) {
  const auto backend = make_cuda_backend();
  CompilerIdentity before;
  try {
    before = backend->compiler(kernel());
    backend->compile(kernel());
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const CompilerIdentity after = backend->compiler(kernel());
  EXPECT_EQ(before.name, after.name);
  EXPECT_EQ(before.options, after.options);
}

// The front of the library has its build id. Marked as another machine's, it does not load, so
// opening it would fail.
TEST_F(NvrtcFiles, TheIdentityOpensNothing) {
  const auto real = find_nvrtc("");
  if (!real) GTEST_SKIP() << "NVRTC is missing, or found by the loader alone";
  std::string head(1 << 16, '\0');
  std::ifstream(real->path, std::ios::binary)
      .read(head.data(), static_cast<std::streamsize>(head.size()));
  head[offsetof(Elf64_Ehdr, e_machine)] ^= 0x40;
  publish_text(folder_ / "libnvrtc.so", head);
  elf("libnvrtc-builtins.so." + std::to_string(real->major) + "." + std::to_string(real->minor));
  const auto whole = make_cuda_backend();
  const auto front = make_cuda_backend({.nvrtc_path = folder_.string()});
  if (real->build.starts_with("build-id")) {
    EXPECT_EQ(front->compiler(kernel()).name, whole->compiler(kernel()).name);
  }
  EXPECT_EQ(front->compiler(kernel()).options, whole->compiler(kernel()).options);
  EXPECT_THAT(device_error([&] { front->compile(kernel()); }), ::testing::HasSubstr("libnvrtc.so"));
}

}  // namespace
}  // namespace vqgen
