// Codes that a program repacks through the C functions are read by ops of that layout, and sizes
// that do not fit a layout are refused.
#include <vqgen/vqgen.hpp>

#include <array>

#include "tests/library/fake_backend.h"

namespace vqgen::library::test {
namespace {

TEST(RepackApi, GroupsRowsAndGoesBack) {
  const std::vector<std::uint32_t> plain{11, 12, 13, 21, 22, 23, 31, 32, 33};
  const std::vector<std::uint32_t> grouped{11, 12, 21, 22, 13, 0, 23, 0, 31, 32, 0, 0, 33, 0, 0, 0};
  EXPECT_EQ(vqgen_layout_words({2, 2}, 1, 3, 3), 16);
  EXPECT_EQ(vqgen_layout_words({1, 1}, 2, 3, 3), 18);
  EXPECT_EQ(vqgen_layout_words({4, 1}, 2, 3, 3), 24);
  EXPECT_EQ(repack(plain, {1, 1}, {2, 2}, 1, 3, 3), grouped);
  EXPECT_EQ(repack(grouped, {2, 2}, {1, 1}, 1, 3, 3), plain);
}

TEST(RepackApi, RefusesWhatCannotBe) {
  for (const vqgen_layout layout : {vqgen_layout{0, 0}, {3, 1}, {4, 4}, {-1, -1}}) {
    EXPECT_EQ(vqgen_layout_words(layout, 1, 3, 3), 0);
    expect_words(vqgen_last_error(), {"no kernel reads groups"});
    EXPECT_THROW(repack(std::vector<std::uint32_t>(9), {1, 1}, layout, 1, 3, 3), StatusError);
  }
  EXPECT_EQ(vqgen_layout_words({4, 1}, 1, -3, 3), 0);
  EXPECT_EQ(vqgen_layout_words({4, 1}, INT64_MAX, INT64_MAX, 2), 0);
  const auto refused = [](const std::uint32_t* from, std::int64_t from_words, std::uint32_t* to,
                          std::int64_t to_words, const char* words) {
    EXPECT_EQ(vqgen_repack(from, {1, 1}, from_words, to, {4, 1}, to_words, 1, 3, 3),
              VQGEN_BAD_INPUT);
    expect_words(vqgen_last_error(), {words});
  };
  std::array<std::uint32_t, 9> from{};
  std::array<std::uint32_t, 12> to{};
  to.fill(7);
  refused(nullptr, 9, to.data(), 12, "null");
  refused(from.data(), 9, nullptr, 12, "null");
  refused(from.data(), 8, to.data(), 12, "codes to read are 8 words");
  refused(from.data(), -9, to.data(), 12, "codes to read");
  refused(from.data(), 9, to.data(), 11, "codes to write are 11 words");
  EXPECT_EQ(to, (std::array<std::uint32_t, 12>{7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7}));
  EXPECT_EQ(vqgen_repack(from.data(), {1, 1}, 9, to.data(), {4, 1}, 12, 1, 3, 3), VQGEN_OK);
  EXPECT_EQ(to, (std::array<std::uint32_t, 12>{}));
}

// One access loads a group, so codes must be aligned for it, in every dataflow.
TEST(RepackApi, AnOpAsksForTheAlignmentOfItsLayout) {
  FakeRuntime fake{{}};
  const Json config = edited(
      gemv_json(), {{"/weights/layout", R"({"rows": 4})"}, {"/plan", R"({"dataflow": "simt"})"}});
  vqgen_op* op = nullptr;
  ASSERT_EQ(vqgen_prepare(&fake.runtime, config.dump().c_str(), nullptr, &op), VQGEN_OK)
      << vqgen_last_error();
  const Json said = parse_json(vqgen_op_description(op), "description");
  EXPECT_EQ(said["buckets"][0]["codes_alignment"], 16);
  for (const Json& each : said["arguments"]) {
    if (each["name"] == "weights.codes") {
      EXPECT_EQ(each["shape"], Json({128, 32, 4, 1}));
    }
  }
  alignas(256) static char buffer[512];
  vqgen_linear_args args{};
  args.struct_bytes = sizeof(args);
  args.m = 2;
  args.x = args.y = buffer;
  args.weights = {buffer + 4, buffer, nullptr, 0, 0};
  EXPECT_EQ(vqgen_linear_launch(op, &args, buffer, 1 << 30, nullptr), VQGEN_ALIGNMENT);
  args.weights.codes = buffer + 16;
  EXPECT_EQ(vqgen_linear_launch(op, &args, buffer, 1 << 30, nullptr), VQGEN_OK)
      << vqgen_last_error();
  vqgen_op_release(op);
}

}  // namespace
}  // namespace vqgen::library::test
