// Rotated rows against sums in double over matrices that are made here. VQGEN_TEST_BACKEND: host
// (default), race or cuda.
#include "runtime/rotating/rotator.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <vq/args/rotation.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <random>

#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/backend/host/host_backend.h"
#include "tests/kernel_cache.h"
#include "tests/message_of.h"

namespace vqgen {
namespace {

constexpr int kOrders[] = {1, 12, 20, 28, 36, 52, 60, 108, 140, 156, 172};

// The first rows of had.52.will, had.156.will and had.172.will of Sloane's tables.
std::string williamson(int order) {
  if (order == 52) return "+-+--++++--+-+---++++++---++-+--++--+-++----+--+----";
  if (order == 156) {
    return "+++--+-+-----+--++----++--+-----+-+--++++++---+--++----+-+--+-+----++--+---+++++"
           "+--++-+---+-+--+----+--+-+---+-++--+++---++-+-+-----+++-++-+++-----+-+-++---";
  }
  return "+---++--++++-+-+++-++--++-+++-+-++++--++---++-++++++----+-+--++-++-++--+-+----++"
         "++++-++++-+-++--+-+-++++-+----+-++++-+-+--++-+-++++---++++-+--+--++--------++--+"
         "--+-++++---+";
}

bool square(std::int64_t q, std::int64_t number) {  // by Euler's criterion
  std::int64_t power = 1;
  for (std::int64_t i = 0; i < (q - 1) / 2; ++i) power = power * number % q;
  return power == 1;
}

// +1 or -1.
int element(int order, int row, int column) {
  if (order == 1) return 1;
  if (order == 52 || order == 156 || order == 172) {
    static constexpr int from[4][4] = {
        {1, 2, 3, 4}, {-2, 1, -4, 3}, {-3, 4, 1, -2}, {-4, -3, 2, 1}};
    const int size = order / 4, which = from[row / size][column / size];
    const int place = (std::abs(which) - 1) * size + (column + size - row % size) % size;
    const int sign = williamson(order)[static_cast<std::size_t>(place)] == '+' ? 1 : -1;
    return which < 0 ? -sign : sign;
  }
  if (order == 28 || order == 36) {
    const int half = order / 2, i = row % half, j = column % half;
    const int corner = row >= half && column >= half ? -1 : 1;
    if (i == j) return row < half && column < half ? 1 : -1;
    if (i == 0 || j == 0) return corner;
    return square(half - 1, (j - i + half - 1) % (half - 1)) ? corner : -corner;
  }
  if (column == 0 || row == column) return 1;
  return row == 0 || square(order - 1, (column - row + order - 1) % (order - 1)) ? -1 : 1;
}

struct Case {
  RotatorShape shape;
  std::int64_t rows = 1;
};

struct Inputs {
  std::vector<std::uint16_t> x;
  std::vector<float> signs;
};

Inputs draw(const Case& test, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Inputs in;
  for (std::int64_t i = 0; i < test.rows * test.shape.features; ++i) {
    in.x.push_back(element_from_float(test.shape.dtype, normal(random) * (i % 97 == 0 ? 20 : 1)));
  }
  for (std::int64_t i = 0; i < test.shape.features; ++i) {
    in.signs.push_back((random() % 2 == 0 ? -1.0f : 1.0f) * (0.5f + std::abs(normal(random))));
  }
  return in;
}

std::vector<double> expected(const Case& test, const Inputs& in) {
  const std::int64_t features = test.shape.features;
  std::int64_t odd = features;
  while (odd % 2 == 0) odd /= 2;
  const std::int64_t order = odd == 1 ? 1 : 4 * odd, piece = features / order;
  std::vector<double> y;
  for (std::int64_t row = 0; row < test.rows; ++row) {
    std::vector<double> x;
    for (std::int64_t i = 0; i < features; ++i) {
      const auto at = static_cast<std::size_t>(row * features + i);
      const double sign = test.shape.back ? 1.0 : in.signs[static_cast<std::size_t>(i)];
      x.push_back(sign * element_to_float(test.shape.dtype, in.x[at]));
    }
    // Sylvester's within each piece, then the matrix of the order across them.
    std::vector<double> within(x.size());
    for (std::int64_t i = 0; i < features; ++i) {
      for (std::int64_t j = 0; j < piece; ++j) {
        const double value = x[static_cast<std::size_t>(i / piece * piece + j)];
        const auto both = static_cast<std::uint64_t>(i % piece & j);
        within[static_cast<std::size_t>(i)] += std::popcount(both) % 2 == 1 ? -value : value;
      }
    }
    for (std::int64_t i = 0; i < features; ++i) {
      double sum = 0;
      for (std::int64_t from = 0; from < order; ++from) {
        const int a = static_cast<int>(i / piece), b = static_cast<int>(from);
        sum += (test.shape.back ? element(static_cast<int>(order), a, b)
                                : element(static_cast<int>(order), b, a)) *
               within[static_cast<std::size_t>(from * piece + i % piece)];
      }
      const double sign = test.shape.back ? in.signs[static_cast<std::size_t>(i)] : 1.0;
      y.push_back(sum * sign / std::sqrt(static_cast<double>(features)));
    }
  }
  return y;
}

// Relative to the norm; infinity for what is not finite.
double error_of(const std::vector<std::uint16_t>& y, DType dtype,
                const std::vector<double>& wanted) {
  double off = 0, norm = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double value = element_to_float(dtype, y[i]);
    if (!std::isfinite(value)) return INFINITY;
    off += (value - wanted[i]) * (value - wanted[i]);
    norm += wanted[i] * wanted[i];
  }
  return std::sqrt(off / norm);
}

constexpr std::uint16_t kPoison = 0x7fff;  // NaN

class RotatorTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const char* const given = std::getenv("VQGEN_TEST_BACKEND");
    const std::string wanted = given != nullptr ? given : "host";
    const char* const nvrtc = std::getenv("VQGEN_NVRTC");
    backend_ = wanted == "cuda"
                   ? test::keeping_kernels(
                         make_cuda_backend({.nvrtc_path = nvrtc != nullptr ? nvrtc : ""}))
                         .release()
                   : on_host(wanted == "race").release();
  }
  static void TearDownTestSuite() { delete backend_; }
  static std::unique_ptr<Backend> on_host(bool check_races) {
    return test::keeping_kernels(make_host_backend(
        {.order = LaneOrder::random, .seed = 1, .check_races = check_races, .optimize = false}));
  }
  void SetUp() override {
    if (!backend_->device()) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
  }

  // y of all rows, and of one more that is poison before.
  static std::vector<std::uint16_t> rotated(Backend& backend, const Case& test, const Inputs& in) {
    const DeviceBuffer x(backend, in.x.size() * 2), signs(backend, in.signs.size() * 4);
    const std::size_t row = static_cast<std::size_t>(test.shape.features);
    std::vector<std::uint16_t> held(in.x.size() + row, kPoison);
    const DeviceBuffer y(backend, held.size() * 2);
    backend.upload(x.data(), std::as_bytes(std::span(in.x)));
    backend.upload(signs.data(), std::as_bytes(std::span(in.signs)));
    backend.upload(y.data(), std::as_bytes(std::span(held)));
    const Rotator rotator(backend, nullptr, test.shape);
    rotator.enqueue(x.data(), static_cast<const float*>(signs.data()), y.data(), test.rows,
                    nullptr);
    backend.synchronize();
    backend.download(std::as_writable_bytes(std::span(held)), y.data());
    return held;
  }
  static void check(Backend& backend, const Case& test, unsigned seed) {
    SCOPED_TRACE(fmt::format("{} features, {} rows, {}{}", test.shape.features, test.rows,
                             enum_name(test.shape.dtype), test.shape.back ? ", back" : ""));
    const Inputs in = draw(test, seed);
    const std::vector<std::uint16_t> y = rotated(backend, test, in);
    EXPECT_LT(error_of(y, test.shape.dtype, expected(test, in)),
              test.shape.dtype == DType::f16 ? 1e-3 : 8e-3);
    for (std::size_t i = in.x.size(); i < y.size(); ++i) ASSERT_EQ(y[i], kPoison);
  }

  static inline Backend* backend_ = nullptr;
};

TEST_F(RotatorTest, MatricesAreHadamardAndThoseOfTheTables) {
  for (const int order : kOrders) {
    std::vector<std::vector<int>> rows;
    for (int i = 0; i < order; ++i) {
      rows.emplace_back();
      for (int j = 0; j < order; ++j) {
        rows.back().push_back(element(order, i, j));
        ASSERT_EQ(vq::rotation_is_negative(order, i, j), rows.back().back() < 0)
            << order << " " << i << " " << j;
      }
      for (int other = 0; other < i; ++other) {
        ASSERT_EQ(std::inner_product(rows[static_cast<std::size_t>(i)].begin(),
                                     rows[static_cast<std::size_t>(i)].end(),
                                     rows[static_cast<std::size_t>(other)].begin(), 0),
                  0)
            << order;
      }
    }
  }
}

TEST_F(RotatorTest, RowsAreThoseOfTheSums) {
  unsigned seed = 1;
  for (const int order : kOrders) {
    const bool only = order / 4 % 4 == 1;  // one side of most orders
    for (const bool back : {false, true}) {
      if (order != 12 && order != 172 && back != only) continue;
      const DType dtype = seed % 3 == 0 ? DType::bf16 : DType::f16;
      check(*backend_, {{dtype, order << (2 + seed % 3), back}, 1 + seed % 4}, seed);
      ++seed;
    }
  }
}

TEST_F(RotatorTest, LongRowsHaveSeveralBlocks) {
  check(*backend_, {{DType::f16, 4096, false}, 1}, 5);
  check(*backend_, {{DType::bf16, 28 * 256, true}, 1}, 6);
  check(*backend_, {{DType::f16, 172 * 32, true}, 1}, 7);
}

TEST_F(RotatorTest, ManyRowsTakeTurns) {
  check(*backend_, {{DType::f16, 16, true}, 9}, 8);
  check(*backend_, {{DType::f16, 48, false}, 300}, 9);
}

TEST_F(RotatorTest, TheRaceCheckerPassesAll) {
  const std::unique_ptr<Backend> race = on_host(true);
  check(*race, {{DType::f16, 1024, false}, 9}, 10);
  check(*race, {{DType::bf16, 20 * 128, true}, 2}, 11);
  check(*race, {{DType::f16, 12 * 4, true}, 300}, 12);
}

TEST_F(RotatorTest, RefusesOtherSizes) {
  for (const std::int64_t features : {0, -4, 2, 44, 12, 24, 11008 + 64}) {
    const std::string message = message_of(
        [&] {
          require_rotated({DType::f16, features, false});
        },
        ErrorKind::infeasible);
    EXPECT_NE(message.find(fmt::format("no matrix rotates {} features; give 1, 12", features)),
              std::string::npos)
        << message;
  }
}

// An edit of the device text, which the comparison or the race checker has to find.
struct Fault {
  const char* line;
  const char* becomes;
  bool race = false;
};

TEST_F(RotatorTest, SeededFaultsAreFound) {
  const Fault faults[] = {
      {"load(args_.x + row * kFeatures);\n    sync_block();", "load(args_.x + row * kFeatures);",
       true},
      {"butterflies(1 << bit);\n      sync_block();", "butterflies(1 << bit);", true},
      {"if (row != block_y()) sync_block();", "", true},
      {"store_shared(low + step, a - b);", "store_shared(low + step, a + b);"},
      {"(part + j) & block_x()", "(part + j) | block_x()"},
      {"(signs << (31 - bit) & 0x80000000u)", "(signs << (30 - bit) & 0x80000000u)"},
      {"sums[d] * args_.scale * signs[d]", "sums[d] * args_.scale * signs[d] * 1.01f"},
      {"if constexpr (kBack) load_signs(signs, at);", ""},
  };
  for (const Fault& fault : faults) {
    SCOPED_TRACE(fault.line);
    // Blocks take several rows, or rows have several blocks.
    const Case test{{DType::f16, fault.race ? 12 * 16 : 12 * 256, true}, fault.race ? 513 : 2};
    const std::size_t entry = fault.race ? 1 : 0;
    const Inputs in = draw(test, 13);
    const std::vector<double> wanted = expected(test, in);
    const std::unique_ptr<Backend> backend = on_host(fault.race);
    KernelSource source = rotation_source(test.shape, Machine::host, "host");
    const std::size_t at = source.text.find(fault.line);
    ASSERT_NE(at, std::string::npos) << "is not in the text";
    source.text.replace(at, std::string(fault.line).size(), fault.becomes);
    const DeviceBuffer x(*backend, in.x.size() * 2), signs(*backend, in.signs.size() * 4),
        y(*backend, in.x.size() * 2), table(*backend, 12 * 4);
    std::vector<vq::u32> rows(12);
    for (int row = 0; row < 12; ++row) {
      for (int column = 0; column < 12; ++column) {
        if (element(12, row, column) < 0) rows[static_cast<std::size_t>(row)] |= 1u << column;
      }
    }
    backend->upload(x.data(), std::as_bytes(std::span(in.x)));
    backend->upload(signs.data(), std::as_bytes(std::span(in.signs)));
    backend->upload(table.data(), std::as_bytes(std::span(rows)));
    vq::RotationArgs args{};
    args.x = static_cast<const vq::u16*>(x.data());
    args.signs = static_cast<const float*>(signs.data());
    args.table = static_cast<const vq::u32*>(table.data());
    args.y = static_cast<vq::u16*>(y.data());
    args.rows = test.rows;
    args.scale = 1 / std::sqrt(static_cast<float>(test.shape.features));
    args.rows_at_once = static_cast<vq::i32>(source.entries[entry].grid.y);
    bool found = false;
    try {
      const auto kernel = backend->load(backend->compile(source), source);
      backend->launch(*kernel, source, entry, std::as_bytes(std::span(&args, 1)));
      backend->synchronize();
      std::vector<std::uint16_t> out(in.x.size());
      backend->download(std::as_writable_bytes(std::span(out)), y.data());
      found = !(error_of(out, DType::f16, wanted) < 1e-3);
    } catch (const Error& error) {
      EXPECT_TRUE(fault.race) << error.what();
      found = std::string(error.what()).find("race") != std::string::npos;
      EXPECT_TRUE(found) << error.what();
    }
    EXPECT_TRUE(found);
  }
}

TEST_F(RotatorTest, CompilesForGpus) {
  const char* const nvrtc = std::getenv("VQGEN_NVRTC");
  std::unique_ptr<Backend> cuda;
  try {
    cuda = test::keeping_kernels(make_cuda_backend({.nvrtc_path = nvrtc != nullptr ? nvrtc : ""}));
    cuda->compiler(rotation_source({DType::f16, 64, true}, Machine::cuda, "sm_90a"));
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  for (const char* const arch : {"sm_75", "sm_90a"}) {
    for (const RotatorShape& shape :
         {RotatorShape{DType::f16, 28672, true}, RotatorShape{DType::bf16, 8192, false},
          RotatorShape{DType::f16, 11008, false}, RotatorShape{DType::bf16, 22016, true}}) {
      for (const KernelResources& kernel :
           cuda->compile(rotation_source(shape, Machine::cuda, arch)).kernels) {
        EXPECT_EQ(kernel.spill_bytes, 0) << kernel.name << " " << arch;
        EXPECT_LE(kernel.registers, 128) << kernel.name << " " << arch;
      }
    }
  }
}

}  // namespace
}  // namespace vqgen
