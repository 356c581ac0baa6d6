// What the host backend finds in lengths, windows, sinks, positions and block tables, which it
// reads before a kernel uses them.
#include <cstring>
#include <limits>
#include <memory>

#include "tests/library/host_runtime.h"

namespace vqgen::library::test {
namespace {

// Integers in the host backend's memory.
class Integers {
 public:
  explicit Integers(const std::vector<std::int32_t>& values)
      : memory_(host()->registry->backend(), values.size() * sizeof(std::int32_t)) {
    host()->registry->backend().upload(memory_.data(), std::as_bytes(std::span(values)));
  }
  const std::int32_t* data() const { return static_cast<const std::int32_t*>(memory_.data()); }

 private:
  DeviceBuffer memory_;
};

constexpr std::int32_t kNobody = std::numeric_limits<std::int32_t>::max();

// The message of a launch that must be refused; empty if it is not refused.
template <class Trial>
std::string refusal_of(const OwnedOp& op, Trial& trial) {
  const vqgen_status status = trial.launch(op.op);
  if (status == VQGEN_OK) return "";
  EXPECT_EQ(status, VQGEN_BAD_INPUT);
  EXPECT_EQ(std::strchr(vqgen_last_error(), '\n'), nullptr);
  return vqgen_last_error();
}

// Replaces a trial's lengths or positions and its table of 5 columns, in pages of 16 tokens.
template <class Trial, class Counts>
std::string said_of(const OwnedOp& op, Trial& trial, Counts counts,
                    const std::vector<std::int32_t>& values,
                    const std::vector<std::int32_t>& table) {
  const Integers own_counts(values);
  const Integers own_table(table);
  auto& args = trial.args();
  args.*counts = own_counts.data();
  args.pages.block_table = own_table.data();
  args.pages.columns = 5;
  return refusal_of(op, trial);
}

TEST(HostIntegers, EntriesThatAreNoPagesAreNamedWhereASequenceHasTokens) {
  const Json config =
      in_pages(edited(attention_json(), {{"/shape/head_dim", "64"}, {"/shape/tokens", "80"}}), 16);
  const OwnedOp attention(config);
  const auto of_attention = std::get<AttentionDecode>(read_config(config, "test").problem);
  AttentionTrial heads(host(), of_attention, 80);
  const auto count = static_cast<std::int32_t>(heads.args().pages.count);
  const auto expect_both = [&](const std::vector<std::int32_t>& lengths,
                               const std::vector<std::int32_t>& table,
                               const std::vector<std::string>& words) {
    const std::string of_heads =
        said_of(attention, heads, &vqgen_attention_args::lengths, lengths, table);
    if (words.empty()) {
      EXPECT_EQ(of_heads, "");
    } else {
      expect_words(of_heads, words);
    }
  };
  const std::string count_words = "is " + std::to_string(count);
  expect_both({80, 33}, {0, 0, 1, 1, 0, 1, 0, 0, kNobody, -7}, {});  // read by both: fine
  expect_both({80, 33}, {0, 0, 1, 1, 0, 1, 0, -1, 0, 0}, {"block_table[1][2] is -1", "32 to 47"});
  expect_both({80, 32}, {0, 0, 1, 1, 0, 1, 0, -1, 0, 0}, {});
  expect_both({80, 33}, {0, 0, 1, 1, count, 1, 0, 0, 0, 0},
              {"block_table[0][4]", count_words, "64 to 79"});
  expect_both({80, 33}, {kNobody, 0, 1, 1, 0, 1, 0, 0, 0, 0}, {"block_table[0][0]", "0 to 15"});
  expect_both({0, 0}, std::vector<std::int32_t>(10, kNobody), {});
  expect_both({0, 1}, std::vector<std::int32_t>(10, kNobody), {"block_table[1][0]"});
  expect_both({80, 81}, std::vector<std::int32_t>(10, 0), {"lengths[1] is 81", "80"});
}

// For longer sequences only the first tokens are dequantized, and only their pages are checked.
TEST(HostIntegers, DecodeAsksForThePagesOfItsTokens) {
  const Json config =
      in_pages(edited(dequantize_json(), {{"/shape/head_dim", "64"}, {"/shape/tokens", "80"}}), 16);
  const OwnedOp op(config);
  DequantizeTrial trial(std::get<KvDequantize>(read_config(config, "test").problem), host(), 40);
  const auto said = [&](const std::vector<std::int32_t>& table) {
    return said_of(op, trial, &vqgen_kv_dequantize_args::lengths, {80, 80}, table);
  };
  EXPECT_EQ(said({0, 1, 0, -1, kNobody, 1, 1, 0, -1, -1}), "");
  expect_words(said({0, 1, 0, -1, kNobody, 1, 1, -2, -1, -1}), {"block_table[1][2] is -2"});
}

TEST(HostIntegers, AppendsHavePagesOfTheirOwn) {
  const Json config =
      in_pages(edited(append_json(), {{"/shape/head_dim", "64"}, {"/shape/tokens", "75"}}), 16);
  const OwnedOp op(config);
  AppendTrial trial(std::get<KvAppend>(read_config(config, "test").problem), host(), 75);
  trial.args().counts = nullptr;  // 4 of each
  const auto said = [&](const std::vector<std::int32_t>& positions,
                        const std::vector<std::int32_t>& table) {
    return said_of(op, trial, &vqgen_append_args::positions, positions, table);
  };
  // A shared prefix, with separate pages where both sequences append.
  EXPECT_EQ(said({30, 16}, {0, 1, 2, -1, -1, 0, 3, -1, -1, -1}), "");
  expect_words(said({30, 16}, {0, 1, 2, -1, -1, 0, 1, -1, -1, -1}),
               {"page 1", "sequences 0 and 1", "block_table[1][1]"});
  expect_words(said({30, 28}, {0, 1, 2, -1, -1, 0, 3, -1, -1, -1}) +
                   said({30, 29}, {0, 1, 2, -1, -1, 0, 3, 2, -1, -1}),
               {"page 2", "block_table[1][2]"});
  expect_words(said({30, -1}, {0, 1, -1, -1, -1, 0, 1, -1, -1, -1}), {"block_table[0][2] is -1"});
  // Inactive sequences, and sequences without room: none of their pages is checked.
  EXPECT_EQ(said({-1, -5}, std::vector<std::int32_t>(10, kNobody)), "");
  EXPECT_EQ(said({75, 79}, std::vector<std::int32_t>(10, kNobody)), "");
  EXPECT_EQ(said({75, 80}, std::vector<std::int32_t>(10, 0)), "");
  EXPECT_EQ(said({74, 76}, {0, 0, 0, 0, 1, 0, 0, 0, 0, 0}), "");
  expect_words(said({73, -1}, {0, 0, 0, 0, kNobody, 0, 0, 0, 0, 0}), {"block_table[0][4]"});
  // In one sequence, two written pages are one, or a written page holds its earlier tokens.
  expect_words(said({30, -1}, {0, 2, 2, -1, -1, 0, 0, 0, 0, 0}),
               {"page 2", "block_table[0][2]", "is block_table[0][1] too", "16 tokens"});
  expect_words(said({-1, 32}, {0, 0, 0, 0, 0, 3, 1, 3, -1, -1}),
               {"page 3", "block_table[1][2]", "is block_table[1][0] too"});
  EXPECT_EQ(said({30, -1}, {0, 1, 2, 1, 2, 0, 0, 0, 0, 0}), "");  // past its tokens
  const Integers none({0, 0});
  trial.args().counts = none.data();
  EXPECT_EQ(said({30, 30}, std::vector<std::int32_t>(10, kNobody)), "");
}

// Flush blocks that a call fills begin before its new tokens; blocks that it does not fill need no
// page.
TEST(HostIntegers, AppendsHavePagesOfTheirOwnForTheBatchesThatTheyFill) {
  const Json config = in_pages(edited(append_json(), {{"/shape/head_dim", "64"},
                                                      {"/shape/tokens", "75"},
                                                      {"/shape/recent_tokens", "40"},
                                                      {"/shape/flush_block", "20"}}),
                               16);
  const OwnedOp op(config);
  AppendTrial trial(std::get<KvAppend>(read_config(config, "test").problem), host(), 75);
  trial.args().counts = nullptr;  // 4 of each
  const auto said = [&](const std::vector<std::int32_t>& positions,
                        const std::vector<std::int32_t>& table) {
    return said_of(op, trial, &vqgen_append_args::positions, positions, table);
  };
  EXPECT_EQ(said({30, 41}, std::vector<std::int32_t>(10, kNobody)), "");
  EXPECT_EQ(said({36, -1}, {kNobody, 1, 2, -1, -1, 0, 0, 0, 0, 0}), "");  // tokens 20 to 39
  expect_words(said({36, -1}, {0, kNobody, 2, -1, -1, 0, 0, 0, 0, 0}), {"block_table[0][1]"});
  expect_words(said({36, 37}, {0, 1, 2, -1, -1, 0, 1, 3, -1, -1}),
               {"page 1", "sequences 0 and 1", "block_table[1][1]"});
}

// 2 sequences, up to 3 query tokens and 20 tokens; with pages and without.
class HostCounts : public testing::TestWithParam<int> {
 protected:
  HostCounts()
      : config_(in_pages(edited(attention_json(), {{"/shape/head_dim", "64"},
                                                   {"/shape/tokens", "20"},
                                                   {"/shape/recent_tokens", "8"},
                                                   {"/shape/sinks", "2"},
                                                   {"/shape/query_tokens", "3"}}),
                         GetParam())),
        op_(std::make_unique<OwnedOp>(config_)) {}
  struct Counts {
    std::vector<std::int32_t> lengths = {20, 5};
    std::vector<std::int32_t> recent_counts = {0, 0};
    std::vector<std::int32_t> sinks = {2, 0};
    std::vector<std::int32_t> query_start = {0, 3, 4};
  };
  // With new keys or without.
  std::string said(bool fresh, const Counts& counts) {
    AttentionDecode problem = std::get<AttentionDecode>(read_config(config_, "test").problem);
    AttentionTrial trial(host(), problem, 20);
    const Integers lengths(counts.lengths), recent_counts(counts.recent_counts),
        sinks(counts.sinks), starts(counts.query_start);
    const DeviceBuffer rows(host()->registry->backend(), 6 * 2 * 64 * 2);
    const DeviceBuffer results(host()->registry->backend(), 6 * 8 * 64 * 2);
    const DeviceBuffer sums(host()->registry->backend(), 6 * 8 * sizeof(float));
    const Integers table({0, 0, 0, 0});  // one page serves all
    vqgen_attention_args& args = trial.args();
    args.lengths = lengths.data();
    args.recent_counts = recent_counts.data();
    args.sinks = sinks.data();
    args.query_start = starts.data();
    args.query = args.out = results.data();
    args.lse = static_cast<float*>(sums.data());
    args.new_keys = args.new_values = fresh ? rows.data() : nullptr;
    if (GetParam() > 0) {
      args.pages.block_table = table.data();
      args.pages.columns = 2;
    }
    return refusal_of(*op_, trial);
  }

  Json config_;
  std::unique_ptr<OwnedOp> op_;
};

TEST_P(HostCounts, LengthsHaveRoomForTheQueryTokensThatComeWithThem) {
  EXPECT_EQ(said(false, {}), "");
  expect_words(said(true, {}), {"lengths[0] is 20, 23 with its new_keys", "`tokens` is 20"});
  EXPECT_EQ(said(true, {.lengths = {17, 5}}), "");
  expect_words(said(true, {.lengths = {18, 5}}), {"lengths[0] is 18, 21 with", "`tokens` is 20"});
  expect_words(said(true, {.lengths = {17, 20}}), {"lengths[1] is 20, 21 with"});
  EXPECT_EQ(said(true, {.lengths = {17, 20}, .query_start = {0, 3, 3}}), "");
  // If a sequence has more rows than query_tokens, the first rows count.
  EXPECT_EQ(said(true, {.lengths = {17, 0}, .query_start = {0, 6, 6}}), "");
  expect_words(said(false, {.lengths = {21, 5}}), {"lengths[0] is 21, and `tokens` is 20"});
  expect_words(said(false, {.lengths = {20, -1}}), {"lengths[1] is -1", "rests has 0"});
}

TEST_P(HostCounts, WindowsAndSinksReachNoSlotOfAnotherToken) {
  EXPECT_EQ(said(false, {.recent_counts = {6, 8}}), "");
  expect_words(said(false, {.recent_counts = {7, 8}}),
               {"recent_counts[0] is 7", "window of 8", "serves 3 query tokens with at most 6"});
  EXPECT_EQ(said(true, {.lengths = {17, 5}, .recent_counts = {8, 8}}), "");
  expect_words(said(true, {.lengths = {17, 5}, .recent_counts = {8, 9}}),
               {"recent_counts[1] is 9", "serves a sequence with at most 8"});
  expect_words(said(false, {.sinks = {3, 0}}), {"sinks[0] is 3, and the config has 2"});
  // An inactive sequence needs nothing.
  EXPECT_EQ(said(false, {{20, 0}, {6, 99}, {2, 99}, {0, 3, 3}}), "");
}

TEST_P(HostCounts, WindowsLeaveRoomForABatch) {
  config_ = edited(config_, {{"/shape/flush_block", "5"}});
  op_ = std::make_unique<OwnedOp>(config_);
  EXPECT_EQ(said(false, {.recent_counts = {2, 4}}), "");
  expect_words(
      said(false, {.recent_counts = {3, 4}}),
      {"recent_counts[0] is 3", "window of 8 in the config, which tokens leave 5 at a time",
       "serves 3 query tokens with at most 2"});
  expect_words(said(true, {.lengths = {17, 5}, .recent_counts = {4, 5}}),
               {"recent_counts[1] is 5", "serves a sequence with at most 4"});
}

TEST_P(HostCounts, NegativeWindowsAndSinksAreNamed) {
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
  for (const std::int32_t negative : {-1, kLeast}) {
    const std::string number = std::to_string(negative);
    expect_words(said(false, {.recent_counts = {0, negative}}), {"recent_counts[1] is " + number});
    expect_words(said(false, {.sinks = {negative, 0}}), {"sinks[0] is " + number});
    expect_words(said(false, {.lengths = {negative, 5}}), {"lengths[0] is " + number});
  }
}

TEST_P(HostCounts, RowsOfQueryTokensDoNotDescend) {
  EXPECT_EQ(said(false, {.query_start = {1, 1, 4}}), "");
  expect_words(said(false, {.query_start = {0, 3, 2}}), {"query_start[1] and [2] are 3 and 2"});
  expect_words(said(true, {.lengths = {1, 1}, .query_start = {3, 0, 3}}),
               {"query_start[0] and [1] are 3 and 0"});
  expect_words(said(false, {.query_start = {-1, 1, 2}}), {"query_start[0] and [1] are -1 and 1"});
}

TEST_P(HostCounts, ArraysThatAreNotThereOrTooShortAreNamed) {
  expect_words(said(false, {.lengths = {20}}), {"lengths[0] to [1] are", "allocation of 4 bytes"});
  expect_words(said(false, {.recent_counts = {0}}), {"recent_counts[0] to [1] are"});
  expect_words(said(false, {.sinks = {0}}), {"sinks[0] to [1] are"});
  expect_words(said(false, {.query_start = {0, 3}}), {"query_start[0] to [2] are"});
}

// A draft that does not see itself, and one that sees a later one: parents come first.
TEST(HostIntegers, MasksOfDraftsThatAreNoTreesAreNamed) {
  const Json config = edited(attention_json(), {{"/shape/head_dim", "64"},
                                                {"/shape/tokens", "80"},
                                                {"/shape/query_tokens", "64"},
                                                {"/shape/tree_mask", "true"}});
  const OwnedOp attention(config);
  AttentionTrial trial(host(), std::get<AttentionDecode>(read_config(config, "test").problem), 80);
  const Integers lengths({10, 10}), starts({0, 64, 67});
  const DeviceBuffer rows(host()->registry->backend(), 128 * 8 * 64 * 2);
  const DeviceBuffer sums(host()->registry->backend(), 128 * 8 * sizeof(float));
  vqgen_attention_args& args = trial.args();
  args.lengths = lengths.data();
  args.query_start = starts.data();
  args.query = args.new_keys = args.new_values = args.out = rows.data();
  args.lse = static_cast<float*>(sums.data());
  const auto said = [&](std::int64_t row, std::uint64_t mask) {
    std::vector<std::int64_t> masks(67);
    for (std::int64_t i = 0; i < 67; ++i) {
      masks[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(std::uint64_t{1} << i % 64);
    }
    masks[static_cast<std::size_t>(row)] = static_cast<std::int64_t>(mask);
    const DeviceBuffer memory(host()->registry->backend(), masks.size() * 8);
    host()->registry->backend().upload(memory.data(), std::as_bytes(std::span(masks)));
    args.tree_mask = static_cast<const std::int64_t*>(memory.data());
    return refusal_of(attention, trial);
  };
  EXPECT_EQ(said(0, 1), "");
  EXPECT_EQ(said(63, ~std::uint64_t{0}), "");
  EXPECT_EQ(said(66, 7), "");
  expect_words(said(0, 0), {"tree_mask[0] is 0x0, and bit 0 is not set, of draft 0 of sequence 0"});
  expect_words(said(63, 1), {"tree_mask[63] is 0x1, and bit 63 is not set"});
  expect_words(said(66, 15), {"tree_mask[66] is 0xf, with bits behind bit 2, of draft 2 of "
                              "sequence 1 itself"});
  args.tree_mask = reinterpret_cast<const std::int64_t*>(std::uintptr_t{64});
  expect_words(refusal_of(attention, trial), {"tree_mask[0] to [63] are", "outside every"});
}

// Each integer array of each op, at an address outside all memory.
TEST(HostIntegers, PointersToNowhereAreNamed) {
  const auto* const nowhere = reinterpret_cast<const std::int32_t*>(std::uintptr_t{64});
  const auto refused = [](const OwnedOp& op, auto& trial, const char* words) {
    expect_words(refusal_of(op, trial), {words, "outside every allocation"});
  };
  const Json cache =
      in_pages(edited(attention_json(), {{"/shape/head_dim", "64"}, {"/shape/tokens", "80"}}), 16);
  const OwnedOp attention(cache);
  AttentionTrial heads(host(), std::get<AttentionDecode>(read_config(cache, "test").problem), 80);
  const vqgen_attention_args sound = heads.args();
  heads.args().lengths = nowhere;
  refused(attention, heads, "lengths[0] to [1]");
  heads.args() = sound;
  heads.args().pages.block_table = nowhere;
  refused(attention, heads, "block_table[");
  // A row of the table begins far behind its end.
  heads.args() = sound;
  heads.args().pages.columns = 1 << 30;
  expect_words(refusal_of(attention, heads), {"block_table[1073741824] to"});

  const Json of_append =
      in_pages(edited(append_json(), {{"/shape/head_dim", "64"}, {"/shape/tokens", "75"}}), 16);
  for (const Json& config : {of_append, edited(of_append, {{"/shape/page_tokens", "0"}})}) {
    const OwnedOp append(config);
    AppendTrial trial(std::get<KvAppend>(read_config(config, "test").problem), host(), 75);
    const vqgen_append_args before = trial.args();
    trial.args().positions = nowhere;
    refused(append, trial, "positions[0] to [1]");
    trial.args() = before;
    trial.args().counts = nowhere;
    refused(append, trial, "counts[0] to [1]");
  }

  const Json of_dequantize =
      edited(dequantize_json(), {{"/shape/head_dim", "64"}, {"/shape/tokens", "80"}});
  const OwnedOp decode(of_dequantize);
  DequantizeTrial rows(std::get<KvDequantize>(read_config(of_dequantize, "test").problem), host(),
                       40);
  rows.args().lengths = nowhere;
  refused(decode, rows, "lengths[0] to [1]");

  const Json grouped = edited(small_gemv(), {{"/shape/experts", "3"}, {"/shape/total_rows", "9"}});
  const OwnedOp experts(grouped);
  LinearTrial product(host(), *as_linear(read_config(grouped, "test").problem), 9);
  product.args().expert_rows = nowhere;
  refused(experts, product, "expert_rows[0] to [3]");
}

INSTANTIATE_TEST_SUITE_P(PageTokens, HostCounts, testing::Values(0, 16));

}  // namespace
}  // namespace vqgen::library::test
