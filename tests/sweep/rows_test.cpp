// A kernel made for more rows reads and writes only the rows of the call, in each dataflow, and a
// kernel that takes one too many is found.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "generator/generate.h"
#include "runtime/ops/linear/reference.h"
#include "tests/message_of.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

struct Made {  // for `op.shape.rows`, and called with fewer
  const char* name;
  Linear op;
  Plan plan;
};

// Blocks of rows that a call fills, fills in part and leaves empty; merged by a kernel, the last
// block or clusters, or not split.
std::vector<Made> all_made() {
  constexpr Combine kLast = Combine::last_block, kCluster = Combine::cluster;
  Linear integers = small_product(13, 8);
  with_integers(integers.weights, true);
  Linear bytes = small_product(70, 8, 2);
  with_integers(bytes.weights, true);
  bytes.weights.common_scale = true;
  const Linear lanes = small_product(13, 6), octets = small_product(48, 8, 2);
  return {
      {"simt", lanes, LinearSimt{.threads = 64, .chunk_columns = 128, .splits = 2}},
      {"lanes, last block", lanes,
       LinearSimt{.threads = 64, .chunk_columns = 128, .splits = 2, .combine = kLast}},
      {"lut", small_product(7, 6),
       LinearLut{.threads = 64, .outputs_per_warp = 16, .rows_per_block = 4}},
      {"tables, last block", small_product(8, 6),
       LinearLut{.threads = 64, .outputs_per_warp = 16, .combine = kLast, .rows_per_block = 8}},
      {"fragments of 8 rows", octets,
       LinearMma{.threads = 64, .chunk_columns = 128, .splits = 3, .rows_per_block = 16}},
      {"fragments of 8 rows, some of no block", small_product(37, 8, 2),
       LinearMma{.threads = 64,
                 .chunk_columns = 128,
                 .splits = 3,
                 .combine = kLast,
                 .rows_per_block = 16}},
      {"fragments of 4 rows", small_product(8, 8),
       LinearMma{.threads = 64,
                 .outputs_per_warp = 8,
                 .chunk_columns = 128,
                 .rows_per_block = 8,
                 .fragment_rows = 4}},
      {"wgmma", octets,
       LinearWgmma{.threads = 128, .chunk_columns = 128, .splits = 2, .rows_per_block = 16}},
      {"warpgroups, last block", small_product(21, 8),
       LinearWgmma{.threads = 128,
                   .chunk_columns = 128,
                   .splits = 2,
                   .combine = kLast,
                   .rows_per_block = 32}},
      {"warpgroups, cluster", small_product(21, 8),
       LinearWgmma{.threads = 128,
                   .chunk_columns = 128,
                   .splits = 3,
                   .combine = kCluster,
                   .rows_per_block = 8}},
      {"bytegroups, cluster", bytes,
       LinearInt8Wgmma{.threads = 128,
                       .splits = 2,
                       .combine = kCluster,
                       .rows_per_block = 32,
                       .code_words = 1,
                       .codebook = all_shared(256)}},
      {"bytegroups, x by each block", bytes,
       LinearInt8Wgmma{.threads = 128,
                       .splits = 2,
                       .combine = kCluster,
                       .prepack_x = 0,
                       .rows_per_block = 32,
                       .code_words = 1,
                       .codebook = all_shared(256)}},
      {"rowgroups, cluster", octets,
       LinearWgmmaLargeM{.threads = 128,
                         .chunk_columns = 128,
                         .splits = 4,
                         .combine = kCluster,
                         .rows_per_block = 16,
                         .code_words = 1}},
      {"wgmma_large_m", octets,
       LinearWgmmaLargeM{.threads = 128,
                         .chunk_columns = 128,
                         .splits = 2,
                         .rows_per_block = 16,
                         .code_words = 1}},
      {"rowgroups of bytes, last block", bytes,
       LinearWgmmaLargeM{.threads = 128,
                         .chunk_columns = 128,
                         .splits = 2,
                         .combine = kLast,
                         .rows_per_block = 32,
                         .byte_sums = 1,
                         .codebook = all_shared(256)}},
      {"sliced_codebook", small_product(13, 8),
       LinearSlicedCodebook{.threads = 64, .columns_per_block = 1024, .rows_per_block = 4}},
      {"slices of integers, last block", integers,
       LinearSlicedCodebook{.threads = 64,
                            .columns_per_block = 1024,
                            .entry_slices = 2,
                            .combine = kLast,
                            .rows_per_block = 4}},
  };
}

class Rows : public testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override {
    if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
    const Verdict verdict = check(made_.plan, problem(), sweep_gpu());
    if (needs_warpgroups(made_.plan) && !verdict.ok && !sweep_gpu().warpgroup_products) {
      GTEST_SKIP() << verdict.reason;
    }
    ASSERT_TRUE(verdict.ok) << verdict.reason;
    source_ = generate(problem(), made_.plan, sweep_gpu(), sweep_backend()->machine(), {});
    all_ = make_linear_data(made_.op, {.seed = GetParam() + 71});
  }

  Problem problem() const {
    return made_.op.shape.rows > 8 ? Problem(Gemm{made_.op}) : Gemv{made_.op};
  }

  std::unique_ptr<LoadedKernel> loaded(const KernelSource& source) const {
    Backend& backend = *sweep_backend(GetParam());
    return backend.load(backend.compile(source), source);
  }

  LinearData first(int rows) const {
    LinearData data = all_;
    data.input_rows = rows;
    data.x.resize(static_cast<std::size_t>(rows * made_.op.shape.in_features));
    return data;
  }

  // y of a call with exactly its rows of x and y: the host backend reports any access beyond them,
  // and guards show writes on a GPU.
  std::vector<std::uint16_t> exact(LoadedKernel& kernel, int rows) const {
    Backend& backend = *sweep_backend(GetParam());
    const LinearData data = first(rows);
    DeviceCall call(backend, made_.op, data, {}, {}, backend.machine() == Machine::cuda ? 4096 : 0);
    launch_all(backend, kernel, source_, call.args(made_.plan).front());
    call.require_kept();
    EXPECT_EQ(call.take_damage(), std::nullopt);
    return call.linear_output();
  }

  // y with room for all rows, poisoned; x has NaN and infinity outside of the call's rows.
  std::vector<std::uint16_t> roomy(LoadedKernel& kernel, int rows) const {
    Backend& backend = *sweep_backend(GetParam());
    constexpr std::uint16_t kNan = 0x7e00, kInfinity = 0x7c00;
    LinearData data = all_;
    for (std::size_t i = first(rows).x.size(); i < data.x.size(); ++i) {
      data.x[i] = i % 2 == 0 ? kNan : kInfinity;
    }
    DeviceCall call(backend, made_.op, data);
    auto bytes = call.args(made_.plan).front();
    vq::LinearArgs args;
    std::memcpy(&args, bytes.data(), sizeof(args));
    args.rows = rows;
    std::memcpy(bytes.data(), &args, sizeof(args));
    launch_all(backend, kernel, source_, bytes);
    call.require_kept();
    return call.linear_output();
  }
  // Elements of roomy()'s y that were written outside of the call's rows.
  std::ptrdiff_t written_beyond(const std::vector<std::uint16_t>& y, int rows) const {
    return std::count_if(y.begin() + rows * made_.op.shape.out_features, y.end(),
                         [](std::uint16_t each) { return each != 0xffff; });
  }

  // Row counts from 1 to the kernel's maximum, without multiples of 8 among the random ones.
  std::vector<int> counts() const {
    std::mt19937 random(std::random_device{}());
    const int most = made_.op.shape.rows;
    std::vector<int> counts{1, most - 1, most};
    for (int i = 0; i < 6; ++i) {
      counts.push_back(std::uniform_int_distribution(1, most)(random));
      if (counts.back() % 8 == 0) counts.back() -= 1;
    }
    return counts;
  }

  const Made made_ = all_made()[GetParam()];
  KernelSource source_;
  LinearData all_;
};

TEST_P(Rows, AreReadAndWrittenAsTheCallHasThem) {
  SCOPED_TRACE(made_.name);
  const auto kernel = loaded(source_);
  for (const int rows : counts()) {
    SCOPED_TRACE(rows);
    const std::vector<std::uint16_t> y = exact(*kernel, rows);
    const Comparison compared = compare(reference_linear(first(rows)), y, made_.op.dtype);
    EXPECT_TRUE(compared.ok) << compared.rel_err;
    const std::vector<std::uint16_t> among = roomy(*kernel, rows);
    EXPECT_TRUE(std::equal(y.begin(), y.end(), among.begin())) << "other rows of x count";
    EXPECT_EQ(written_beyond(among, rows), 0);
  }
}

TEST_P(Rows, OneTooManyIsFound) {
  SCOPED_TRACE(made_.name);
  KernelSource wrong = source_;
  const std::string right = "return args.rows;";
  ASSERT_NE(wrong.text.find(right), std::string::npos);
  wrong.text.replace(wrong.text.find(right), right.size(), "return args.rows + 1;");
  const auto kernel = loaded(wrong);
  const int rows = made_.op.shape.rows / 2;
  EXPECT_EQ(written_beyond(roomy(*kernel, rows), rows), made_.op.shape.out_features);
  if (sweep_backend()->machine() == Machine::cuda) return;  // on a GPU the access is not a fault
  message_of([&] { exact(*kernel, rows); }, ErrorKind::device);
}

INSTANTIATE_TEST_SUITE_P(Of, Rows, testing::Range(std::size_t{0}, all_made().size()),
                         [](const auto& each) { return test_name(all_made()[each.param].name); });

// If a kernel is made for one row, it ignores the argument.
TEST(OneRow, IsNotAskedFor) {
  if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
  Backend& backend = *sweep_backend();
  const Gemv op{small_product(1, 8)};
  const Plan plan = rules_plan(LinearSimt{}, op, sweep_gpu());
  const LinearData data = make_linear_data(op, {.seed = 9});
  const KernelSource source = generate(op, plan, sweep_gpu(), backend.machine(), {});
  const auto kernel = backend.load(backend.compile(source), source);
  DeviceCall call(backend, op, data);
  auto bytes = call.args(plan).front();
  vq::LinearArgs args;
  std::memcpy(&args, bytes.data(), sizeof(args));
  args.rows = 77;
  std::memcpy(bytes.data(), &args, sizeof(args));
  launch_all(backend, *kernel, source, bytes);
  const Comparison compared = compare(reference_linear(data), call.linear_output(), op.dtype);
  EXPECT_TRUE(compared.ok) << compared.rel_err;
}

}  // namespace
}  // namespace vqgen::test
