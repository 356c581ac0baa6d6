#include "quantizer/bundle.h"

#include "core/files/files.h"
#include "quantizer/encode.h"
#include "tests/quantizer/samples.h"

namespace vqgen {
namespace {

void expect_equal(const QuantizedTensor& a, const QuantizedTensor& b) {
  EXPECT_EQ(a.format, b.format);
  EXPECT_EQ(a.dtype, b.dtype);
  EXPECT_EQ(std::tuple(a.batch, a.heads, a.rows, a.columns, a.row_words, a.units),
            std::tuple(b.batch, b.heads, b.rows, b.columns, b.row_words, b.units));
  EXPECT_EQ(a.codes, b.codes);
  EXPECT_EQ(a.codebooks, b.codebooks);
  EXPECT_EQ(a.stage_scales, b.stage_scales);
  EXPECT_EQ(a.output_scales, b.output_scales);
  EXPECT_EQ(a.smooth, b.smooth);
}

void expect_equal(const AttentionData& a, const AttentionData& b) {
  EXPECT_EQ(a.dtype, b.dtype);
  expect_equal(a.keys, b.keys);
  expect_equal(a.values, b.values);
  EXPECT_EQ(std::tuple(a.batch, a.query_heads, a.max_recent_tokens, a.max_sinks),
            std::tuple(b.batch, b.query_heads, b.max_recent_tokens, b.max_sinks));
  EXPECT_EQ(a.queries, b.queries);
  EXPECT_EQ(a.lengths, b.lengths);
  EXPECT_EQ(a.recent_counts, b.recent_counts);
  EXPECT_EQ(a.sinks, b.sinks);
  EXPECT_EQ(a.raw_keys, b.raw_keys);
  EXPECT_EQ(a.raw_values, b.raw_values);
  EXPECT_EQ(a.original_keys, b.original_keys);
  EXPECT_EQ(a.original_values, b.original_values);
}

void expect_equal(const LinearData& a, const LinearData& b) {
  EXPECT_EQ(a.dtype, b.dtype);
  expect_equal(a.weights, b.weights);
  EXPECT_EQ(a.input_rows, b.input_rows);
  EXPECT_EQ(a.x, b.x);
  EXPECT_EQ(a.original_weights, b.original_weights);
}

void expect_equal(const Bundle& a, const Bundle& b) {
  ASSERT_EQ(a.items.size(), b.items.size());
  for (std::size_t i = 0; i < a.items.size(); ++i) {
    EXPECT_EQ(a.items[i].name, b.items[i].name);
    ASSERT_EQ(a.items[i].data.index(), b.items[i].data.index());
    std::visit(
        [&](const auto& data) {
          expect_equal(data, std::get<std::decay_t<decltype(data)>>(b.items[i].data));
        },
        a.items[i].data);
  }
}

TEST(Bundle, GivesBackEveryPart) {
  const samples::TemporaryDirectory directory;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Bundle bundle = samples::full_bundle(dtype);
    write_bundle(directory / "b.safetensors", bundle);
    const Bundle again = read_bundle(directory / "b.safetensors");
    expect_equal(again, bundle);
    EXPECT_EQ(serialize_bundle(again), serialize_bundle(bundle));
    EXPECT_EQ(read_file(directory / "b.safetensors"), serialize_bundle(bundle));
  }
}

TEST(Bundle, KeepsALatticeByItsTable) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Bundle bundle = samples::lattice_bundle(dtype);
    const Bundle again = read_bundle(SafetensorsFile(serialize_bundle(bundle), "b"));
    expect_equal(again, bundle);
    const QuantizedTensor& weights = std::get<LinearData>(again.items[0].data).weights;
    EXPECT_EQ(weights.codebooks.size(), 2u * 2 * 256 * 8);
  }
}

TEST(Bundle, OptionalPartsMayBeMissing) {
  Bundle bundle = samples::full_bundle();
  auto& attention = std::get<AttentionData>(bundle.items[0].data);
  attention.batch = attention.query_heads = attention.max_recent_tokens = attention.max_sinks = 0;
  attention.queries.clear();
  attention.lengths.clear();
  attention.recent_counts.clear();
  attention.sinks.clear();
  attention.raw_keys.clear();
  attention.raw_values.clear();
  attention.original_keys.clear();
  attention.original_values.clear();
  auto& gemv = std::get<LinearData>(bundle.items[1].data);
  gemv.input_rows = 0;
  gemv.x.clear();
  gemv.original_weights.clear();
  expect_equal(read_bundle(SafetensorsFile(serialize_bundle(bundle), "b")), bundle);
}

TEST(Bundle, ProjectionsAreFoldedIntoTheEntries) {
  // A codebook W q stored as q with W must read back as W q.
  const Bundle bundle = samples::full_bundle();
  const std::vector<std::byte> bytes = serialize_bundle(bundle);
  const SafetensorsFile file(bytes, "b");
  const std::vector<float> projections = samples::normal_floats(2 * 4 * 4, 11);
  std::vector<TensorView> views = samples::views_of(bytes);
  views.push_back(tensor_view("layer0.keys.projections", TensorType::f32, {2, 4, 4}, projections));
  const Bundle folded =
      read_bundle(SafetensorsFile(serialize_safetensors(views, file.metadata()), "b"));

  const auto& plain = std::get<AttentionData>(bundle.items[0].data);
  Codebooks expected{plain.keys.format, DType::f16, 2, plain.keys.codebooks, {}, projections};
  fold_projections(expected);
  const auto& read = std::get<AttentionData>(folded.items[0].data);
  EXPECT_EQ(read.keys.codebooks, expected.entries);
  EXPECT_NE(read.keys.codebooks, plain.keys.codebooks);
  EXPECT_EQ(read.keys.codes, plain.keys.codes);
}

TEST(Bundle, TwoItemsOfANameAreRefused) {
  Bundle bundle = samples::full_bundle();
  bundle.items[1].name = "layer0";
  message_of([&] { serialize_bundle(bundle); });
}

}  // namespace
}  // namespace vqgen
