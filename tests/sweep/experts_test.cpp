// MoE GEMMs: each expert equals its GEMM alone, to the bit; experts do not affect each other or
// rows of no expert; invalid offsets write nowhere else; kernels that take another expert's data
// are found.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "generator/generate.h"
#include "runtime/ops/linear/reference.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"
#include "tests/sweep/sequences.h"

namespace vqgen::test {
namespace {

struct Made {
  const char* name;
  Linear op;
  Plan plan;
};

Linear product(int rows, int index_bits, int num_codebooks = 1, int experts = 5,
               int total_rows = 20) {
  Linear op = small_product(rows, index_bits, num_codebooks);
  op.shape.experts = experts;
  op.shape.total_rows = total_rows;
  return op;
}

// Split or not; merged by a kernel, the last block and clusters; blocks of rows full, partial and
// empty; more experts than lanes, and more than can have rows.
std::vector<Made> all_made() {
  constexpr Combine kLast = Combine::last_block;
  Linear bytes = product(13, 8, 2);
  with_integers(bytes.weights, true);
  bytes.weights.common_scale = true;
  Linear channels = product(6, 6, 1, 70, 20);
  channels.weights.scope = Scope::channel_group;
  channels.weights.group_channels = 128;
  channels.weights.stage_scales = true;
  const Placement near = all_shared(256);
  return {
      {"simt", channels,
       LinearSimt{.threads = 64, .chunk_columns = 128, .splits = 2, .rows_per_block = 4}},
      {"lanes, last block", product(13, 6),
       LinearSimt{.threads = 64, .chunk_columns = 128, .splits = 2, .combine = kLast}},
      {"lut", product(7, 6), LinearLut{.threads = 64, .outputs_per_warp = 16, .rows_per_block = 4}},
      {"mma", product(13, 8, 2),
       LinearMma{.threads = 64, .chunk_columns = 128, .splits = 3, .rows_per_block = 8}},
      {"fragments of one row, last block", product(1, 8, 2, 128, 9),
       LinearMma{.threads = 64,
                 .outputs_per_warp = 8,
                 .chunk_columns = 128,
                 .splits = 2,
                 .combine = kLast,
                 .rows_per_block = 4,
                 .fragment_rows = 4}},
      {"wgmma", product(13, 8),
       LinearWgmma{.threads = 128, .chunk_columns = 128, .rows_per_block = 8}},
      {"wgmma_large_m", product(13, 8, 2),
       LinearWgmmaLargeM{.threads = 128,
                         .chunk_columns = 128,
                         .splits = 2,
                         .rows_per_block = 8,
                         .code_words = 1}},
      {"rowgroups, cluster", product(13, 8, 2),
       LinearWgmmaLargeM{.threads = 128,
                         .chunk_columns = 128,
                         .splits = 3,
                         .combine = Combine::cluster,
                         .rows_per_block = 8,
                         .code_words = 1}},
      {"bytegroups, cluster", bytes,
       LinearInt8Wgmma{.threads = 128,
                       .splits = 2,
                       .combine = Combine::cluster,
                       .rows_per_block = 8,
                       .code_words = 1,
                       .codebook = near}},
      {"sliced_codebook", product(13, 8),
       LinearSlicedCodebook{.threads = 64, .columns_per_block = 1024, .rows_per_block = 4}},
      {"int8_mma", bytes,
       LinearInt8Mma{.threads = 64,
                     .outputs_per_warp = 16,
                     .chunk_columns = 256,
                     .splits = 2,
                     .code_words = 1,
                     .codebook = near}},
      {"bytegroups, last block", bytes,
       LinearInt8Wgmma{.threads = 128,
                       .splits = 2,
                       .combine = kLast,
                       .rows_per_block = 8,
                       .code_words = 1,
                       .codebook = near}},
      {"bytegroups, x by each block", bytes,
       LinearInt8Wgmma{.threads = 128,
                       .splits = 2,
                       .combine = Combine::cluster,
                       .prepack_x = 0,
                       .rows_per_block = 8,
                       .code_words = 1,
                       .codebook = near}},
  };
}

// The data of expert e as a single matrix's.
LinearData alone(const LinearData& data, std::size_t e) {
  LinearData own = data;
  const std::int64_t experts = data.weights.heads;
  const auto number = static_cast<std::int64_t>(e);
  QuantizedTensor& weights = own.weights;
  weights.heads = 1;
  weights.units = weights.expert_units;
  weights.expert_units = 0;
  weights.codes = part_of(data.weights.codes, number, experts);
  weights.codebooks = part_of(data.weights.codebooks, number, experts);
  weights.stage_scales = part_of(data.weights.stage_scales, number, experts);
  weights.output_scales = part_of(data.weights.output_scales, number, experts);
  own.input_rows = data.expert_rows[e + 1] - data.expert_rows[e];
  own.x = {data.x.begin() + data.expert_rows[e] * weights.columns,
           data.x.begin() + data.expert_rows[e + 1] * weights.columns};
  own.expert_rows.clear();
  return own;
}

// Experts in another order, with their rows: place i has expert order[i].
LinearData reordered(const LinearData& data, const std::vector<std::size_t>& order) {
  LinearData result = data;
  QuantizedTensor& weights = result.weights;
  for (auto* each : {&weights.stage_scales, &weights.output_scales}) each->clear();
  weights.codes.clear(), weights.codebooks.clear(), result.x.clear();
  std::vector<std::int32_t> rows;
  for (const std::size_t e : order) {
    const LinearData own = alone(data, e);
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(weights.codes, own.weights.codes);
    append(weights.codebooks, own.weights.codebooks);
    append(weights.stage_scales, own.weights.stage_scales);
    append(weights.output_scales, own.weights.output_scales);
    append(result.x, own.x);
    rows.push_back(static_cast<std::int32_t>(own.input_rows));
  }
  result.expert_rows = offsets_of(rows);
  return result;
}

class Experts : public testing::TestWithParam<std::size_t> {
 protected:
  void SetUp() override {
    if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
    const Verdict verdict = check(made_.plan, as_problem(made_.op), sweep_gpu());
    if (needs_warpgroups(made_.plan) && !verdict.ok && !sweep_gpu().warpgroup_products) {
      GTEST_SKIP() << verdict.reason;
    }
    ASSERT_TRUE(verdict.ok) << verdict.reason;
    data_ = make_linear_data(made_.op, {.seed = GetParam() + 41, .lengths = LengthPattern::ragged});
    kernel_ = std::make_unique<Kernel>(backend(), as_problem(made_.op), made_.plan, sweep_gpu());
  }

  Backend& backend() const { return *sweep_backend(GetParam()); }
  std::size_t outputs() const { return static_cast<std::size_t>(made_.op.shape.out_features); }
  std::vector<std::uint16_t> rows_of(const std::vector<std::uint16_t>& y, const LinearData& data,
                                     std::size_t e) const {
    return {y.begin() + data.expert_rows[e] * made_.op.shape.out_features,
            y.begin() + data.expert_rows[e + 1] * made_.op.shape.out_features};
  }
  // The data with these offsets, which no call need have.
  LinearData with_offsets(std::vector<std::int32_t> offsets) const {
    LinearData data = data_;
    data.expert_rows = std::move(offsets);
    return data;
  }

  const Made made_ = all_made()[GetParam()];
  LinearData data_;
  std::unique_ptr<Kernel> kernel_;
};

TEST_P(Experts, EachIsTheProductThatItIsAlone) {
  SCOPED_TRACE(made_.name);
  const std::vector<std::uint16_t> y = kernel_->run(data_);
  const Comparison compared = compare(reference_linear(data_), y, made_.op.dtype);
  EXPECT_TRUE(compared.ok) << compared.rel_err;
  Linear one = made_.op;
  one.shape.experts = one.shape.total_rows = 0;
  Kernel of_one(backend(), as_problem(one), made_.plan, sweep_gpu());
  for (const std::size_t e : experts_with_rows(data_)) {
    EXPECT_EQ(of_one.run(alone(data_, e)), rows_of(y, data_, e)) << "expert " << e;
  }
}

TEST_P(Experts, InAnotherOrderHaveTheSameRows) {
  SCOPED_TRACE(made_.name);
  const std::vector<std::uint16_t> y = kernel_->run(data_);
  std::vector<std::size_t> order;
  for (std::size_t e = data_.expert_rows.size() - 1; e > 0; --e) order.push_back(e - 1);
  std::swap(order.front(), order[order.size() / 2]);
  const LinearData other = reordered(data_, order);
  const std::vector<std::uint16_t> z = kernel_->run(other);
  for (std::size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(rows_of(z, other, i), rows_of(y, data_, order[i])) << "expert " << order[i];
  }
}

TEST_P(Experts, WhatIsNoNumberStaysWithItsExpert) {
  SCOPED_TRACE(made_.name);
  const std::vector<std::uint16_t> y = kernel_->run(data_);
  const std::vector<std::size_t> some = experts_with_rows(data_);
  LinearData bad = data_;
  const auto columns = made_.op.shape.in_features;
  for (std::int64_t i = bad.expert_rows[some[0]] * columns;
       i < bad.expert_rows[some[0] + 1] * columns; ++i) {
    bad.x[static_cast<std::size_t>(i)] = i % 2 == 0 ? 0x7e00 : 0x7c00;  // NaN, infinity
  }
  // Codebooks and scales of experts without rows are not read.
  for (std::size_t e = 0; e + 1 < bad.expert_rows.size(); ++e) {
    if (std::find(some.begin(), some.end(), e) != some.end()) continue;
    const auto experts = bad.expert_rows.size() - 1;
    const auto spoil = [&](auto& all, auto value) {
      const auto size = static_cast<std::ptrdiff_t>(all.size() / experts);
      std::fill_n(all.begin() + static_cast<std::ptrdiff_t>(e) * size, size, value);
    };
    spoil(bad.weights.codebooks, std::uint16_t{0x7e00});
    spoil(bad.weights.output_scales, std::numeric_limits<float>::quiet_NaN());
  }
  const std::vector<std::uint16_t> z = kernel_->run(bad);
  for (const std::size_t e : some) {
    if (e == some[0]) continue;
    EXPECT_EQ(rows_of(z, data_, e), rows_of(y, data_, e)) << "expert " << e;
  }
}

// Rows before the first offset and after the last, and rows beyond an expert's limit.
TEST_P(Experts, RowsOfNoneAreLeftAlone) {
  SCOPED_TRACE(made_.name);
  LinearData data = data_;
  const std::int32_t most = made_.op.shape.rows;
  data.input_rows = most + 4;
  data.x.resize(static_cast<std::size_t>(data.input_rows * made_.op.shape.in_features));
  for (const int count : {0, 1, most, most + 2}) {
    std::vector<std::int32_t> rows(data_.expert_rows.size() - 1);
    rows.back() = count;
    data.expert_rows = offsets_of(rows);
    for (std::int32_t& offset : data.expert_rows) offset += 2;
    const std::vector<std::uint16_t> y = kernel_->run(data);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const auto row = static_cast<std::int32_t>(i / outputs());
      const bool written = row >= 2 && row < 2 + std::min(count, most);
      ASSERT_EQ(y[i] == 0xffff, !written) << "row " << row << " of " << count;
    }
  }
}

// The host backend reports any access outside of x and y.
TEST_P(Experts, OffsetsThatAreNoneWriteNowhereElse) {
  SCOPED_TRACE(made_.name);
  const std::size_t count = data_.expert_rows.size();
  constexpr std::int32_t kLow = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kHigh = std::numeric_limits<std::int32_t>::max();
  for (const int kind : {0, 1, 2}) {
    std::vector<std::int32_t> offsets(count);
    for (std::size_t i = 0; i < count; ++i) {
      offsets[i] = kind == 0   ? static_cast<std::int32_t>(count - i)
                   : kind == 1 ? (i % 2 == 0 ? kLow : kHigh)
                               : static_cast<std::int32_t>(7919 * i) - 9000;
    }
    EXPECT_EQ(std::ssize(kernel_->run(with_offsets(offsets))),
              data_.input_rows * made_.op.shape.out_features);
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Experts, testing::Range(std::size_t{0}, all_made().size()),
                         [](const auto& each) { return test_name(all_made()[each.param].name); });

}  // namespace
}  // namespace vqgen::test
