// Bundles whose metadata and tensors disagree, or that hold numbers that no kernel may see.
#include <functional>
#include <limits>

#include "core/json/json.h"
#include "quantizer/bundle.h"
#include "tests/quantizer/samples.h"

namespace vqgen {
namespace {

// Writes a valid bundle after `spoil` has changed its data: the reader must refuse it with a
// message that holds `expected`.
template <class Data>
void expect_refused(const std::function<void(Data&)>& spoil, const std::string& expected) {
  Bundle bundle = samples::full_bundle();
  for (BundleItem& item : bundle.items) {
    if (Data* data = std::get_if<Data>(&item.data)) spoil(*data);
  }
  const std::string message = message_of(
      [&] { read_bundle(SafetensorsFile(serialize_bundle(bundle), "lie.safetensors")); });
  EXPECT_NE(message.find("lie.safetensors"), std::string::npos) << message;
  EXPECT_NE(message.find(expected), std::string::npos) << message;
}

// A valid bundle with one text of its metadata replaced.
void expect_refused_metadata(const std::string& from, const std::string& to,
                             const std::string& expected, ErrorKind kind = ErrorKind::bad_input) {
  const std::vector<std::byte> bytes = serialize_bundle(samples::full_bundle());
  const SafetensorsFile file(bytes, "b");
  std::map<std::string, std::string> metadata = file.metadata();
  std::string& text = metadata.at("vqgen.bundle");
  const std::size_t place = text.find(from);
  ASSERT_NE(place, std::string::npos) << from << " in " << text;
  text.replace(place, from.size(), to);
  const std::string message = message_of(
      [&] {
        read_bundle(SafetensorsFile(serialize_safetensors(samples::views_of(bytes), metadata),
                                    "lie.safetensors"));
      },
      kind);
  EXPECT_NE(message.find(expected), std::string::npos) << message;
}

TEST(BundleLies, NoBundleAtAll) {
  const SafetensorsFile file(serialize_safetensors({}, {{"format", "pt"}}), "a.safetensors");
  EXPECT_NE(message_of([&] { read_bundle(file); }).find("a.safetensors: not a bundle"),
            std::string::npos);
}

TEST(BundleLies, SchemaAndItems) {
  expect_refused_metadata(R"("schema":1)", R"("schema":2,"future":3)",
                          "lie.safetensors: vqgen.bundle: /schema: is format version 2, and this "
                          "vqgen knows up to 1; upgrade vqgen");
  expect_refused_metadata(R"("schema":1)", R"("schema":"1")", "/schema: must be a whole number");
  expect_refused_metadata(R"("schema":1)", R"("scheme":1)", "unknown field 'scheme'");
  expect_refused_metadata(R"("kind":"weights")", R"("kind":"conv")", "'conv' is none of");
  expect_refused_metadata(R"("name":"layer0")", R"("name":"layer1")", "'layer1.keys.codes'");
  expect_refused_metadata(R"("name":"layer0")", R"("name":"blocks.0.q")", "is not there");
  expect_refused_metadata(R"("kv_heads":2)", R"("kv_heads":-2)", "/items/0/kv_heads");
}

// With many items, no item is compared with all previous ones, and a text is parsed once.
TEST(BundleLies, ManyItems) {
  constexpr std::size_t kItems = 20'000;
  const Json item{{"name", "a"},        {"kind", "weights"},
                  {"dtype", "f16"},     {"weights", {{"vector_size", 4}, {"index_bits", 4}}},
                  {"out_features", 16}, {"in_features", 16}};
  Json items = Json::array();
  std::vector<TensorView> tensors;
  const std::vector<std::uint16_t> entries(16 * 4);
  const std::vector<std::uint32_t> codes(16);
  const auto refusal = [&] {
    const Json root{{"schema", 1}, {"items", items}};
    const SafetensorsFile file(serialize_safetensors(tensors, {{"vqgen.bundle", root.dump()}}),
                               "b");
    return message_of([&] { read_bundle(file); });
  };
  for (std::size_t i = 0; i < kItems; ++i) {
    items.push_back(item);
    const std::string name = "a" + std::to_string(i);
    items.back()["name"] = name;
    tensors.push_back(
        tensor_view(name + ".weights.codebooks", TensorType::f16, {1, 1, 16, 4}, entries));
    tensors.push_back(tensor_view(name + ".weights.codes", TensorType::u32, {1, 1, 16, 1}, codes));
  }
  items.push_back(items.back());
  EXPECT_NE(refusal().find("/items/20000/name: is there twice"), std::string::npos);
  tensors.clear();
  items = Json(kItems * 5, item);
  EXPECT_NE(refusal().find("'a.weights.codes': is not there"), std::string::npos);
}

TEST(BundleLies, LayoutsThatDoNotFit) {
  const auto with = [](const std::string& layout) {
    return R"("index_bits":5,"layout":)" + layout;
  };
  const std::string place = R"("index_bits":5)";
  expect_refused_metadata(place, with(R"({"rows":2,"words":2})"), "layer0.keys.codes");
  expect_refused_metadata(place, with(R"({"rows":4,"words":2})"), "no kernel reads groups of 4");
  expect_refused_metadata(place, with(R"({"rows":3,"words":1})"), "no kernel reads groups of 3");
  expect_refused_metadata(place, with(R"({"rows":0,"words":1})"), "/keys/layout/rows");
  expect_refused_metadata(place, with(R"({"columns":2})"), "unknown field 'columns'");
  expect_refused_metadata(place, with("4"), "/keys/layout");
}

TEST(BundleLies, FormatsThatDoNotFit) {
  expect_refused_metadata(R"("vector_size":4)", R"("vector_size":8)", "layer0.keys.codes");
  expect_refused_metadata(R"("vector_size":4)", R"("vector_size":5)", "vector_size");
  expect_refused_metadata(R"("index_bits":5)", R"("index_bits":6)", "layer0.keys.codebooks");
  expect_refused_metadata(R"("num_codebooks":2)", R"("num_codebooks":36)", "layer0.keys.codes");
  expect_refused_metadata(R"("scope":"head")", R"("scope":"tensor")", "layer0.keys.codebooks");
  expect_refused_metadata(R"("decoder":"table")", R"("decoder":"e8p")", "e8p makes 8 elements");
  expect_refused_metadata(R"("entry_type":"element")", R"("entry_type":"int8")",
                          "entries of this format are integers from -127 to 127");
  expect_refused_metadata(R"("stage_scales":true)", R"("stage_scales":false)",
                          "layer0.keys.stage_scales");
  expect_refused_metadata(R"("head_dim":16)", R"("head_dim":1024)", "layer0.keys.codes");
  expect_refused_metadata(R"("tokens":6)", R"("tokens":2147483647)", "layer0.keys.codes");
  expect_refused_metadata(R"("dtype":"f16")", R"("dtype":"bf16")",
                          "where the metadata asks for BF16");
}

TEST(BundleLies, QueriesThatDoNotFit) {
  expect_refused<AttentionData>([](auto& data) { data.lengths[1] = 7; }, "element 1 is 7");
  expect_refused<AttentionData>([](auto& data) { data.lengths[1] = -1; }, "element 1 is -1");
  expect_refused<AttentionData>([](auto& data) { data.recent_counts[0] = 3; },
                                "layer0.recent_counts");
  expect_refused<AttentionData>([](auto& data) { data.sinks[0] = 2; }, "layer0.sinks");
  expect_refused<AttentionData>([](auto& data) { data.lengths.clear(); }, "layer0.lengths");
  expect_refused<AttentionData>([](auto& data) { data.raw_keys.clear(); }, "layer0.raw_keys");
  expect_refused_metadata(R"("query_heads":4)", R"("query_heads":5)", "query_heads");
  expect_refused_metadata(R"("query_heads":4)", R"("query_heads":0)", "queries without heads");
  expect_refused_metadata(R"("batch":3)", R"("batch":2)", "layer0.queries");
  expect_refused_metadata(R"("cache_batch":1)", R"("cache_batch":2)", "2 sequences for 3 queries");
}

TEST(BundleLies, ValuesThatArePartOfTheKeysTransform) {
  expect_refused<AttentionData>(
      [](auto& data) {
        data.values.format.smooth = true;
        data.values.smooth.assign(32, 1.0f);
      },
      "transform keys only");
}

TEST(BundleLies, NumbersThatAreNone) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr std::uint16_t kInfinity16 = 0x7c00;
  expect_refused<AttentionData>([](auto& data) { data.keys.codebooks[3] = kInfinity16; },
                                "'layer0.keys.codebooks': element 3");
  expect_refused<AttentionData>([](auto& data) { data.keys.stage_scales[1] = kNan; },
                                "'layer0.keys.stage_scales': element 1");
  expect_refused<AttentionData>([](auto& data) { data.keys.smooth[2] = kNan; },
                                "layer0.keys.smooth");
  expect_refused<AttentionData>([](auto& data) { data.keys.smooth[2] = 0.0f; }, "above 0");
  expect_refused<AttentionData>([](auto& data) { data.queries[0] = kInfinity16; },
                                "layer0.queries");
  expect_refused<LinearData>([](auto& data) { data.weights.output_scales[9] = kNan; },
                             "'blocks.0.q.weights.output_scales': element 9");
  expect_refused<LinearData>([](auto& data) { data.x[1] = kInfinity16; }, "blocks.0.q.x");
  expect_refused<LinearData>([](auto& data) { data.original_weights[1] = kInfinity16; },
                             "weights.original");
}

TEST(BundleLies, ALatticeWhoseTableIsNone) {
  const auto refused = [](float value, std::size_t place) {
    Bundle bundle = samples::lattice_bundle();
    auto& codebooks = std::get<LinearData>(bundle.items[0].data).weights.codebooks;
    codebooks[place] = f16_from_float(value);
    const std::string message = message_of(
        [&] { read_bundle(SafetensorsFile(serialize_bundle(bundle), "lie.safetensors")); });
    const std::string expected = fmt::format(
        "'blocks.0.q.weights.codebooks': element {} is {}; entries of this format are half-", place,
        value);
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  };
  refused(0.0f, 0);
  refused(-0.5f, 7);
  refused(1.0f, 4000);
  refused(4.5f, 8191);

  // A table of 65,536 entries, or a table of vectors that a projection would move off the lattice.
  const std::vector<std::byte> bytes = serialize_bundle(samples::lattice_bundle());
  const SafetensorsFile file(bytes, "b");
  const auto refused_with = [&](std::vector<TensorView> views, const std::string& expected,
                                const std::string& decoder) {
    std::map<std::string, std::string> metadata = file.metadata();
    std::string& text = metadata.at("vqgen.bundle");
    text.replace(text.find(R"("decoder":"e8p")"), 15, R"("decoder":")" + decoder + '"');
    const std::string message = message_of(
        [&] { read_bundle(SafetensorsFile(serialize_safetensors(views, metadata), "lie")); });
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  };
  refused_with(samples::views_of(bytes), "weights.codebooks", "table");
  const std::vector<float> projections(2 * 8 * 8, 1.0f);
  std::vector<TensorView> more = samples::views_of(bytes);
  more.push_back(
      tensor_view("blocks.0.q.weights.projections", TensorType::f32, {2, 8, 8}, projections));
  refused_with(more, "projections': belongs to nothing", "e8p");
}

TEST(BundleLies, TensorsThatNothingTellsOf) {
  expect_refused<LinearData>([](auto& data) { data.weights.smooth.assign(16, 1.0f); },
                             "'blocks.0.q.weights.smooth': belongs to nothing");
}

// Nothing multiplies the entries of values and weights by a gain.
TEST(BundleLies, AGainOfOthersThanKeys) {
  const std::vector<std::byte> bytes = serialize_bundle(samples::full_bundle());
  const SafetensorsFile file(bytes, "b");
  const std::vector<float> gain(1, 1.5f);
  for (const std::string name : {"layer0.values.gain", "blocks.0.q.weights.gain"}) {
    std::vector<TensorView> views = samples::views_of(bytes);
    views.push_back(tensor_view(name, TensorType::f32, {1}, gain));
    const std::string message = message_of([&] {
      read_bundle(SafetensorsFile(serialize_safetensors(views, file.metadata()), "lie"));
    });
    EXPECT_NE(message.find("'" + name + "': belongs to nothing"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace vqgen
