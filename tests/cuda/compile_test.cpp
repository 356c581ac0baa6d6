// The machine layer under NVRTC and nvcc for every architecture, and what compile() reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "runtime/backend/cuda/cuda_backend.h"
#include "tests/cuda/amalgamate.h"
#include "tests/cuda/primitives_kernel.h"
#include "tests/message_of.h"

namespace vqgen {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kArchs[] = {"sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"};

KernelSource primitives(const std::string& arch) {
  return test::one_kernel(test::kPrimitivesKernel, "vq_primitives", arch, test::kPrimitiveThreads,
                          test::kPrimitiveSharedBytes, sizeof(test::PrimitivesArgs));
}

// Every machine that builds these tests with a toolkit has NVRTC; one with wheels may lack it.
class CudaCompile : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      backend_->compiler(primitives("sm_90a"));
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::device) << error.what();
      GTEST_SKIP() << error.what();
    }
  }
  // NVRTC knows Blackwell from 12.8 on; older versions must say that they do not.
  bool knows(const std::string& arch) {
    try {
      backend_->compile(primitives(arch));
      return true;
    } catch (const Error& error) {
      const std::string refusal = error.what();
      if (refusal.find("cannot compile for '" + arch + "'") == refusal.npos) throw;
      std::printf("left out: %s\n", refusal.c_str());
      return false;
    }
  }
  std::unique_ptr<Backend> backend_ = make_cuda_backend();
};

TEST_F(CudaCompile, EveryPrimitiveForEveryArchitecture) {
  for (const char* arch : kArchs) {
    SCOPED_TRACE(arch);
    if (!knows(arch)) continue;
    const Artifact artifact = backend_->compile(primitives(arch));
    ASSERT_EQ(artifact.kernels.size(), 1u);
    EXPECT_EQ(artifact.kernels[0].name, "vq_primitives");
    EXPECT_GT(artifact.kernels[0].registers, 8);
    EXPECT_EQ(artifact.kernels[0].static_shared_bytes, 0);
    EXPECT_EQ(artifact.kernels[0].spill_bytes, 0);
    EXPECT_GT(artifact.compile_ms, 0);
    ASSERT_GT(artifact.binary.size(), 64u);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(artifact.binary.data()), 4),
              "\x7f"
              "ELF");
  }
}

TEST_F(CudaCompile, EveryCollectiveForEveryArchitecture) {
  for (const char* arch : kArchs) {
    SCOPED_TRACE(arch);
    if (!knows(arch)) continue;
    const Artifact artifact = backend_->compile(test::collectives_source(arch));
    ASSERT_EQ(artifact.kernels.size(), 3u);
    for (const KernelResources& kernel : artifact.kernels) EXPECT_EQ(kernel.spill_bytes, 0);
  }
}

TEST_F(CudaCompile, ProductsThatAnArchitectureLacksSayWhatTheyNeed) {
  const auto with = [](const std::string& call) {
    return test::one_kernel(
        "struct A { float* p; };\nVQ_KERNEL(k, 32, A) {\n  float c[4] = {};\n  vq::i32 d[4] = {};\n"
        "  vq::u32 a[4] = {}, b[2] = {};\n  " +
            call + "\n  args.p[0] = c[0] + d[0];\n}\n",
        "k", "sm_75", 32, 0, 8);
  };
  backend_->compile(with("vq::mma_m16n8k16<vq::Element::f16>(c, a, b);"));
  EXPECT_THAT(device_error([&] {
                backend_->compile(with("vq::mma_m16n8k16<vq::Element::bf16>(c, a, b);"));
              }),
              HasSubstr("bf16 needs sm_80"));
  EXPECT_THAT(device_error([&] { backend_->compile(with("vq::mma_m16n8k32_s8(d, a, b);")); }),
              HasSubstr("needs sm_80"));
}

TEST_F(CudaCompile, ProductsOfWarpGroupsAreHoppersAlone) {
  for (const test::GroupProduct& product : test::group_products()) {
    SCOPED_TRACE(product.name());
    const Artifact artifact = backend_->compile(test::group_source(product, "sm_90a"));
    ASSERT_EQ(artifact.kernels.size(), 1u);
    EXPECT_EQ(artifact.kernels[0].spill_bytes, 0);
  }
  for (const char* arch : {"sm_89", "sm_100", "sm_120"}) {
    if (!knows(arch)) continue;
    EXPECT_THAT(
        device_error([&] {
          backend_->compile(test::group_source(test::GroupProduct(false, false, 8, true), arch));
        }),
        HasSubstr("needs sm_90a"));
  }
}

TEST_F(CudaCompile, BulkCopiesBeginWithHopper) {
  for (const char* arch : {"sm_90a", "sm_100", "sm_120"}) {
    if (!knows(arch)) continue;
    EXPECT_EQ(backend_->compile(test::bulk_source(arch)).kernels.size(), 1u) << arch;
  }
  EXPECT_THAT(device_error([&] { backend_->compile(test::bulk_source("sm_89")); }),
              HasSubstr("bulk copies need sm_90"));
}

TEST_F(CudaCompile, ClustersBeginWithHopper) {
  for (const char* arch : {"sm_90a", "sm_100", "sm_120"}) {
    if (!knows(arch)) continue;
    EXPECT_EQ(backend_->compile(test::cluster_source(arch)).kernels.size(), 1u) << arch;
  }
}

// nvcc is slow, so only the two forms of the text are compiled: without cp.async and with it.
TEST_F(CudaCompile, SameTextByNvcc) {
  if (std::system("nvcc --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no nvcc on PATH";
  const std::filesystem::path folder = ::testing::TempDir();
  const std::string stem = (folder / "vqgen_primitives").string();
  const std::string more = test::collectives_source("").text;
  publish_text(stem + ".cu", primitives("").text + more.substr(more.rfind("#line 1 ")));
  for (const char* arch : {"sm_75", "sm_90a"}) {
    const std::string command = std::string("nvcc -arch=") + arch + " -c " + stem + ".cu -o " +
                                stem + ".o > " + stem + ".log 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << command << '\n' << read_text(stem + ".log");
    EXPECT_EQ(read_text(stem + ".log"), "") << "warnings for " << arch;
  }
}

TEST_F(CudaCompile, ResourcesOfEachEntryAndStaticShared) {
  KernelSource source = test::one_kernel(R"(
struct A { float* p; };
VQ_KERNEL(plain, 32, A) { args.p[vq::thread_index()] = 1.0f; }
VQ_KERNEL(with_shared, 64, A) {
  __shared__ float s[128];
  s[vq::thread_index()] = args.p[vq::thread_index()];
  vq::sync_block();
  args.p[vq::thread_index()] = s[63 - vq::thread_index()];
}
// 1024 threads leave 64 registers a thread; 200 live values spill.
VQ_KERNEL(spilling, 1024, A) {
  float v[200];
  VQ_UNROLL
  for (int i = 0; i < 200; ++i) v[i] = args.p[i * 1024 + vq::thread_index()];
  vq::sync_block();
  VQ_UNROLL
  for (int i = 0; i < 200; ++i) args.p[(199 - i) * 1024 + vq::thread_index()] = v[i];
})",
                                         "with_shared", "sm_90a", 64, 0, 8);
  source.entries.push_back({"spilling", Dim3{}, 1024, 0});
  source.entries.push_back({"plain", Dim3{}, 32, 0});
  const Artifact artifact = backend_->compile(source);
  ASSERT_EQ(artifact.kernels.size(), 3u);
  EXPECT_EQ(artifact.kernels[0].name, "with_shared");
  EXPECT_EQ(artifact.kernels[0].static_shared_bytes, 512);
  EXPECT_EQ(artifact.kernels[0].spill_bytes, 0);
  EXPECT_EQ(artifact.kernels[1].name, "spilling");
  EXPECT_GT(artifact.kernels[1].spill_bytes, 500);
  EXPECT_LE(artifact.kernels[1].registers, 64);
  EXPECT_EQ(artifact.kernels[2].name, "plain");
  EXPECT_EQ(artifact.kernels[2].static_shared_bytes, 0);
}

TEST_F(CudaCompile, SecondCompilationReportsTheSame) {
  const KernelSource source = primitives("sm_80");
  const Artifact first = backend_->compile(source);
  const Artifact second = backend_->compile(source);
  EXPECT_EQ(first.kernels, second.kernels);
  EXPECT_EQ(first.binary, second.binary);
}

TEST_F(CudaCompile, FromSeveralThreads) {
  std::vector<Artifact> artifacts(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < artifacts.size(); ++i) {
    threads.emplace_back(
        [&, i] { artifacts[i] = backend_->compile(primitives(i % 2 == 0 ? "sm_75" : "sm_89")); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(artifacts[0].binary, artifacts[2].binary);
  EXPECT_EQ(artifacts[1].binary, artifacts[3].binary);
  EXPECT_NE(artifacts[0].binary, artifacts[1].binary);
}

TEST_F(CudaCompile, ErrorNamesTheLineAndKeepsTextAndLog) {
  const KernelSource source = test::one_kernel(
      "struct A { float* p; };\nVQ_KERNEL(broken, 32, A) {\n  undeclared = 1;\n}\n", "broken",
      "sm_90a", 32, 0, 8);
  const std::string message = device_error([&] { backend_->compile(source); });
  EXPECT_THAT(message, AllOf(HasSubstr("kernel.cuh(3): error"), HasSubstr("undeclared"),
                             HasSubstr("sm_90a")));
  const std::size_t begin = message.find("kept in ") + 8;
  const std::string text_path = message.substr(begin, message.find(' ', begin) - begin);
  EXPECT_EQ(read_text(text_path), source.text);
  const std::string log_path = message.substr(message.rfind(' ') + 1);
  EXPECT_THAT(read_text(log_path), HasSubstr("undeclared"));
  std::filesystem::remove(text_path);
  std::filesystem::remove(log_path);
}

TEST_F(CudaCompile, EntryThatTheTextLacks) {
  KernelSource source = primitives("sm_90a");
  source.entries[0].name = "vq_primitive";
  EXPECT_THAT(device_error([&] { backend_->compile(source); }), HasSubstr("'vq_primitive'"));
}

TEST_F(CudaCompile, UnsupportedArchitecture) {
  for (const char* arch : {"sm_30", "sm_", "90a", "sm_999", "sm_9x", ""}) {
    EXPECT_THAT(
        device_error([&] { backend_->compile(primitives(arch)); }),
        AllOf(HasSubstr("cannot compile for '" + std::string(arch) + "'"), HasSubstr("sm_90")));
  }
  EXPECT_THAT(device_error([&] { backend_->compile(primitives("sm_80a")); }), HasSubstr("sm_80a"));
}

TEST_F(CudaCompile, TextForTheHostIsRefused) {
  KernelSource source = primitives("sm_90a");
  source.machine = Machine::host;
  EXPECT_THROW(backend_->compile(source), Error);
}

TEST_F(CudaCompile, IdentityHasVersionBuildAndOptions) {
  const CompilerIdentity identity = backend_->compiler(primitives("sm_86"));
  EXPECT_THAT(identity.name,
              ::testing::MatchesRegex("nvrtc [0-9]+\\.[0-9]+ (build-id|size) [0-9a-f]+"));
  EXPECT_THAT(identity.options, ::testing::Contains("--gpu-architecture=sm_86"));
}

TEST(CudaCompiler, MissingNvrtcSaysWhereItWasLookedFor) {
  const auto backend = make_cuda_backend({.nvrtc_path = "/nowhere/libnvrtc.so.13"});
  const KernelSource source = primitives("sm_90a");
  for (const std::string& message : {device_error([&] { backend->compile(source); }),
                                     device_error([&] { backend->compiler(source); })}) {
    EXPECT_THAT(message, AllOf(HasSubstr("/nowhere/libnvrtc.so.13"), HasSubstr("install")));
  }
  const auto in_folder = make_cuda_backend({.nvrtc_path = ::testing::TempDir()});
  EXPECT_THAT(device_error([&] { in_folder->compile(source); }),
              AllOf(HasSubstr("libnvrtc.so.13"), HasSubstr("libnvrtc.so.12")));
}

TEST(CudaCompiler, FileThatDoesNotLoadSaysWhy) {
  const std::string path = ::testing::TempDir() + "/vqgen_no_library.so";
  publish_text(path, "no library");
  const auto backend = make_cuda_backend({.nvrtc_path = path});
  EXPECT_THAT(device_error([&] { backend->compile(primitives("sm_90a")); }),
              HasSubstr("file too short"));
  std::filesystem::remove(path);
}

TEST(CudaCompiler, LibraryThatIsNotNvrtcIsNamed) {
  const auto backend = make_cuda_backend({.nvrtc_path = "libm.so.6"});
  EXPECT_THAT(device_error([&] { backend->compile(primitives("sm_90a")); }),
              AllOf(HasSubstr("libm.so.6 has no nvrtcVersion"), HasSubstr("not NVRTC"),
                    HasSubstr("VQGEN_NVRTC")));
}

}  // namespace
}  // namespace vqgen
