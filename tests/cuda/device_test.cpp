// What the backend does with a GPU, and what it says without one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "core/format/element.h"
#include "core/gpu/gpu_arch.h"
#include "runtime/backend/cuda/cuda_backend.h"
#include "tests/cuda/amalgamate.h"
#include "tests/cuda/primitives_kernel.h"
#include "tests/message_of.h"

namespace vqgen {
namespace {

using ::testing::HasSubstr;

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

template <class T>
DeviceBuffer to_device(Backend& backend, const std::vector<T>& values) {
  DeviceBuffer buffer(backend, values.size() * sizeof(T));
  backend.upload(buffer.data(), std::as_bytes(std::span(values)));
  return buffer;
}

template <class T>
std::vector<T> from_device(Backend& backend, const DeviceBuffer& buffer) {
  std::vector<T> values(buffer.bytes() / sizeof(T));
  backend.download(std::as_writable_bytes(std::span(values)), buffer.data());
  return values;
}

TEST(CudaWithoutDevice, SaysWhatIsMissing) {
  const auto backend = make_cuda_backend();
  if (backend->device()) GTEST_SKIP() << "there is a device";
  EXPECT_THAT(device_error([&] { backend->allocate(16); }),
              ::testing::AnyOf(HasSubstr("no CUDA driver"), HasSubstr("no CUDA device"),
                               HasSubstr("cuInit")));
  EXPECT_THAT(device_error([&] { backend->synchronize(); }), HasSubstr("CUDA"));
  backend->release(nullptr);
}

TEST(CudaWithoutDevice, NumberOutOfRange) {
  const auto backend = make_cuda_backend({.nvrtc_path = "", .device = 1000});
  EXPECT_FALSE(backend->device().has_value());
  EXPECT_THROW(backend->allocate(16), Error);
}

class CudaOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto spec = backend_->device();
    if (!spec) GTEST_SKIP() << device_error([&] { backend_->allocate(16); });
    spec_ = *spec;
  }
  std::unique_ptr<Backend> backend_ = make_cuda_backend();
  GpuSpec spec_;
};

TEST_F(CudaOnDevice, SpecIsFilled) {
  EXPECT_FALSE(spec_.name.empty());
  EXPECT_TRUE(spec_.arch.starts_with("sm_"));
  EXPECT_GT(spec_.sms, 0);
  EXPECT_GE(spec_.registers_per_sm, 65536);
  EXPECT_GE(spec_.max_threads_per_sm, 1024);
  EXPECT_GE(spec_.max_blocks_per_sm, 16);
  EXPECT_GE(spec_.shared_bytes_per_block, 64 * 1024);
  EXPECT_GE(spec_.shared_bytes_per_sm, spec_.shared_bytes_per_block);
  EXPECT_GT(spec_.l2_bytes, 1 << 20);
  EXPECT_GT(spec_.memory_bytes, std::int64_t{1} << 30);
  EXPECT_GT(spec_.sm_clock_mhz, 500);
  std::printf("%s %s: %d SMs, %.0f GB/s, %.0f MHz, shared %d/%d reserved %d, L2 %lld\n",
              spec_.name.c_str(), spec_.arch.c_str(), spec_.sms, spec_.memory_gbps,
              spec_.sm_clock_mhz, spec_.shared_bytes_per_block, spec_.shared_bytes_per_sm,
              spec_.shared_bytes_reserved, static_cast<long long>(spec_.l2_bytes));
}

TEST_F(CudaOnDevice, MemoryIsAlignedAndKeepsItsBytes) {
  std::vector<std::uint32_t> values(1001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint32_t>(i * i);
  const DeviceBuffer buffer = to_device(*backend_, values);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 256, 0u);
  EXPECT_EQ(from_device<std::uint32_t>(*backend_, buffer), values);
  const DeviceBuffer none(*backend_, 0);
  const DeviceBuffer other(*backend_, 0);
  EXPECT_NE(none.data(), nullptr);
  EXPECT_NE(none.data(), other.data());
  backend_->upload(none.data(), {});
  EXPECT_THAT(device_error([&] { backend_->allocate(std::size_t{1} << 50); }),
              HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"));
}

// Floats around every rounding boundary of both 16-bit types, and random bits.
std::vector<float> rounding_inputs() {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 65536; ++high) {
    for (const std::uint32_t low : {0x0000u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u,
                                    0xefffu, 0xf000u, 0xf001u, 0xffffu}) {
      values.push_back(std::bit_cast<float>(high << 16 | low));
    }
    values.push_back(std::bit_cast<float>(high * 2654435761u));
  }
  return values;
}

void expect_same_float(float host, float device, std::size_t at) {
  if (std::isnan(host)) {
    EXPECT_TRUE(std::isnan(device)) << at;
  } else {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(host), std::bit_cast<std::uint32_t>(device)) << at;
  }
}

TEST_F(CudaOnDevice, PrimitivesAgreeWithTheHost) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<std::uint32_t> words(test::kWords);
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = static_cast<std::uint32_t>(i) * 2654435761u;
  }
  const std::vector<float> floats = rounding_inputs();

  const DeviceBuffer halves_buffer = to_device(*backend_, halves);
  const DeviceBuffer floats_buffer = to_device(*backend_, floats);
  const DeviceBuffer words_buffer = to_device(*backend_, words);
  const DeviceBuffer widened(*backend_, 2 * 65536 * sizeof(float));
  const DeviceBuffer narrowed(*backend_, 2 * floats.size() * sizeof(std::uint16_t));
  const DeviceBuffer moved(*backend_, test::kMovedWords * sizeof(std::uint32_t));
  const DeviceBuffer sums(*backend_, 5 * test::kWords * sizeof(std::uint32_t));
  const DeviceBuffer math(*backend_, 4 * 128 * sizeof(float));
  const test::PrimitivesArgs args{static_cast<const std::uint16_t*>(halves_buffer.data()),
                                  static_cast<const float*>(floats_buffer.data()),
                                  static_cast<const std::uint32_t*>(words_buffer.data()),
                                  static_cast<float*>(widened.data()),
                                  static_cast<std::uint16_t*>(narrowed.data()),
                                  static_cast<std::uint32_t*>(moved.data()),
                                  static_cast<std::uint32_t*>(sums.data()),
                                  static_cast<float*>(math.data()),
                                  static_cast<std::int32_t>(floats.size())};
  const KernelSource source =
      test::one_kernel(test::kPrimitivesKernel, "vq_primitives", spec_.arch,
                       test::kPrimitiveThreads, test::kPrimitiveSharedBytes, sizeof args);
  const auto kernel = backend_->load(backend_->compile(source), source);
  backend_->launch(*kernel, source, 0, bytes_of(args));
  backend_->synchronize();

  const auto wide = from_device<float>(*backend_, widened);
  for (std::size_t i = 0; i < 65536; ++i) {
    expect_same_float(f16_to_float(halves[i]), wide[i], i);
    expect_same_float(bf16_to_float(halves[i]), wide[65536 + i], i);
  }
  const auto narrow = from_device<std::uint16_t>(*backend_, narrowed);
  for (std::size_t i = 0; i < floats.size(); ++i) {
    const std::uint16_t f16 = narrow[i];
    const std::uint16_t bf16 = narrow[floats.size() + i];
    if (std::isnan(floats[i])) {  // the payload and sign of a NaN are the machine's own
      EXPECT_TRUE(std::isnan(f16_to_float(f16)) && std::isnan(bf16_to_float(bf16))) << i;
      continue;
    }
    EXPECT_EQ(f16, f16_from_float(floats[i])) << floats[i];
    EXPECT_EQ(bf16, bf16_from_float(floats[i])) << floats[i];
  }

  const auto out = from_device<std::uint32_t>(*backend_, moved);
  for (std::size_t copy = 0; copy < 3; ++copy) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      EXPECT_EQ(out[copy * words.size() + i], words[i]) << copy << ' ' << i;
    }
  }
  const auto pair_sums = from_device<std::uint32_t>(*backend_, sums);
  for (std::size_t i = 0; i < 4 * words.size(); ++i) {
    const DType dtype = i / words.size() % 2 == 0 ? DType::f16 : DType::bf16;
    const std::size_t at = i % words.size();
    for (const int half : {0, 16}) {
      const auto value = [&](std::uint32_t word) {
        return element_to_float(dtype, static_cast<std::uint16_t>(word >> half));
      };
      const float other = value(words[(at + 7) % words.size()]);
      const float third = value(words[(at + 11) % words.size()]);
      const float sum = i < 2 * words.size()
                            ? value(words[at]) + other
                            : vq::host::fused_to_odd(value(words[at]), other, third);
      const float expected = element_to_float(dtype, element_from_float(dtype, sum));
      expect_same_float(expected, value(pair_sums[i]), i);
    }
  }
  for (std::size_t i = 0; i < words.size(); ++i) {
    EXPECT_EQ(pair_sums[4 * words.size() + i], (words[i] & 0x00f000f0u) | 0x64006400u) << i;
  }
  const auto results = from_device<float>(*backend_, math);
  for (std::size_t t = 0; t < 128; ++t) {
    const auto section = [&](std::size_t i) { return out[1536 + 128 * i + t]; };
    EXPECT_EQ(section(0), t);
    EXPECT_EQ(section(1), t % 32);
    EXPECT_EQ(section(2), t / 32);
    EXPECT_EQ(section(3) + section(4) + section(5), 0u);
    EXPECT_EQ(section(6), words[t] + (t ^ 1));  // both neighbours' exchange returns the own word
    const double exponent = -0.5 * static_cast<double>(t);
    EXPECT_NEAR(results[t], t == 127 ? 0.0 : std::exp2(exponent), 4e-7 * std::exp2(exponent));
    if (t == 0) {
      EXPECT_EQ(results[128], -std::numeric_limits<float>::infinity());
    } else {
      EXPECT_NEAR(results[128 + t], std::log2(static_cast<double>(t)), 2e-6);
    }
    EXPECT_EQ(results[256 + t], std::numeric_limits<float>::infinity());
    const float warp_sum = static_cast<float>(32 * 32 * (t / 32) + 31 * 16);
    EXPECT_EQ(results[384 + t], warp_sum);
  }
}

// The output of entry `entry` of a source for `in`, over a poison.
std::vector<std::uint32_t> run_words(Backend& backend, const KernelSource& source,
                                     std::size_t entry, const std::vector<std::uint32_t>& in,
                                     std::size_t out_words) {
  const auto kernel = backend.load(backend.compile(source), source);
  const DeviceBuffer input = to_device(backend, in);
  const DeviceBuffer output =
      to_device(backend, std::vector<std::uint32_t>(out_words, 0xffffffffu));
  const std::array args{input.data(), output.data()};
  backend.launch(*kernel, source, entry, std::as_bytes(std::span(args)));
  backend.synchronize();
  return from_device<std::uint32_t>(backend, output);
}

std::vector<std::uint32_t> run_collectives(Backend& backend, const std::string& arch,
                                           std::size_t entry, const std::vector<std::uint32_t>& in,
                                           std::size_t out_words) {
  return run_words(backend, test::collectives_source(arch), entry, in, out_words);
}

// Sums of reals may differ from the host's: a GPU adds in another order and truncates its terms.
TEST_F(CudaOnDevice, CollectivesAgreeWithNaiveMatrices) {
  for (const bool bf16 : {false, true}) {
    for (const bool integers : {true, false}) {
      for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        const test::Collectives values(bf16, integers, seed);
        const auto out =
            run_collectives(*backend_, spec_.arch, bf16 ? 1 : 0, values.in, test::kCollectivesOut);
        values.judge(out, integers ? 0.0 : 1e-5);
        const bool turing = spec_.arch == "sm_75";
        EXPECT_EQ(out[test::kOutHas], turing && bf16 ? 0u : 1u);
        EXPECT_EQ(out[test::kOutHas + 1], turing ? 0u : 1u);
      }
    }
  }
}

TEST_F(CudaOnDevice, LastBlockReducesWhatTheOthersStored) {
  for (int turn = 0; turn < 5; ++turn) {
    test::judge_last_block(
        run_collectives(*backend_, spec_.arch, 2, test::last_block_in(), test::kLastOut));
  }
}

TEST_F(CudaOnDevice, ProductsOfWarpGroupsAgreeWithSumsOfIntegers) {
  if (!spec_.warpgroup_products) GTEST_SKIP() << spec_.name << " has none";
  for (const test::GroupProduct& product : test::group_products()) {
    product.judge(run_words(*backend_, test::group_source(product, spec_.arch), 0, product.in,
                            product.out_words()));
  }
}

TEST_F(CudaOnDevice, BulkCopiesBringEveryRound) {
  if (!has_bulk_copies(spec_.arch)) GTEST_SKIP() << spec_.name << " has none";
  for (int turn = 0; turn < 5; ++turn) {
    test::judge_bulk(
        run_words(*backend_, test::bulk_source(spec_.arch), 0, test::bulk_in(), test::kBulkOut));
  }
}

TEST_F(CudaOnDevice, WarpsWaitForThoseThatArrive) {
  if (!has_bulk_copies(spec_.arch)) GTEST_SKIP() << spec_.name << " has none";
  for (int turn = 0; turn < 5; ++turn) {
    test::judge_bulk(
        run_words(*backend_, test::made_source(spec_.arch), 0, test::bulk_in(), test::kBulkOut));
  }
}

TEST_F(CudaOnDevice, BlocksOfAClusterLoadFromEachOther) {
  if (!has_clusters(spec_.arch)) GTEST_SKIP() << spec_.name << " has none";
  for (int turn = 0; turn < 5; ++turn) {
    test::judge_cluster(run_words(*backend_, test::cluster_source(spec_.arch), 0,
                                  test::cluster_in(), test::kClusterWords));
  }
}

struct StoreArgs {
  std::uint32_t* out;
};

constexpr const char* kStoreKernel = R"(
struct StoreArgs { vq::u32* out; };
VQ_KERNEL(vq_store, 64, StoreArgs) {
  using namespace vq;
  u32* const last = reinterpret_cast<u32*>(shared_memory() + 60 * 1024);
  store_shared(last + thread_index(), static_cast<u32>(7 + block_x() * 1000 + block_y() * 100));
  sync_block();
  const int at = (block_y() * 2 + block_x()) * 64 + thread_index();
  store_global(args.out + at, load_shared(last + 63 - thread_index()));
}
)";

KernelSource store_source(const std::string& arch) {
  KernelSource source =
      test::one_kernel(kStoreKernel, "vq_store", arch, 64, 60 * 1024 + 256, sizeof(StoreArgs));
  source.entries[0].grid = {2, 3, 1};
  return source;
}

TEST_F(CudaOnDevice, GridAndSharedMemoryBeyondTheDefault) {
  const KernelSource source = store_source(spec_.arch);
  const auto kernel = backend_->load(backend_->compile(source), source);
  const DeviceBuffer out(*backend_, 6 * 64 * sizeof(std::uint32_t));
  const StoreArgs args{static_cast<std::uint32_t*>(out.data())};
  backend_->launch(*kernel, source, 0, bytes_of(args));
  backend_->synchronize();
  const auto values = from_device<std::uint32_t>(*backend_, out);
  for (std::uint32_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i], 7 + i / 64 % 2 * 1000 + i / 128 * 100) << i;
  }
}

TEST_F(CudaOnDevice, WrongArgumentsAndDamagedBinaryAreErrors) {
  KernelSource source = store_source(spec_.arch);
  const Artifact artifact = backend_->compile(source);
  const auto kernel = backend_->load(artifact, source);
  const std::uint32_t small = 0;
  EXPECT_THROW(backend_->launch(*kernel, source, 0, bytes_of(small)), Error);
  KernelSource lying = source;
  lying.args_bytes = 4;
  EXPECT_THAT(device_error([&] { backend_->load(artifact, lying); }),
              HasSubstr("8 bytes of arguments, not 4"));
  KernelSource misnamed = source;
  misnamed.entries[0].name = "vq_stor";
  EXPECT_THAT(device_error([&] { backend_->load(artifact, misnamed); }),
              HasSubstr("cuModuleGetFunction on vq_stor: CUDA_ERROR_NOT_FOUND"));
  KernelSource too_many = source;
  too_many.entries[0].threads = 128;
  EXPECT_THAT(device_error([&] { backend_->load(artifact, too_many); }), HasSubstr("128 threads"));
  KernelSource too_much = source;
  too_much.entries[0].shared_bytes = 1 << 20;
  EXPECT_THAT(device_error([&] { backend_->load(artifact, too_much); }),
              HasSubstr("1048576 bytes"));
  Artifact damaged = artifact;
  std::fill(damaged.binary.begin(), damaged.binary.end(), std::byte{0});
  EXPECT_THAT(device_error([&] { backend_->load(damaged, source); }),
              HasSubstr("cuModuleLoadData"));
}

// Runs in a child process: an illegal access loses the context for good.
TEST_F(CudaOnDevice, FaultNamesCallCodeAndKernel) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // CUDA does not survive a fork without exec
  EXPECT_EXIT(
      {
        const auto backend = make_cuda_backend();
        const KernelSource source = store_source(spec_.arch);
        const auto kernel = backend->load(backend->compile(source), source);
        const StoreArgs args{reinterpret_cast<std::uint32_t*>(256)};
        backend->launch(*kernel, source, 0, bytes_of(args));
        try {
          backend->synchronize();
        } catch (const Error& error) {
          std::fprintf(stderr, "%s\n", error.what());
          std::_Exit(error.exit_code());
        }
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(5), "cuStreamSynchronize.*'vq_store'.*CUDA_ERROR_ILLEGAL_ADDRESS");
}

}  // namespace
}  // namespace vqgen
