// kv_append by fragments: the bits of append_lanes on what estimates by tensor cores decide worst,
// and kernels that trust estimates too far, which such input has to find.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <random>

#include "generator/generate.h"
#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

enum class Hard { halfway, copies, one_entry, large, small, none };
constexpr std::array kAllHard{Hard::halfway, Hard::copies, Hard::one_entry,
                              Hard::large,   Hard::small,  Hard::none};

using Elements = std::vector<std::uint16_t>;

class Hardener {
 public:
  Hardener(Hard kind, DType dtype, std::uint64_t seed)
      : kind_(kind), dtype_(dtype), random_(seed) {}

  // Codebooks first, of which the rows of new tokens are made.
  void change(QuantizedTensor& tensor, Elements& rows) {
    const auto size = static_cast<std::size_t>(tensor.format.vector_size);
    Elements& books = tensor.codebooks;
    const std::size_t entries = books.size() / size;
    const auto of_book = static_cast<std::size_t>(tensor.format.entries());
    if (kind_ == Hard::copies) {  // of the first half of a book, or of the one before
      for (std::size_t i = 0; i < entries; ++i) {
        if (i % of_book < of_book / 2) continue;
        const std::size_t from =
            below(2) == 0 ? i / of_book * of_book + below(of_book / 2) : i - i % 2;
        std::copy_n(books.begin() + at(from, size), size, books.begin() + at(i, size));
      }
    }
    if (kind_ == Hard::one_entry) {
      for (std::size_t i = 0; i < entries; ++i) {
        std::copy_n(books.begin() + at(i / of_book * of_book, size), size,
                    books.begin() + at(i, size));
      }
    }
    if (kind_ == Hard::large || kind_ == Hard::small) {
      const float factor = kind_ == Hard::large ? large() : small();
      for (Elements* each : {&books, &rows}) {
        for (std::uint16_t& element : *each) {
          element = put(factor * element_to_float(dtype_, element));
        }
      }
    }
    if (kind_ != Hard::none) return halfway(tensor, rows);
    const std::array numbers{std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity(),
                             std::numeric_limits<float>::quiet_NaN()};
    for (std::size_t i = 0; i < rows.size(); i += 1 + below(300)) rows[i] = put(numbers[i % 3]);
  }

 private:
  static std::ptrdiff_t at(std::size_t entry, std::size_t size) {
    return static_cast<std::ptrdiff_t>(entry * size);
  }
  std::size_t below(std::size_t end) { return random_() % end; }
  std::uint16_t put(float value) const { return element_from_float(dtype_, value); }
  float large() const { return dtype_ == DType::f16 ? 4000.0f : 1e30f; }
  float small() const { return dtype_ == DType::f16 ? 1e-6f : 1e-36f; }

  // Three sub-vectors of four lie midway between two entries of the first stage, in half of them
  // but for a rounding.
  void halfway(const QuantizedTensor& tensor, Elements& rows) {
    const auto size = static_cast<std::size_t>(tensor.format.vector_size);
    const auto entries = static_cast<std::size_t>(tensor.format.entries());
    const auto residuals = static_cast<std::size_t>(tensor.format.residuals);
    const auto columns = static_cast<std::size_t>(tensor.columns);
    const auto heads = static_cast<std::size_t>(tensor.heads);
    const auto of_head = std::max<std::size_t>(1, static_cast<std::size_t>(tensor.units) / heads);
    for (std::size_t i = 0; i < rows.size(); i += size) {
      if (below(4) == 0) continue;
      const std::size_t head = tensor.units == 1 ? 0 : i / columns % heads;
      const std::size_t unit = head * of_head + i % columns / (columns / of_head);
      const std::size_t book = unit * residuals;
      const float scale = tensor.stage_scales.empty() ? 1.0f : tensor.stage_scales[book];
      const std::size_t a = (book * entries + below(entries)) * size;
      const std::size_t b = (book * entries + below(entries)) * size;
      for (std::size_t d = 0; d < size; ++d) {
        rows[i + d] = put(0.5f * scale * element_to_float(dtype_, tensor.codebooks[a + d]) +
                          0.5f * scale * element_to_float(dtype_, tensor.codebooks[b + d]));
      }
      if (below(2) == 0) rows[i + below(size)] ^= 1;
    }
  }

  Hard kind_;
  DType dtype_;
  std::mt19937_64 random_;
};

AppendData hard_data(const KvAppend& op, Hard kind) {
  AppendData data = make_append_data(op, {.seed = 51, .lengths = LengthPattern::ragged});
  Hardener hardener(kind, op.dtype, 52);
  hardener.change(data.keys, data.new_keys);
  hardener.change(data.values, data.new_values);
  return data;
}

KvAppend hard_problem(DType dtype) {
  KvAppend op;
  op.dtype = dtype;
  op.shape = {.batch = 2,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 80,
              .new_tokens = 37,
              .window = 4,
              .sinks = 2};
  return op;
}

std::vector<KvAppend> hard_problems() {
  std::vector<KvAppend> problems;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    KvAppend op = hard_problem(dtype);
    op.keys = {.vector_size = 4, .index_bits = 8, .scope = Scope::head};
    op.values = {.vector_size = 8, .index_bits = 10, .scope = Scope::tensor};
    problems.push_back(op);
    if (dtype == DType::bf16) continue;
    op.keys = {.vector_size = 2, .index_bits = 8, .scope = Scope::channel_group};
    op.values = {.vector_size = 4, .index_bits = 6, .residuals = 2, .scope = Scope::channel_group};
    op.values.stage_scales = true;
    problems.push_back(op);
    op.keys = {.vector_size = 8, .index_bits = 3, .residuals = 3, .scope = Scope::head};
    op.keys.hadamard = op.keys.smooth = op.keys.stage_scales = true;
    op.values = {.vector_size = 2, .index_bits = 5, .scope = Scope::head};
    op.shape.page_tokens = 16;
    problems.push_back(op);
  }
  return problems;
}

class AppendByFragments : public testing::Test {
 protected:
  void SetUp() override {
    if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
  }
  static Kernel kernel(const KvAppend& op, const Plan& plan) {
    return Kernel(*sweep_backend(), op, plan, sweep_gpu());
  }
};

// Words that differ.
std::size_t differences(const AppendResult& a, const AppendResult& b) {
  std::size_t count = 0;
  for (const auto member : {&AppendResult::key_codes, &AppendResult::value_codes}) {
    for (std::size_t i = 0; i < (a.*member).size(); ++i) count += (a.*member)[i] != (b.*member)[i];
  }
  return count;
}

TEST_F(AppendByFragments, HardInputHasTheBitsOfLanes) {
  for (const KvAppend& op : hard_problems()) {
    SCOPED_TRACE(to_json(Problem(op)).dump());
    Kernel lanes = kernel(op, rules_plan<AppendLanes>(op, sweep_gpu()));
    std::vector<Kernel> all;
    for (const AppendFragments& plan : {AppendFragments{.tokens_per_block = 37},
                                        {.threads = 64, .splits = 4, .tokens_per_block = 5}}) {
      ASSERT_TRUE(check(plan, op, sweep_gpu()).ok) << check(plan, op, sweep_gpu()).reason;
      all.push_back(kernel(op, plan));
    }
    for (const Hard kind : kAllHard) {
      const AppendData data = hard_data(op, kind);
      const AppendResult right = lanes.run(data);
      // Others leave what fp32 has.
      const bool judged = kind == Hard::halfway || kind == Hard::copies || kind == Hard::one_entry;
      EXPECT_TRUE(!judged || judge_append(data, right).ok) << judge_append(data, right).why;
      for (Kernel& fragments : all) {
        const AppendResult result = fragments.run(data);
        EXPECT_EQ(differences(right, result), 0u) << static_cast<int>(kind);
        EXPECT_EQ(result.raw_keys, right.raw_keys);
        EXPECT_EQ(result.raw_values, right.raw_values);
      }
    }
  }
}

// One place of the kernel's text changed; some hard input tells.
TEST_F(AppendByFragments, HardInputFindsKernelsThatTrustEstimates) {
  const KvAppend op = hard_problems().front();
  const Plan plan = rules_plan(AppendFragments{}, op, sweep_gpu());
  Kernel lanes = kernel(op, rules_plan<AppendLanes>(op, sweep_gpu()));
  Backend& backend = *sweep_backend();
  const KernelSource right = generate(op, plan, sweep_gpu(), backend.machine(), {});
  const struct {
    const char* place;
    const char* instead;
  } faults[] = {
      {"least.other > least.best + margin", "true"},
      {"least.other > least.best + margin", "least.other > least.best"},
      {"low -= to_float", "low -= 0.0f * to_float"},
      {"if (candidate < distance) {", "if (candidate <= distance) {"},
      {"larger(keeps.best, best)", "infinity()"},
  };
  for (const auto& [place, instead] : faults) {
    const KernelSource wrong = with_fault(right, place, instead);
    ASSERT_FALSE(wrong.text == right.text) << place;
    const auto kernel = backend.load(backend.compile(wrong), wrong);
    std::size_t found = 0;
    for (const Hard kind : kAllHard) {
      const AppendData data = hard_data(op, kind);
      found += differences(lanes.run(data), execute(backend, *kernel, wrong, op, plan, data));
    }
    EXPECT_GT(found, 0u) << instead;
  }
}

}  // namespace
}  // namespace vqgen::test
