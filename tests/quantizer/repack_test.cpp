// Layouts of codes: the order by its definition, and that only places change.

#include <numeric>

#include "quantizer/access_counts.h"
#include "quantizer/encode.h"
#include "quantizer/pack.h"
#include "tests/quantizer/random_tensor.h"

namespace vqgen {
namespace {

const std::vector<CodeLayout> kLayouts{{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {4, 1}, {32, 1}};

std::string name_of(const CodeLayout& layout) {
  return fmt::format("{}x{}", layout.rows, layout.words);
}

// Words 1, 2, 3 .. row after row, so that each differs from the others and from padding.
std::vector<std::uint32_t> numbered_words(const CodeRows& sizes) {
  std::vector<std::uint32_t> words(
      static_cast<std::size_t>(sizes.heads * sizes.rows * sizes.row_words));
  std::iota(words.begin(), words.end(), 1u);
  return words;
}

// The order word by word, as templates/vq/layout/codes.h draws it: groups, runs, rows, words.
std::vector<std::uint32_t> by_definition(const CodeLayout& layout, const CodeRows& sizes) {
  std::vector<std::uint32_t> words;
  for (std::int64_t head = 0; head < sizes.heads; ++head) {
    for (std::int64_t group = 0; group < sizes.rows; group += layout.rows) {
      for (std::int64_t run = 0; run < sizes.row_words; run += layout.words) {
        for (std::int64_t row = group; row < group + layout.rows; ++row) {
          for (std::int64_t word = run; word < run + layout.words; ++word) {
            const bool there = row < sizes.rows && word < sizes.row_words;
            const std::int64_t number = (head * sizes.rows + row) * sizes.row_words + word + 1;
            words.push_back(there ? static_cast<std::uint32_t>(number) : 0u);
          }
        }
      }
    }
  }
  return words;
}

std::vector<std::uint32_t> repacked(const std::vector<std::uint32_t>& from, const CodeLayout& was,
                                    const CodeLayout& is, const CodeRows& sizes) {
  std::vector<std::uint32_t> to(static_cast<std::size_t>(layout_words(is, sizes)), ~0u);
  repack(from, was, to, is, sizes);
  return to;
}

template <class Visit>
void for_awkward_sizes(Visit visit) {
  for (const std::int64_t heads : {1, 3}) {
    for (std::int64_t rows = 1; rows <= 9; ++rows) {
      for (const std::int64_t row_words : {1, 2, 3, 4, 5, 7, 8, 17}) {
        visit(CodeRows{heads, rows, row_words});
      }
    }
  }
}

TEST(Repack, FollowsTheDefinitionAndGoesBack) {
  for_awkward_sizes([](const CodeRows& sizes) {
    const std::vector<std::uint32_t> plain = numbered_words(sizes);
    for (const CodeLayout& layout : kLayouts) {
      SCOPED_TRACE(fmt::format("{}: {} heads, {} rows, {} words", name_of(layout), sizes.heads,
                               sizes.rows, sizes.row_words));
      const auto packed = repacked(plain, {}, layout, sizes);
      ASSERT_EQ(packed, by_definition(layout, sizes));
      ASSERT_EQ(repacked(packed, layout, {}, sizes), plain);
      // Padding has no meaning.
      std::vector<std::uint32_t> padded = packed;
      for (std::uint32_t& word : padded) word = word == 0 ? ~0u : word;
      ASSERT_EQ(repacked(padded, layout, {}, sizes), plain);
    }
  });
}

TEST(Repack, AnyLayoutLeadsToAnyOther) {
  for_awkward_sizes([](const CodeRows& sizes) {
    for (const CodeLayout& from : kLayouts) {
      for (const CodeLayout& to : kLayouts) {
        ASSERT_EQ(repacked(by_definition(from, sizes), from, to, sizes), by_definition(to, sizes))
            << name_of(from) << " to " << name_of(to);
      }
    }
  });
}

TEST(Repack, RefusesLayoutsThatThereAreNot) {
  for (const CodeLayout& layout : std::vector<CodeLayout>{
           {0, 1}, {1, 0}, {-1, 1}, {3, 1}, {1, 3}, {4, 2}, {2, 4}, {8, 1}, {1 << 30, 4}}) {
    EXPECT_NE(layout_problem(layout), "");
    const std::string message = message_of([&] { layout_words(layout, {1, 4, 4}); });
    EXPECT_NE(message.find("repack: no kernel reads groups"), std::string::npos) << message;
  }
  for (const CodeLayout& layout : kLayouts) EXPECT_EQ(layout_problem(layout), "");
}

TEST(Repack, RefusesSizesThatCannotBe) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const CodeRows& sizes : std::vector<CodeRows>{{0, 1, 1},
                                                     {1, 0, 1},
                                                     {1, 1, 0},
                                                     {-1, -1, 1},
                                                     {1, kMost, 1},
                                                     {kMost, kMost, kMost},
                                                     {1 << 20, 1 << 20, 1 << 20},
                                                     {1, std::int64_t{1} << 32, 1}}) {
    const std::string message = message_of([&] { layout_words({4, 1}, sizes); });
    EXPECT_NE(message.find("or more than any memory has"), std::string::npos) << message;
  }
  EXPECT_EQ(layout_words({4, 1}, {1, 1, (1ll << 31) - 1}), 4 * ((1ll << 31) - 1));
}

TEST(Repack, RefusesMoreOrFewerWordsAndWritesNothing) {
  const CodeRows sizes{2, 5, 3};
  const CodeLayout layout{2, 2};
  const std::vector<std::uint32_t> plain = numbered_words(sizes);
  const auto words = static_cast<std::size_t>(layout_words(layout, sizes));
  ASSERT_EQ(words, 2u * 6 * 4);
  const auto expect_refused = [&](std::size_t from, std::size_t to, const char* what) {
    std::vector<std::uint32_t> source(from, 1u), result(to, 7u);
    const std::string message = message_of([&] { repack(source, {}, result, layout, sizes); });
    EXPECT_NE(message.find(what), std::string::npos) << message;
    EXPECT_EQ(result, std::vector<std::uint32_t>(to, 7u));
  };
  expect_refused(plain.size() - 1, words, "codes to read are 29 words where rows and layout make");
  expect_refused(plain.size() + 1, words, "codes to read are 31 words");
  expect_refused(0, words, "codes to read are 0 words");
  expect_refused(plain.size(), words - 1, "codes to write are 47 words");
  expect_refused(plain.size(), words + 4, "codes to write are 52 words");
  expect_refused(words, plain.size(), "codes to read");
}

TEST(Repack, ATensorSaysTheSame) {
  for (const samples::Shape& shape : samples::awkward_shapes()) {
    const QuantizedTensor plain = samples::random_tensor(shape, 4);
    for (const CodeLayout& layout : kLayouts) {
      SCOPED_TRACE(name_of(layout) + " " + short_name(shape.format));
      QuantizedTensor tensor = plain;
      if (!layout_problem(shape.format, layout).empty()) {  // 32 rows of narrow sub-vectors
        EXPECT_NE(message_of([&] { repack(tensor, layout); }).find("groups of 32 rows"),
                  std::string::npos);
        continue;
      }
      repack(tensor, layout);
      EXPECT_EQ(tensor.format.layout, layout);
      EXPECT_EQ(std::ssize(tensor.codes), tensor.batch * tensor.heads * tensor.head_words());
      EXPECT_EQ(unpack_codes(tensor), unpack_codes(plain));
      EXPECT_EQ(decode(tensor).data, decode(plain).data);

      QuantizedTensor again = tensor;
      pack_codes(unpack_codes(tensor), again);
      EXPECT_EQ(again.codes, tensor.codes);

      // Access counts do not depend on the places of codes.
      const AccessCounts profile = count_accesses(tensor, "x", Operand::keys);
      EXPECT_EQ(profile, count_accesses(plain, "x", Operand::keys));
      QuantizedTensor hot = tensor, hot_plain = plain;
      reorder(hot, profile.counts);
      reorder(hot_plain, profile.counts);
      repack(hot_plain, layout);
      EXPECT_EQ(hot.codes, hot_plain.codes);
      EXPECT_EQ(hot.codebooks, hot_plain.codebooks);

      repack(tensor, {});
      EXPECT_EQ(tensor.codes, plain.codes);
      EXPECT_EQ(tensor.format, plain.format);
    }
  }
}

TEST(Repack, EncodingIntoALayoutIsEncodingAndRepacking) {
  VqFormat format = samples::table_format(2, 5, Scope::head);
  const FloatTensor values = samples::normal_tensor(1, 2, 7, 30, 5);
  Codebooks codebooks = samples::random_codebooks(format, 2, DType::f16, 6);
  QuantizedTensor plain = encode(values, codebooks);
  codebooks.format.layout = {2, 2};
  const QuantizedTensor grouped = encode(values, codebooks);
  EXPECT_EQ(grouped.format.layout, (CodeLayout{2, 2}));
  repack(plain, {2, 2});
  EXPECT_EQ(grouped.codes, plain.codes);
}

// The layout is in the metadata and in the shape of the codes.
TEST(Repack, BundlesKeepTheLayout) {
  Bundle bundle = samples::full_bundle();
  const std::vector<std::byte> plain = serialize_bundle(bundle);
  const std::string metadata = SafetensorsFile(plain, "b").metadata().at("vqgen.bundle");
  EXPECT_EQ(metadata.find("layout"), std::string::npos) << "older readers take plain bundles";
  auto& cache = std::get<AttentionData>(bundle.items[0].data);
  auto& weights = std::get<LinearData>(bundle.items[1].data).weights;
  repack(cache.keys, {2, 2});
  repack(cache.values, {4, 1});
  repack(weights, {1, 4});
  const std::vector<std::byte> bytes = serialize_bundle(bundle);
  EXPECT_NE(bytes, plain);
  const SafetensorsFile file(bytes, "b");
  EXPECT_EQ(file.at("layer0.keys.codes").shape.size(), 6u);
  Bundle again = read_bundle(file);
  auto& keys = std::get<AttentionData>(again.items[0].data).keys;
  EXPECT_EQ(keys.format, cache.keys.format);
  EXPECT_EQ(keys.codes, cache.keys.codes);
  EXPECT_EQ(std::get<LinearData>(again.items[1].data).weights.codes, weights.codes);
  EXPECT_EQ(serialize_bundle(again), bytes);
  for (QuantizedTensor* tensor : {&keys, &std::get<AttentionData>(again.items[0].data).values,
                                  &std::get<LinearData>(again.items[1].data).weights}) {
    repack(*tensor, {});
  }
  EXPECT_EQ(serialize_bundle(again), plain);
}

}  // namespace
}  // namespace vqgen
