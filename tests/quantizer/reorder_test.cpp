// Reordering: decoded values keep their bits, entries are hot-first, and nothing else changes.

#include <cstring>

#include "core/access/access_counts_summary.h"
#include "quantizer/access_counts.h"
#include "quantizer/encode.h"
#include "quantizer/pack.h"
#include "tests/quantizer/random_tensor.h"

namespace vqgen {
namespace {

AccessCounts profile_of(const QuantizedTensor& tensor) {
  return count_accesses(tensor, "x", Operand::keys);
}

QuantizedTensor reordered(QuantizedTensor tensor, const std::vector<std::int64_t>& counts) {
  reorder(tensor, counts);
  return tensor;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

void expect_zero_padding(const QuantizedTensor& tensor) {
  const VqFormat& format = tensor.format;
  const std::int64_t bits =
      tensor.columns / format.vector_size * format.num_codebooks * format.index_bits;
  if (bits % 32 == 0) return;
  const auto row_words = static_cast<std::size_t>(tensor.row_words);
  for (std::size_t last = row_words - 1; last < tensor.codes.size(); last += row_words) {
    EXPECT_EQ(tensor.codes[last] >> bits % 32, 0u);
  }
}

void expect_hot_first(const QuantizedTensor& tensor) {
  const AccessCounts profile = profile_of(tensor);
  for (std::size_t i = 0; i < profile.codebooks(); ++i) {
    EXPECT_TRUE(std::is_sorted(profile.codebook(i).rbegin(), profile.codebook(i).rend()));
  }
  for (int boundary = 1; boundary <= profile.entries; boundary *= 2) {
    EXPECT_EQ(share_below(profile, boundary, Numbering::current),
              share_below(profile, boundary, Numbering::hot_first));
  }
}

TEST(Reorder, DecodesToTheSameBitsHotFirst) {
  for (samples::Shape shape : samples::awkward_shapes()) {
    shape.format.stage_scales = shape.format.num_codebooks > 1;
    SCOPED_TRACE(fmt::format("{} bits, {} stages, scope {}", shape.format.index_bits,
                             shape.format.num_codebooks, enum_name(shape.format.scope)));
    QuantizedTensor tensor = samples::random_tensor(shape, 8);
    const AccessCounts before = profile_of(tensor);
    samples::fill_padding(tensor);
    const QuantizedTensor after = reordered(tensor, before.counts);
    expect_same_bits(decode(after).data, decode(tensor).data);
    expect_zero_padding(after);
    expect_hot_first(after);
    EXPECT_NE(after.codes, tensor.codes);
    EXPECT_NE(after.codebooks, tensor.codebooks);
    EXPECT_EQ(after.stage_scales, tensor.stage_scales);
    EXPECT_EQ(after.row_words, tensor.row_words);

    // The skew and the steadiness of the accesses do not change.
    const AccessCounts now = profile_of(after);
    EXPECT_EQ(summarise(now).top_share, summarise(before).top_share);
    EXPECT_EQ(now.parts.accesses, before.parts.accesses);
    EXPECT_EQ(now.parts.counts, before.parts.counts);
  }
}

TEST(Reorder, AgainChangesNothing) {
  for (const samples::Shape& shape : samples::awkward_shapes()) {
    QuantizedTensor once = samples::random_tensor(shape, 9);
    reorder(once, profile_of(once).counts);
    const QuantizedTensor twice = reordered(once, profile_of(once).counts);
    EXPECT_EQ(twice.codes, once.codes);
    EXPECT_EQ(twice.codebooks, once.codebooks);
  }
}

// Any counts are accepted, such as those of another tensor with the same codebooks.
TEST(Reorder, FollowsTheGivenCounts) {
  const samples::Shape shape{samples::table_format(2, 3), 1, 1, 4, 16};
  const QuantizedTensor tensor = samples::random_tensor(shape, 10);
  const std::vector<std::int64_t> counts{1, 5, 0, 5, 9, 1, 0, 2};
  const QuantizedTensor after = reordered(tensor, counts);
  const std::vector<std::size_t> order{4, 1, 3, 7, 0, 5, 2, 6};
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(after.codebooks[rank * 2 + i], tensor.codebooks[order[rank] * 2 + i]);
    }
  }
  const std::vector<std::uint32_t> was = unpack_codes(tensor);
  const std::vector<std::uint32_t> is = unpack_codes(after);
  for (std::size_t i = 0; i < was.size(); ++i) EXPECT_EQ(order[is[i]], was[i]);
  expect_same_bits(decode(after).data, decode(tensor).data);
  const QuantizedTensor unmoved = reordered(tensor, std::vector<std::int64_t>(8, 3));
  EXPECT_EQ(unmoved.codes, tensor.codes);
  EXPECT_EQ(unmoved.codebooks, tensor.codebooks);
}

TEST(Reorder, RefusesWhatItCannotDoAndLeavesItAlone) {
  const samples::Shape shape{samples::table_format(2, 3), 1, 1, 4, 16};
  QuantizedTensor tensor = samples::random_tensor(shape, 11);
  const QuantizedTensor before = tensor;
  for (const std::size_t size : {0u, 7u, 9u}) {
    const std::string message =
        message_of([&] { reorder(tensor, std::vector<std::int64_t>(size, 1)); });
    EXPECT_NE(message.find("counts do not fit 1 units"), std::string::npos) << message;
  }
  tensor.format.decoder = Decoder::e8p;
  const std::string message =
      message_of([&] { reorder(tensor, std::vector<std::int64_t>(8, 1)); }, ErrorKind::infeasible);
  EXPECT_NE(message.find("reorder: codes of the decoder e8p"), std::string::npos) << message;
  EXPECT_EQ(tensor.codes, before.codes);
  EXPECT_EQ(tensor.codebooks, before.codebooks);
}

TEST(Reorder, OfABundleNeedsAProfileThatFits) {
  Bundle bundle = samples::full_bundle();
  const std::vector<AccessCounts> profiles = profile_bundle(bundle, 2);
  const auto refusal = [&](std::vector<AccessCounts> given) {
    return message_of([&] { reorder(bundle, given); });
  };
  EXPECT_NE(refusal({}).find("no profile of the keys of 'layer0'"), std::string::npos);
  EXPECT_NE(refusal({profiles[0], profiles[2]}).find("no profile of the values of 'layer0'"),
            std::string::npos);
  std::vector<AccessCounts> other = profiles;
  other[1].format.group_channels = 4;
  EXPECT_NE(refusal(other).find("'layer0.values' is of another format"), std::string::npos);
  other = profiles;
  other[2].units = 3;
  EXPECT_NE(refusal(other).find("'blocks.0.q.weights' is of another"), std::string::npos);
}

// Counts of other data give that data's order, and still the same bits.
TEST(Reorder, OfABundleByTheProfileOfAnother) {
  const Bundle bundle = samples::full_bundle();
  std::vector<AccessCounts> profiles = profile_bundle(bundle, 1);
  std::reverse(profiles[0].counts.begin(), profiles[0].counts.end());
  Bundle after = bundle;
  reorder(after, profiles);
  const QuantizedTensor& keys = std::get<AttentionData>(bundle.items[0].data).keys;
  const QuantizedTensor expected = reordered(keys, profiles[0].counts);
  const QuantizedTensor& is = std::get<AttentionData>(after.items[0].data).keys;
  EXPECT_EQ(is.codes, expected.codes);
  EXPECT_EQ(is.codebooks, expected.codebooks);
  EXPECT_NE(is.codes, reordered(keys, profile_of(keys).counts).codes);
  expect_same_bits(decode(is).data, decode(keys).data);
}

TEST(Reorder, OfABundleKeepsAllButCodesAndCodebooks) {
  const Bundle before = samples::full_bundle();
  Bundle after = before;
  reorder(after, profile_bundle(before));
  const auto& old_cache = std::get<AttentionData>(before.items[0].data);
  const auto& cache = std::get<AttentionData>(after.items[0].data);
  const auto& old_matrix = std::get<LinearData>(before.items[1].data);
  const auto& matrix = std::get<LinearData>(after.items[1].data);
  expect_same_bits(reconstruct(cache.keys).data, reconstruct(old_cache.keys).data);
  expect_same_bits(reconstruct(cache.values).data, reconstruct(old_cache.values).data);
  expect_same_bits(reconstruct(matrix.weights).data, reconstruct(old_matrix.weights).data);
  for (const QuantizedTensor* tensor : {&cache.keys, &cache.values, &matrix.weights}) {
    expect_hot_first(*tensor);
  }
  // With the old codes and codebooks put back, the file is the old file.
  Bundle mixed = after;
  auto& mixed_cache = std::get<AttentionData>(mixed.items[0].data);
  auto& mixed_matrix = std::get<LinearData>(mixed.items[1].data);
  EXPECT_NE(serialize_bundle(after), serialize_bundle(before));
  for (const auto& [to, from] : {std::pair{&mixed_cache.keys, &old_cache.keys},
                                 std::pair{&mixed_cache.values, &old_cache.values},
                                 std::pair{&mixed_matrix.weights, &old_matrix.weights}}) {
    to->codes = from->codes;
    to->codebooks = from->codebooks;
  }
  EXPECT_EQ(serialize_bundle(mixed), serialize_bundle(before));
  EXPECT_EQ(serialize_bundle(read_bundle(SafetensorsFile(serialize_bundle(after), "b"))),
            serialize_bundle(after));
}

}  // namespace
}  // namespace vqgen
