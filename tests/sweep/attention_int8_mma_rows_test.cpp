// Rows of codes of every size in int8_mma: how lanes copy and share them, and kernels that do it
// wrongly are found.
#include <array>

#include "tests/sweep/attention_by_bytes.h"
#include "tests/sweep/cases.h"

namespace vqgen::test {
namespace {

// Rows of 16 to 48 bytes whose codes lanes share in each way, with pages and raw tokens.
TEST_P(AttentionByBytes, RowsOfEverySizeAreExact) {
  const std::vector<ChannelRun> forms[] = {
      {{32, 4}, {64, 8}, {32, 16}}, {{48, 2}, {48, 4}, {32, 8}},
      {{80, 2}, {16, 4}, {32, 8}},  {{16, 2}, {16, 4}, {32, 8}, {64, 16}},
      {{16, 2}, {112, 4}},          {{32, 4}, {32, 8}, {64, 16}}};
  for (const int number : a_third({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})) {
    SCOPED_TRACE(testing::Message() << number);
    AttentionDecode op = problem(128, 4, 210);
    VqFormat& format = number % 2 == 0 ? op.keys : op.values;
    format = in_runs(forms[number / 2], Scope::head);
    op.shape.page_tokens = number % 3 * 16;
    const bool narrow = format.row_words(128) == 4;  // without room for raw rows
    if (!narrow) op.shape.recent_tokens = 40, op.shape.sinks = 5;
    expect_right(op, plan(op, 2), make_attention_data(op, {.seed = 55}));
  }
}

TEST_P(AttentionByBytes, WrongRowsAreFound) {
  AttentionDecode op = problem(128);
  op.keys = op.values = in_runs({{16, 2}, {48, 4}, {64, 16}}, Scope::head);
  const AttentionInt8Mma own = plan(op);
  const AttentionData data = make_attention_data(op, {.seed = 56});
  const AttentionResult reference = reference_of(op, data);
  const Fault faults[] = {
      {"(i * 32 + lane()) * kPiece", "lane() * kPiece"},
      {"piece * (kBytes / kSharers)", "0"},
      {"of_row() / kPart.sharers % 2", "of_row() % 2"},
      {"place(j * kRow.lanes + of_row() / 4 * 4)", "place(of_row() / 4 * 4)"},
      {"own / part.size * lanes + lane", "own / part.size + lane"},
      {"part.first_byte + part.codes * lanes", "part.first_byte"},
      {"in_upper_half() ? of_row() % 2 : kNumber", "in_upper_half() ? 0 : kNumber"},
      {"? kUpperHalves : kLowerHalves", "? kUpperHalves : kUpperHalves"},
      {"upper ? scales[kRow.quads] : scales[kRow.pairs]", "scales[kRow.pairs]"}};
  expect_faults_found(op, own, faults, [&](Kernel& faulty) {
    return is_right(reference, faulty.run(data), op.dtype);
  });
}

// Rows of 20 bytes in pages of 16 tokens, which are copied as one run, and of 128, whose pieces are
// turned.
TEST_P(AttentionByBytes, WrongCopiesAreFound) {
  const auto find = [&](AttentionDecode op, const auto& faults) {
    const AttentionData data = make_attention_data(op, {.seed = 57});
    const AttentionResult reference = reference_of(op, data);
    expect_faults_found(op, plan(op), faults, [&](Kernel& faulty) {
      return is_right(reference, faulty.run(data), op.dtype);
    });
  };
  AttentionDecode dense = problem(80);
  dense.shape.page_tokens = 16;
  find(dense, std::to_array<Fault>({{"row >= kPage ? kPages - 1 : 0", "0"},
                                    {"byte % kBytes;", "0;"},
                                    {"static_cast<u32>(first + row) % kPage", "0u"}}));
  AttentionDecode turned = problem(256);
  turned.keys = turned.values = in_runs({{256, 2}}, Scope::head);
  find(turned, std::to_array<Fault>({{"(place ^ kFrom) - place", "kFrom"},
                                     {"const int own = Own::own_row() * Own::kStride",
                                      "const int own = lane() * 16"}}));
}

}  // namespace
}  // namespace vqgen::test
