// Bundles against configs whose formats differ: refused by the differing fields, whichever they
// are.
#include "runtime/stored_data.h"

#include "core/profiles.h"
#include "tests/core/support.h"

namespace vqgen {
namespace {

BundleItem cache_of(const VqFormat& keys, const VqFormat& values) {
  AttentionData data;
  data.keys.format = keys;
  data.values.format = values;
  for (QuantizedTensor* tensor : {&data.keys, &data.values}) {
    tensor->heads = 2;
    tensor->rows = 1000;
    tensor->columns = 128;
  }
  return {"layer0", data};
}

BundleItem matrix_of(const VqFormat& format) {
  LinearData data;
  data.weights.format = format;
  data.weights.rows = 512;
  data.weights.columns = 1024;
  return {"up", data};
}

// The configs are not validated, so formats meet that no valid problem has together.
TEST(StoredData, FormatsThatDifferAreRefusedByName) {
  Config attention = read_config(attention_json(), "c.json");
  Config gemv = read_config(gemv_json(), "c.json");
  auto& cache = std::get<AttentionDecode>(attention.problem);
  auto& linear = std::get<Gemv>(gemv.problem);
  std::size_t pairs = 0;
  for (const std::string& mine : format_names()) {
    for (const std::string& other : format_names()) {
      const VqFormat in_bundle = find_format(mine, "here");
      const VqFormat in_config = find_format(other, "here");
      cache.keys = cache.values = linear.weights = in_config;
      const BundleItem items[] = {cache_of(in_bundle, in_bundle), matrix_of(in_bundle)};
      for (const BundleItem& item : items) {
        const Config& config = &item == items ? attention : gemv;
        const auto judge = [&] { require_same_sizes(config, item, "b.vq"); };
        SCOPED_TRACE(mine + " in the bundle, " + other + " in the config");
        if (in_bundle == in_config) {
          EXPECT_NO_THROW(judge());
        } else {
          ++pairs;
          expect_words(message_of(judge), {"b.vq: ", "the format of", "make them agree"});
        }
      }
    }
  }
  EXPECT_GT(pairs, 200u);
}

TEST(StoredData, AFieldThatOneOfThemLacksIsToldOfBoth) {
  Config gemv = read_config(gemv_json(), "c.json");
  VqFormat& format = std::get<Gemv>(gemv.problem).weights;
  VqFormat in_bundle = format;
  in_bundle.common_scale = true;
  for (int turn = 0; turn < 2; ++turn) {
    const std::string message =
        message_of([&] { require_same_sizes(gemv, matrix_of(in_bundle), "b.vq"); });
    expect_words(message, {turn == 0 ? R"(is {"common_scale":true} in the bundle)"
                                     : R"(is {"common_scale":false} in the bundle)"});
    std::swap(format, in_bundle);
  }
}

TEST(StoredData, OpsThatReadNoBundleSaySo) {
  for (const Json& json : {append_json(), merge_json(), scalar_json()}) {
    const Config config = read_config(json, "c.json");
    expect_words(message_of([&] { require_same_sizes(config, matrix_of({}), "b.vq"); }),
                 {"b.vq: ", "which reads no bundle"});
  }
}

}  // namespace
}  // namespace vqgen
