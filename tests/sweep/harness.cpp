#include "tests/sweep/harness.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "core/problem/config.h"
#include "core/profiles.h"
#include "generator/generate.h"
#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/backend/host/host_backend.h"
#include "runtime/ops/attention_decode/reference.h"
#include "runtime/ops/linear/reference.h"
#include "runtime/verify/row_decoder.h"
#include "tests/kernel_cache.h"
#include "tests/verify/linear_cancellation.h"

namespace vqgen::test {
namespace {

std::string_view wanted_backend() {
  const char* wanted = std::getenv("VQGEN_TEST_BACKEND");
  const std::string_view name = wanted != nullptr ? wanted : "host";
  if (name != "host" && name != "race" && name != "cuda") {
    throw Error(ErrorKind::bad_input, "VQGEN_TEST_BACKEND must be host, race or cuda");
  }
  return name;
}

// The smallest alignment that the library accepts.
Misalignment misalignment_of(const SweepCase& sweep_case) {
  Misalignment least = least_alignment(call_shape(sweep_case.plan, sweep_case.problem));
  if (sweep_case.aligned_results) least.results = 16;
  return least;
}

std::string describe(const Comparison& comparison, const char* what) {
  if (comparison.ok) return "";
  return fmt::format("{}: rel_err {:.3e}, local {:.3e} at {}, {} not finite; ", what,
                     comparison.rel_err, comparison.max_local_err, comparison.worst,
                     comparison.nonfinite_mismatches);
}

// How much the terms of the scores outweigh `reference`, at least 1, as linear_cancellation() does
// for GEMMs: the few tokens of a short sequence may have scores near 0 from large terms.
double attention_cancellation(const AttentionData& data, const AttentionResult& reference,
                              double scale) {
  const RowDecoder keys(data.keys);
  const auto dim = static_cast<std::size_t>(data.keys.columns);
  const auto heads = static_cast<std::size_t>(data.query_heads);
  std::vector<double> query(dim), key(dim);
  double most = 1;
  std::int64_t sequence = 0;
  for (std::size_t i = 0; i < reference.lse.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i / heads);
    while (row >= data.query_rows(sequence).second) ++sequence;
    const std::int64_t head =
        static_cast<std::int64_t>(i % heads) * data.keys.heads / data.query_heads;
    for (std::size_t j = 0; j < dim; ++j) {
      query[j] = element_value(data.dtype, data.queries[i * dim + j]);
    }
    const std::vector<double> transformed = transformed_query(data.keys, head, query);
    const std::int64_t seen = data.seen_by(sequence, row);
    for (std::int64_t token = 0; token < seen; ++token) {
      if (token_place(data, sequence, token, seen) != TokenPlace::codes) continue;
      keys.decode(sequence, head, token, key);
      double squares = 0;
      for (std::size_t j = 0; j < dim; ++j) squares += std::pow(transformed[j] * key[j], 2);
      most = std::max(most, 1 + scale * std::sqrt(squares) / (1 + std::abs(reference.lse[i])));
    }
  }
  return most;
}

std::string judge(const AttentionDecode& op, const SweepCase& sweep_case, Kernel& kernel) {
  const AttentionData data = make_attention_data(op, sweep_case.input);
  const AttentionOutput output = kernel.run(data, misalignment_of(sweep_case));
  const auto scale = static_cast<double>(softmax_scale(op));
  const AttentionResult reference = reference_attention(data, scale);
  const double of_op = attention_tolerances(op);
  Comparison out = compare(reference.out, output.out, op.dtype, of_op);
  Comparison lse = compare_lse(reference.lse, output.lse, op.dtype, of_op);
  if (!out.ok || !lse.ok) {
    const double tolerances = of_op * attention_cancellation(data, reference, scale);
    out = compare(reference.out, output.out, op.dtype, tolerances);
    lse = compare_lse(reference.lse, output.lse, op.dtype, tolerances);
  }
  return describe(out, "out") + describe(lse, "lse");
}

std::string judge(const KvAppend& op, const SweepCase& sweep_case, Kernel& kernel) {
  const AppendData data = make_append_data(op, sweep_case.input);
  return judge_append(data, kernel.run(data, misalignment_of(sweep_case))).why;
}

std::string judge(const KvDequantize& op, const SweepCase& sweep_case, Kernel& kernel) {
  const AttentionData data = make_dequantize_data(op, sweep_case.input);
  const DequantizeOutput output = kernel.run_dequantize(data, misalignment_of(sweep_case));
  return judge_dequantize(data, reference_dequantize(data), output).why;
}

// Runs all rows that the kernel was made for, and fewer.
std::string judge(const AttentionMerge& op, const SweepCase& sweep_case, Kernel& kernel) {
  std::string failure;
  AttentionMerge part = op;
  for (const std::int64_t rows : {op.shape.rows, (op.shape.rows + 1) / 2}) {
    part.shape.rows = rows;
    const MergeData data = make_merge_data(part, sweep_case.input);
    const AttentionResult reference = reference_merge(data);
    const AttentionOutput output = kernel.run(data, misalignment_of(sweep_case));
    failure += describe(compare(reference.out, output.out, op.dtype), "out") +
               describe(compare_lse(reference.lse, output.lse, op.dtype, 1e-3), "lse");
  }
  return failure;
}

// Runs all tokens that the kernel was made for, one, and none.
std::string judge(const ScalarMatrix& op, const SweepCase& sweep_case, Kernel& kernel) {
  std::string failure;
  for (const std::int64_t tokens : {op.shape.tokens, std::int64_t{1}, std::int64_t{0}}) {
    ScalarMatrix part = op;
    part.shape.tokens = tokens;
    const ScalarData data = make_scalar_data(part, sweep_case.input);
    const ScalarResult output = kernel.run(data, misalignment_of(sweep_case));
    const ScalarVerdict verdict = judge_scalar(data, reference_scalar(data), output);
    if (!verdict.ok) failure += fmt::format("\n  of {} tokens: {}", tokens, verdict.why);
  }
  return failure;
}

// Runs all rows that the kernel was made for, and the last one.
std::string judge(const WeightDequantize& op, const SweepCase& sweep_case, Kernel& kernel) {
  std::string failure;
  WeightRowsData data = make_weight_rows_data(op, sweep_case.input);
  for (const std::int64_t rows : {op.shape.rows, std::int64_t{1}}) {
    data.first_row += data.rows - rows;
    data.rows = rows;
    failure += describe(compare(reference_weight_rows(data),
                                kernel.run(data, misalignment_of(sweep_case)), op.dtype),
                        fmt::format("{} rows from {} on", rows, data.first_row).c_str());
  }
  return failure;
}

std::string judge_rows(const Linear& op, const SweepCase& sweep_case, Kernel& kernel) {
  const LinearData data = make_linear_data(op, sweep_case.input);
  const std::vector<double> reference = reference_linear(data);
  const std::vector<std::uint16_t> y = kernel.run(data, misalignment_of(sweep_case));
  Comparison comparison = compare(reference, y, op.dtype);
  if (!comparison.ok) {
    comparison = compare(reference, y, op.dtype, linear_cancellation(data, reference));
  }
  return describe(comparison, fmt::format("y of {} rows", op.shape.rows).c_str());
}

// Runs all rows that the kernel was made for, and fewer.
std::string judge(const Linear& op, const SweepCase& sweep_case, Kernel& kernel) {
  Linear part = op;
  part.shape.rows =
      1 + static_cast<int>(sweep_case.input.seed % static_cast<unsigned>(op.shape.rows));
  if (op.shape.grouped()) {
    part.shape.total_rows = std::min(op.shape.call_rows(), op.shape.experts * part.shape.rows);
  }
  return judge_rows(op, sweep_case, kernel) + judge_rows(part, sweep_case, kernel);
}

}  // namespace

std::string test_name(std::string_view words) {
  std::string name(words);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

AttentionResult reference_of(const AttentionDecode& op, const AttentionData& data) {
  return reference_attention(data, static_cast<double>(softmax_scale(op)));
}

testing::AssertionResult is_right(const AttentionResult& reference, const AttentionOutput& output,
                                  DType dtype) {
  const std::string why = describe(compare(reference.out, output.out, dtype), "out") +
                          describe(compare_lse(reference.lse, output.lse, dtype), "lse");
  return why.empty() ? testing::AssertionSuccess() : testing::AssertionFailure() << why;
}
testing::AssertionResult is_right(const std::vector<double>& reference,
                                  const std::vector<std::uint16_t>& y, DType dtype) {
  const std::string why = describe(compare(reference, y, dtype), "y");
  return why.empty() ? testing::AssertionSuccess() : testing::AssertionFailure() << why;
}

std::unique_ptr<Backend> test_host(HostOptions options) {
  options.optimize = false;  // the compiler takes most of a case's time
  return keeping_kernels(make_host_backend(std::move(options)));
}

Backend* sweep_backend(std::size_t number) {
  static const std::string_view wanted = wanted_backend();
  if (wanted == "cuda") {
    static const char* nvrtc = std::getenv("VQGEN_NVRTC");
    static const std::unique_ptr<Backend> backend =
        keeping_kernels(make_cuda_backend({.nvrtc_path = nvrtc != nullptr ? nvrtc : ""}));
    return backend->device() ? backend.get() : nullptr;
  }
  static const bool races = wanted == "race";
  static const std::array backends{
      test_host({.order = LaneOrder::forward, .check_races = races}),
      test_host({.order = LaneOrder::reverse, .check_races = races}),
      test_host({.order = LaneOrder::random, .seed = 1, .check_races = races})};
  return backends[number % backends.size()].get();
}

GpuSpec sweep_gpu() {
  const Backend* backend = sweep_backend();
  return backend->machine() == Machine::cuda ? *backend->device() : find_gpu("h200");
}

Kernel::Kernel(Backend& backend, const Problem& problem, const Plan& plan, const GpuSpec& gpu)
    : Kernel(backend, problem, plan, generate(problem, plan, gpu, backend.machine(), {})) {}

Kernel::Kernel(Backend& backend, const Problem& problem, const Plan& plan, KernelSource source)
    : backend_(backend),
      problem_(problem),
      plan_(plan),
      source_(std::move(source)),
      loaded_(backend.load(backend.compile(source_), source_)) {}

AttentionOutput Kernel::run(const AttentionData& data, Misalignment misalignment) {
  return execute(backend_, *loaded_, source_, std::get<AttentionDecode>(problem_), plan_, data,
                 misalignment);
}

AppendResult Kernel::run(const AppendData& data, Misalignment misalignment) {
  return execute(backend_, *loaded_, source_, std::get<KvAppend>(problem_), plan_, data,
                 misalignment);
}

DequantizeOutput Kernel::run_dequantize(const AttentionData& data, Misalignment misalignment) {
  return execute(backend_, *loaded_, source_, std::get<KvDequantize>(problem_), plan_, data,
                 misalignment);
}

AttentionOutput Kernel::run(const MergeData& data, Misalignment misalignment) {
  return execute(backend_, *loaded_, source_, std::get<AttentionMerge>(problem_), plan_, data,
                 misalignment);
}

ScalarResult Kernel::run(const ScalarData& data, Misalignment misalignment) {
  return execute(backend_, *loaded_, source_, *as_scalar(problem_), plan_, data, misalignment);
}

std::vector<std::uint16_t> Kernel::run(const LinearData& data, Misalignment misalignment) {
  return execute(backend_, *loaded_, source_, *as_linear(problem_), plan_, data, misalignment);
}

std::vector<std::uint16_t> Kernel::run(const WeightRowsData& data, Misalignment misalignment) {
  return execute(backend_, *loaded_, source_, std::get<WeightDequantize>(problem_), plan_, data,
                 misalignment);
}

KernelSource with_fault(KernelSource right, std::string_view place, std::string_view instead) {
  const std::size_t at = right.text.find(place);
  EXPECT_NE(at, std::string::npos) << place;
  if (at != std::string::npos) right.text.replace(at, place.size(), instead);
  return right;
}

bool fault_is_found(const std::function<bool()>& right) {
  try {
    return !right();
  } catch (const Error& error) {
    if (std::string_view(error.what()).find(": race at ") == std::string_view::npos) throw;
    return true;
  }
}

void expect_faults_found(const Problem& problem, const Plan& plan, std::span<const Fault> faults,
                         const std::function<bool(Kernel& faulty)>& right) {
  Backend& backend = *sweep_backend();
  const KernelSource whole = generate(problem, plan, sweep_gpu(), backend.machine(), {});
  for (const Fault& fault : faults) {  // also those of the other thirds
    ASSERT_NE(whole.text.find(fault.place), std::string::npos)
        << fault.place << " is not in the text";
  }
  for (const auto& [place, instead] : a_third(faults)) {
    KernelSource wrong = with_fault(whole, place, instead);
    Kernel faulty(backend, problem, plan, std::move(wrong));
    EXPECT_TRUE(fault_is_found([&] { return right(faulty); })) << place << ": " << instead;
  }
}

void change_unread_codes(AttentionData& data, void (*change)(std::uint32_t& word)) {
  const std::int64_t together =
      std::max({data.keys.format.group_tokens, data.values.format.group_tokens, 1});
  for (QuantizedTensor* tensor : {&data.keys, &data.values}) {
    const std::int64_t group = std::max(tensor->format.group_tokens, 1);
    const std::int64_t codes =
        tensor->row_words -
        (group > 1 ? tensor->format.scale_words(tensor->columns) : std::int64_t{0});
    for (std::int64_t row = 0; row < tensor->batch * tensor->heads * tensor->rows; ++row) {
      const auto b = static_cast<std::size_t>(row / (tensor->heads * tensor->rows));
      const std::int64_t token = row % tensor->rows;
      const std::int64_t length = data.lengths[b];
      std::int64_t end = std::min(length - data.recent_counts[b], length / together * together);
      end -= end % data.flush_block;
      const std::int64_t sinks = data.sinks[b];
      const auto first = tensor->codes.begin() + row * tensor->row_words;
      if (token < sinks || token >= end) std::for_each(first, first + codes, change);
      // The scales of a group are read if any of its tokens is.
      const std::int64_t begin = token / group * group;
      if (begin + group <= sinks || begin >= end) {
        std::for_each(first + codes, first + tensor->row_words, change);
      }
    }
  }
}

void expect_same_bits(const AttentionOutput& a, const AttentionOutput& b) {
  EXPECT_EQ(a.out, b.out);
  ASSERT_EQ(a.lse.size(), b.lse.size());
  EXPECT_EQ(std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(float)), 0);
}

std::string failure_of(const SweepCase& sweep_case, Backend& backend, const GpuSpec& gpu) {
  const auto context = [&] {
    return fmt::format("\n  case {}\n  seed {}\n  {}\n  plan {}", sweep_case.name,
                       sweep_case.input.seed, to_json(sweep_case.problem).dump(),
                       to_json(sweep_case.plan).dump());
  };
  try {
    Kernel kernel(backend, sweep_case.problem, sweep_case.plan, gpu);
    const std::string failure = std::visit(
        [&](const auto& op) { return judge(op, sweep_case, kernel); }, sweep_case.problem);
    return failure.empty() ? "" : failure + context();
  } catch (const Error& error) {
    return error.what() + context();
  }
}

}  // namespace vqgen::test
