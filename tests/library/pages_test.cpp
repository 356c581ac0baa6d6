// Caches in pages through the C functions: results in every order of a pool, and what launches
// refuse.
#include <limits>
#include <set>

#include "tests/library/host_runtime.h"
#include "tests/library/launches.h"
#include "tests/library/trials.h"

namespace vqgen::library::test {
namespace {

// Launches trials until every order of a pool has occurred.
template <class MakeTrial>
void expect_right_in_all_orders(const OwnedOp& prepared, const MakeTrial& make) {
  ASSERT_NE(prepared.op, nullptr);
  std::set<PageOrder> seen;
  for (std::uint64_t seed = 1; seed <= 40 && (seen.size() < 4 || seed <= 5); ++seed) {
    SCOPED_TRACE(seed);
    auto trial = make(seed);
    ASSERT_EQ(trial->launch(prepared.op), VQGEN_OK) << vqgen_last_error();
    trial->expect_right();
    seen.insert(trial->order());
  }
  EXPECT_EQ(seen.size(), 4u);
}

TEST(Pages, AttentionIsRightInEveryOrder) {
  for (const int page_tokens : {16, 64}) {
    SCOPED_TRACE(page_tokens);
    const Json config =
        in_pages(edited(small_attention(), {{"/shape/tokens", "300"}}), page_tokens);
    const auto op = std::get<AttentionDecode>(read_config(config, "test").problem);
    expect_right_in_all_orders(OwnedOp(config), [&](std::uint64_t seed) {
      const std::int64_t tokens = seed % 2 == 0 ? 211 : 300;
      return std::make_unique<AttentionTrial>(host(), op, tokens, seed);
    });
  }
}

TEST(Pages, AppendIsRightInEveryOrder) {
  for (const int page_tokens : {16, 64}) {
    SCOPED_TRACE(page_tokens);
    const Json config = in_pages(edited(small_append(), {{"/shape/tokens", "90"}}), page_tokens);
    const auto op = std::get<KvAppend>(read_config(config, "test").problem);
    expect_right_in_all_orders(OwnedOp(config), [&](std::uint64_t seed) {
      const std::int64_t tokens = seed % 2 == 0 ? 17 : 90;
      return std::make_unique<AppendTrial>(op, host(), tokens, seed);
    });
  }
}

TEST(Pages, DecodeIsRightInEveryOrder) {
  for (const int page_tokens : {16, 64}) {
    SCOPED_TRACE(page_tokens);
    const Json config =
        in_pages(edited(small_dequantize(), {{"/shape/tokens", "200"}}), page_tokens);
    const auto op = std::get<KvDequantize>(read_config(config, "test").problem);
    expect_right_in_all_orders(OwnedOp(config), [&](std::uint64_t seed) {
      const std::int64_t tokens = seed % 2 == 0 ? 77 : 200;
      return std::make_unique<DequantizeTrial>(op, host(), tokens, seed);
    });
  }
}

TEST(Pages, GroupsOfRowsAreRightInPages) {
  const Json config = in_pages(edited(small_attention(), {{"/keys/layout", R"({"rows": 2,
                                                                               "words": 2})"},
                                                          {"/values/layout", R"({"rows": 4})"},
                                                          {"/shape/tokens", "300"}}),
                               32);
  const OwnedOp prepared(config);
  ASSERT_NE(prepared.op, nullptr);
  const auto op = std::get<AttentionDecode>(read_config(config, "test").problem);
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    AttentionTrial trial(host(), op, 299, seed);
    ASSERT_EQ(trial.launch(prepared.op), VQGEN_OK) << vqgen_last_error();
    trial.expect_right();
  }
}

// Aligned groups of rows that are not aligned: rows of 3 words, beside plain rows of 3 words.
TEST(Pages, RowsOfAGroupNeedNoAlignmentOfTheirOwn) {
  const Json formats = edited(small_attention(), {{"/keys/vector_size", "8"},
                                                  {"/keys/index_bits", "12"},
                                                  {"/keys/layout", R"({"rows": 4})"},
                                                  {"/values/vector_size", "8"},
                                                  {"/values/index_bits", "12"},
                                                  {"/shape/head_dim", "64"},
                                                  {"/shape/tokens", "300"}});
  const Json config = in_pages(formats, 16);
  const auto op = std::get<AttentionDecode>(read_config(config, "test").problem);
  const OwnedOp prepared(config);
  ASSERT_NE(prepared.op, nullptr);
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    AttentionTrial trial(host(), op, 211, seed);
    ASSERT_EQ(trial.launch(prepared.op), VQGEN_OK) << vqgen_last_error();
    trial.expect_right();
  }
}

TEST(Pages, AnOpSaysWhatItTakes) {
  const auto shapes_of = [](const Json& config) {
    const OwnedOp prepared(config);
    const Json said = parse_json(vqgen_op_description(prepared.op), "description");
    Json shapes;
    for (const Json& each : said.at("arguments")) {
      shapes[each.at("name").get<std::string>()] = each.at("shape");
    }
    return shapes;
  };
  const Json plain = shapes_of(in_pages(small_attention(), 16));
  EXPECT_EQ(plain.at("keys.codes"), Json({0, 2, 16, 4}));
  EXPECT_EQ(plain.at("block_table"), Json({2, 0}));
  const Json grouped = shapes_of(
      in_pages(edited(small_append(), {{"/values/layout", R"({"rows": 2, "words": 2})"}}), 64));
  EXPECT_EQ(grouped.at("values.codes"), Json({0, 2, 32, 2, 2, 2}));
  EXPECT_FALSE(shapes_of(small_attention()).contains("block_table"));
}

// Arguments that are judged without reading the table.
class PageArguments : public Launches {
 protected:
  PageArguments() {
    op_ = prepared(in_pages(attention_json(), 16));
    a_.struct_bytes = sizeof(a_);
    a_.tokens = 1000;
    a_.query = a_.out = memory_;
    a_.lse = reinterpret_cast<float*>(memory_);
    a_.keys = a_.values = {memory_, memory_, nullptr, 0, 0};
    a_.lengths = reinterpret_cast<const std::int32_t*>(memory_);
    const vqgen_page_strides strides{2 * 16 * kRow, 16 * kRow, kRow};
    a_.pages = {a_.lengths, 63, 200, strides, strides};
  }
  ~PageArguments() override { vqgen_op_release(op_); }
  template <class Edit>
  vqgen_status launched(const Edit& edit, const char* words = "") {
    const auto launch = [&](const vqgen_attention_args* args) {
      return vqgen_attention_launch(op_, args, memory_, 1 << 30, nullptr);
    };
    return Launches::launched(a_, edit, launch, words);
  }

  static constexpr std::int64_t kRow = 32;  // bytes of 32 codes of 8 bits
  alignas(256) char memory_[256] = {};
  vqgen_op* op_ = nullptr;
  vqgen_attention_args a_{};
};

TEST_F(PageArguments, SoundOnesPass) {
  EXPECT_EQ(launched([](auto&) {}), VQGEN_OK) << vqgen_last_error();
  // With one page, strides between pages are not checked.
  EXPECT_EQ(launched([](auto& a) {
              a.pages.count = 1;
              a.pages.keys.page = a.pages.values.page = 0;
            }),
            VQGEN_OK)
      << vqgen_last_error();
  // Tokens interleave the heads, with gaps, and the stride of pages is the largest possible.
  EXPECT_EQ(launched([](auto& a) {
              a.pages.keys = {(std::int64_t{4} << 30) - 32, kRow, 3 * kRow};
            }),
            VQGEN_OK)
      << vqgen_last_error();
}

TEST_F(PageArguments, TheTable) {
  EXPECT_EQ(launched([](auto& a) { a.pages.block_table = nullptr; }, "'block_table' is null"),
            VQGEN_BAD_INPUT);
  EXPECT_EQ(launched(
                [&](auto& a) {
                  a.pages.block_table = reinterpret_cast<const std::int32_t*>(memory_ + 2);
                },
                "'block_table' is not aligned"),
            VQGEN_ALIGNMENT);
  for (const std::int64_t columns : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{62},
                                     std::numeric_limits<std::int64_t>::max() / 16}) {
    EXPECT_EQ(launched([&](auto& a) { a.pages.columns = columns; }, "pages.columns"),
              VQGEN_BAD_INPUT)
        << columns;
  }
  EXPECT_EQ(launched([](auto& a) {
              a.pages.columns = 62;
              a.tokens = 992;
            }),
            VQGEN_OK)
      << vqgen_last_error();
  for (const std::int64_t count : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1} << 31}) {
    EXPECT_EQ(launched([&](auto& a) { a.pages.count = count; }, "pages.count"), VQGEN_BAD_INPUT)
        << count;
  }
}

TEST_F(PageArguments, Strides) {
  struct Member {
    const char* name;
    std::int64_t vqgen_page_strides::*stride;
  };
  for (const Member& each : {Member{"page", &vqgen_page_strides::page},
                             {"head", &vqgen_page_strides::head},
                             {"token", &vqgen_page_strides::token}}) {
    for (const bool keys : {true, false}) {
      SCOPED_TRACE(each.name);
      const std::string name = std::string("'pages.") + (keys ? "keys." : "values.") + each.name;
      const auto set = [&](std::int64_t stride) {
        return [=](vqgen_attention_args& a) {
          vqgen_page_strides& strides = keys ? a.pages.keys : a.pages.values;
          strides.*each.stride = stride;
        };
      };
      EXPECT_EQ(launched(set(-kRow), (name + "' is negative").c_str()), VQGEN_BAD_INPUT);
      EXPECT_EQ(launched(set(kRow * 40 + 2), (name + "' is not a multiple").c_str()),
                VQGEN_ALIGNMENT);
      EXPECT_EQ(launched(set(kRow / 2), "less than the rows of codes"), VQGEN_BAD_INPUT);
      EXPECT_EQ(launched(set(std::int64_t{8} << 30), "more than kernels count to"),
                VQGEN_BAD_INPUT);
    }
  }
  // 16 tokens of a page exceed the range that kernels count.
  EXPECT_EQ(launched([](auto& a) { a.pages.values.token = std::int64_t{1} << 29; },
                     "more than kernels count to"),
            VQGEN_BAD_INPUT);
}

TEST_F(PageArguments, AreNotThoseOfAnotherCache) {
  const char* const words = "batch_stride and head_stride are of a cache without pages";
  EXPECT_EQ(launched([](auto& a) { a.keys.batch_stride = 1024; }, words), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& a) { a.keys.head_stride = 512; }, words), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& a) { a.values.batch_stride = 1024; }, words), VQGEN_BAD_INPUT);
  EXPECT_EQ(launched([](auto& a) { a.values.head_stride = 512; }, words), VQGEN_BAD_INPUT);
  vqgen_op_release(op_);
  op_ = prepared(attention_json());
  EXPECT_EQ(launched([](auto&) {}, "prepared without page_tokens"), VQGEN_BAD_INPUT);
}

// Other ops require of pages what PageArguments tests for attention.
template <class Trial>
void expect_pages_judged(const OwnedOp& prepared, Trial& trial) {
  const auto refused = [&](const auto& edit, const char* words) {
    const auto before = trial.args();
    edit(trial.args());
    EXPECT_NE(trial.launch(prepared.op), VQGEN_OK) << words;
    expect_words(vqgen_last_error(), {words});
    trial.args() = before;
  };
  refused([](auto& a) { a.pages.columns = 2; }, "pages.columns times page_tokens is less than");
  refused([](auto& a) { a.pages.count = 0; }, "pages.count");
  refused([](auto& a) { a.pages.block_table = nullptr; }, "'block_table' is null");
  refused([](auto& a) { a.pages.keys.token = 0; }, "less than the rows of codes");
  refused([](auto& a) { a.pages.values.head = -4; }, "'pages.values.head' is negative");
  refused([](auto& a) { a.pages.values.page += 2; }, "'pages.values.page' is not a multiple");
  refused([](auto& a) { a.keys.batch_stride = 64; }, "of a cache without pages");
  EXPECT_EQ(trial.launch(prepared.op), VQGEN_OK) << vqgen_last_error();
}

TEST(Pages, OfAppendsAndDecodesAreJudgedAlike) {
  const Json append = in_pages(edited(small_append(), {{"/shape/tokens", "90"}}), 16);
  AppendTrial append_trial(std::get<KvAppend>(read_config(append, "test").problem), host(), 90);
  expect_pages_judged(OwnedOp(append), append_trial);
  const Json decode = in_pages(edited(small_dequantize(), {{"/shape/tokens", "200"}}), 16);
  DequantizeTrial decode_trial(std::get<KvDequantize>(read_config(decode, "test").problem), host(),
                               77);
  expect_pages_judged(OwnedOp(decode), decode_trial);
}

// The last token of a room, one beyond it, a full room, and inactive sequences: tokens beyond the
// room are left out and written to no page.
TEST(Pages, AFullTableTakesWhatItHasRoomFor) {
  const Json config = in_pages(edited(append_json(), {{"/shape/head_dim", "64"},
                                                      {"/shape/tokens", "80"},
                                                      {"/shape/batch", "8"},
                                                      {"/shape/new_tokens", "8"}}),
                               16);
  const OwnedOp prepared(config);
  ASSERT_NE(prepared.op, nullptr);
  const auto op = std::get<KvAppend>(read_config(config, "test").problem);
  for (const std::int64_t tokens : {64, 65, 66, 79, 80}) {
    SCOPED_TRACE(tokens);
    AppendTrial trial(op, host(), tokens, 1, LengthPattern::ragged);
    ASSERT_EQ(trial.launch(prepared.op), VQGEN_OK) << vqgen_last_error();
    trial.expect_right();
  }
}

}  // namespace
}  // namespace vqgen::library::test
