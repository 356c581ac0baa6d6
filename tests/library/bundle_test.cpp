// Bundles by the C functions: what an op takes of each item, and what is refused.
#include <vqgen/bundle.h>

#include <cstring>

#include "core/json/json.h"
#include "quantizer/basis.h"
#include "quantizer/bundle.h"
#include "quantizer/train/gain.h"
#include "quantizer/train/train.h"
#include "tests/core/support.h"
#include "tests/quantizer/quantize_files.h"

namespace {

using vqgen::QuantizedTensor;

template <class T>
std::vector<T> numbers(std::span<const std::byte> bytes) {
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

QuantizedTensor quantized(const vqgen::VqFormat& format, std::int64_t heads, std::int64_t rows) {
  const vqgen::FloatTensor vectors = vqgen::samples::normal_tensor(1, heads, rows, 16, 5);
  const vqgen::Codebooks books =
      vqgen::train_codebooks({"test", format, vqgen::DType::f16, &vectors, {}});
  QuantizedTensor out = encode(vectors, books);
  out.gain = gains_of(books, vectors, "test");
  return out;
}

class Bundles : public testing::Test {
 protected:
  void SetUp() override {
    vqgen::AttentionData cache;
    cache.keys = quantized(vqgen::samples::table_format(4, 4, vqgen::Scope::head), 2, 64);
    cache.values = quantized(vqgen::samples::table_format(2, 4, vqgen::Scope::head), 2, 64);
    cache.values.gain.clear();
    vqgen::LinearData weights;
    weights.weights = quantized(vqgen::samples::table_format(4, 4), 1, 64);
    weights.weights.gain.clear();
    keys_ = cache.keys;
    weights_ = weights.weights;
    path_ = (folder_.path() / "b").string();
    vqgen::write_bundle(path_, {{{"layer0", std::move(cache)}, {"w", std::move(weights)}}});
  }

  vqgen::TempFolder folder_;
  std::string path_;
  QuantizedTensor keys_, weights_;
};

TEST_F(Bundles, KeysThatAreReadAreLongerThanThoseThatAreEncoded) {
  const vqgen::BundleFile bundle(path_);
  const auto books = [&](const char* op) {
    return numbers<std::uint16_t>(bundle.tensor("layer0", op, "keys.codebooks"));
  };
  EXPECT_EQ(books("kv_append"), keys_.codebooks);
  QuantizedTensor longer = keys_;
  take_gain(longer);
  ASSERT_NE(longer.codebooks, keys_.codebooks);
  EXPECT_EQ(books("attention_decode"), longer.codebooks);
  EXPECT_EQ(books("kv_dequantize"), longer.codebooks);
  EXPECT_EQ(numbers<std::uint32_t>(bundle.tensor("layer0", "attention_decode", "keys.codes")),
            keys_.codes);
}

TEST_F(Bundles, WeightsAreThoseOfProducts) {
  const vqgen::BundleFile bundle(path_);
  for (const char* op : {"gemv", "gemm"}) {
    EXPECT_EQ(numbers<std::uint32_t>(bundle.tensor("w", op, "weights.codes")), weights_.codes);
    EXPECT_EQ(numbers<std::uint16_t>(bundle.tensor("w", op, "weights.codebooks")),
              weights_.codebooks);
    EXPECT_TRUE(bundle.tensor("w", op, "output_scales").empty());
    EXPECT_TRUE(bundle.tensor("w", op, "x").empty()) << "no tensor of a bundle";
  }
}

TEST_F(Bundles, DescriptionsHaveWhatConfigsTake) {
  const vqgen::Json items = vqgen::Json::parse(vqgen::BundleFile(path_).description());
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[0]["name"], "layer0");
  EXPECT_EQ(items[0]["kind"], "attention");
  EXPECT_EQ(items[0]["dtype"], "f16");
  EXPECT_EQ(items[0]["kv_heads"], 2);
  EXPECT_EQ(items[0]["head_dim"], 16);
  EXPECT_EQ(items[0]["values"]["vector_size"], 2);
  EXPECT_EQ(items[1]["out_features"], 64);
  EXPECT_EQ(items[1]["weights"], to_json(weights_.format));
}

TEST_F(Bundles, WhatIsAskedWronglyIsRefused) {
  const vqgen::BundleFile bundle(path_);
  const auto refused = [&](const char* item, const char* op, const char* argument) {
    try {
      static_cast<void>(bundle.tensor(item, op, argument));
    } catch (const vqgen::StatusError& error) {
      EXPECT_EQ(error.status(), VQGEN_BAD_INPUT);
      return std::string(error.what());
    }
    return std::string();
  };
  vqgen::expect_words(refused("layer1", "gemv", "x"), {path_, "no item 'layer1'", "'layer0'"});
  vqgen::expect_words(refused("layer0", "gemv", "x"), {"nothing for the op 'gemv'", "kv_append"});
  vqgen::expect_words(refused("w", "kv_append", "x"), {"nothing for the op 'kv_append'", "gemm"});
  vqgen::expect_words(refused("w", "gemm", "weights.code"), {"'weights.codes'"});
  const void* data = &data;
  std::size_t bytes = 1;
  EXPECT_EQ(vqgen_bundle_tensor(nullptr, "w", "gemm", "x", &data, &bytes), VQGEN_BAD_INPUT);
  vqgen_bundle* none = nullptr;
  EXPECT_EQ(vqgen_bundle_open("/nowhere", &none), VQGEN_BAD_INPUT);
  vqgen::expect_words(vqgen_last_error(), {"/nowhere"});
  EXPECT_EQ(none, nullptr);
  vqgen_bundle_release(none);
  EXPECT_STREQ(vqgen_bundle_description(nullptr), "");
}

}  // namespace
