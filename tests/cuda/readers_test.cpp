// The readers of the compiler's output: ptxas logs and ELF notes, good and hostile.
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "core/files/files.h"
#include "runtime/backend/cuda/nvrtc_compile.h"
#include "runtime/backend/cuda/nvrtc_file.h"

namespace vqgen {
namespace {

constexpr const char* kLog = R"(ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    328 bytes stack frame, 536 bytes spill stores, 540 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 328 bytes cumulative stack size
ptxas info    : Compiling entry function 'first_b' for 'sm_90a'
ptxas info    : Function properties for first_b
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 512 bytes smem, 360 bytes cmem[0]
)";

TEST(PtxasLog, ReadsTheSectionOfTheEntry) {
  const auto first = read_ptxas_log(kLog, "first");
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(*first, (KernelResources{"first", 64, 0, 1076}));
  const auto second = read_ptxas_log(kLog, "first_b");
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(*second, (KernelResources{"first_b", 12, 512, 0}));
}

TEST(PtxasLog, SilentLogGivesNothing) {
  EXPECT_FALSE(read_ptxas_log("", "first").has_value());
  EXPECT_FALSE(read_ptxas_log(kLog, "firs").has_value());
  EXPECT_FALSE(read_ptxas_log("Compiling entry function 'first' for", "first").has_value());
  EXPECT_FALSE(read_ptxas_log("Compiling entry function 'k'\nUsed 99999999999999 registers", "k"));
}

// No fsync, unlike publish_file: these tests write hundreds.
void write(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

class BuildId : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(::testing::TempDir()) /
            (std::string("vqgen_elf_") +
             ::testing::UnitTest::GetInstance()->current_test_info()->name());
  }
  void TearDown() override { std::filesystem::remove(path_); }
  std::filesystem::path path_;
};

// The head of a library with the note, which every distribution's libm has.
std::vector<std::byte> elf_head() {
  for (const char* path : {"/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6"}) {
    if (!std::filesystem::exists(path)) continue;
    std::vector<std::byte> content = read_file(path);
    content.resize(std::min<std::size_t>(content.size(), 4096));
    return content;
  }
  return {};
}

TEST_F(BuildId, FoundInALibraryAndStable) {
  const auto head = elf_head();
  if (head.empty()) GTEST_SKIP() << "no libm to read";
  write(path_, head);
  const auto id = gnu_build_id(path_);
  ASSERT_TRUE(id.has_value());
  EXPECT_EQ(id->size(), 40u);
  EXPECT_EQ(gnu_build_id(path_), id);
}

TEST_F(BuildId, AbsentWhereThereIsNoElf) {
  EXPECT_FALSE(gnu_build_id(path_).has_value());
  EXPECT_FALSE(gnu_build_id(::testing::TempDir()).has_value());
  publish_text(path_, "");
  EXPECT_FALSE(gnu_build_id(path_).has_value());
  publish_text(path_, std::string(5000, 'x'));
  EXPECT_FALSE(gnu_build_id(path_).has_value());
}

TEST_F(BuildId, TruncatedAndDamagedFilesAreReadWithinBounds) {
  const auto head = elf_head();
  if (head.empty()) GTEST_SKIP() << "no libm to read";
  for (std::size_t bytes = 0; bytes < 1024; bytes += 7) {
    write(path_, std::span(head).first(bytes));
    gnu_build_id(path_);
  }
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    auto damaged = head;
    for (int i = 0; i < 8; ++i) damaged[random() % 1024] = static_cast<std::byte>(random());
    write(path_, damaged);
    gnu_build_id(path_);
  }
}

}  // namespace
}  // namespace vqgen
