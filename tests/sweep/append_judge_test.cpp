// The judge of kv_append must find and name one seeded fault per result, and the output of kernels
// with one fault each.
#include <gtest/gtest.h>

#include "tests/sweep/harness.h"
#include "tests/sweep/plans.h"

namespace vqgen::test {
namespace {

KvAppend judged_problem() {
  KvAppend op;
  op.shape = {.batch = 2,
              .kv_heads = 2,
              .head_dim = 64,
              .tokens = 24,
              .new_tokens = 5,
              .recent_tokens = 4,
              .sinks = 2};
  op.keys = {.vector_size = 4, .index_bits = 6, .num_codebooks = 2, .scope = Scope::head};
  op.keys.smooth = op.keys.hadamard = op.keys.stage_scales = true;
  // 8 codes of 5 bits leave 24 of the bits of two words.
  op.values = {.vector_size = 8, .index_bits = 5, .scope = Scope::tensor};
  return op;
}

class AppendJudge : public testing::Test {
 protected:
  void SetUp() override {
    if (sweep_backend() == nullptr) GTEST_SKIP() << "VQGEN_TEST_BACKEND=cuda, but there is no GPU";
    const KvAppend op = judged_problem();
    data_ = make_append_data(op, {.seed = 41});
    data_.positions = {3, 9};
    // Compiled once for all tests of the suite.
    static Kernel append(*sweep_backend(), op, rules_plan<AppendSimt>(op, sweep_gpu()),
                         sweep_gpu());
    right_ = append.run(data_);
    ASSERT_TRUE(judge_append(data_, right_).ok) << judge_append(data_, right_).why;
  }
  // Word `word` of a token's values.
  std::uint32_t& word_of(AppendResult& result, std::size_t sequence, std::size_t head,
                         std::size_t token, std::size_t word) const {
    return result.value_codes[((sequence * 2 + head) * 24 + token) * 2 + word];
  }
  void expect_found(const AppendResult& wrong, const std::string& words) const {
    const AppendVerdict verdict = judge_append(data_, wrong);
    EXPECT_FALSE(verdict.ok) << words;
    EXPECT_NE(verdict.why.find(words), std::string::npos) << verdict.why;
  }

  AppendData data_;
  AppendResult right_;
};

TEST_F(AppendJudge, FindsAWrongCode) {
  for (const int bit : {0, 4, 17, 31}) {
    AppendResult wrong = right_;
    word_of(wrong, 1, 0, 11, 0) ^= 1u << bit;
    expect_found(wrong, "values of sequence 1, head 0: token 11, channel");
  }
}
TEST_F(AppendJudge, FindsACodeOfANeighbour) {
  AppendResult wrong = right_;
  for (const std::size_t word : {0u, 1u}) {
    std::swap(word_of(wrong, 0, 1, 4, word), word_of(wrong, 0, 1, 5, word));
  }
  expect_found(wrong, "values of sequence 0, head 1: token 4");
}
TEST_F(AppendJudge, FindsPaddingThatIsNotZero) {
  AppendResult wrong = right_;
  word_of(wrong, 0, 0, 7, 1) |= 1u << 31;
  expect_found(wrong, "values of sequence 0, head 0: token 7: padding is not zero");
}
TEST_F(AppendJudge, FindsARowThatWasToBeLeftAlone) {
  for (const std::size_t token : {0u, 2u, 8u, 23u}) {  // tokens 3..7 are appended
    AppendResult wrong = right_;
    word_of(wrong, 0, 1, token, 0) ^= 1u << 9;
    expect_found(wrong, "head 1: token " + std::to_string(token) + " was changed");
  }
}
TEST_F(AppendJudge, FindsARawSlotThatIsWrong) {
  AppendResult wrong = right_;
  wrong.raw_values[5 * 64 + 1] ^= 1;  // of head 0, which has 6 slots
  expect_found(wrong, "values of sequence 0, head 0: raw slot 5");
  wrong = right_;
  wrong.raw_keys[6 * 64] ^= 0x8000;
  expect_found(wrong, "keys of sequence 0, head 1: raw slot 0");
}
TEST_F(AppendJudge, FindsARowThatWasNotWritten) {
  AppendResult wrong = right_;
  const std::size_t row = (1 * 2 + 1) * 24 + 13;
  std::copy_n(data_.keys.codes.begin() + static_cast<std::ptrdiff_t>(row * 6), 6,
              wrong.key_codes.begin() + static_cast<std::ptrdiff_t>(row * 6));
  expect_found(wrong, "keys of sequence 1, head 1: token 13");
}

// Each fault changes one place of the kernel's text.
TEST_F(AppendJudge, FindsWhatWrongKernelsWrite) {
  const KvAppend op = judged_problem();
  const Plan plan = rules_plan(AppendSimt{}, op, sweep_gpu());
  data_.positions = {0, 9};
  const Fault faults[] = {
      {"bits |= shift < 0 ? code >> -shift : code << shift;",
       "if (shift >= 0) bits |= code << shift;"},
      {"work.head, i64{token})", "work.head, i64{token + 1})"},
      {"if (number >= work.all - kWindow)", "if (number < kWindow)"},
      {"if (token < kSinks)", "if (false)"},
      {"values[j] /= smooth_[j]", "values[j] *= smooth_[j]"},
      {"i64{work.head} * kUnits + in_head", "i64{0} * kUnits + in_head"},
      {"if (work.position < 0) all = 0;", "all -= 1;"},
  };
  expect_faults_found(op, plan, faults,
                      [&](Kernel& faulty) { return judge_append(data_, faulty.run(data_)).ok; });
}

}  // namespace
}  // namespace vqgen::test
