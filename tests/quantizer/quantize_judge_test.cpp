// What is refused, and what is left out, before anything is trained.
#include "core/profiles.h"
#include "tests/quantizer/quantize_files.h"

namespace vqgen {
namespace {

// Every way to refuse an item, as the last of three: nothing is trained before it.
TEST_F(Quantize, AllItemsAreJudgedBeforeTheFirstIsTrained) {
  struct Fault {
    std::vector<std::int64_t> shape;
    std::uint16_t element;  // for all of them
    const char* words;
  };
  const std::vector<Fault> faults{{{64, 100}, 0x3c00, "8 does not divide in_features 100"},
                                  {{128}, 0x3c00, "has shape [128]"},
                                  {{2, 64, 64}, 0x3c00, "has shape [2, 64, 64]"},
                                  {{1, 128}, 0x3c00, "16 sub-vectors cannot train 256 entries"},
                                  {{64, 128}, 0x7e00, "element 0 is nan"},
                                  {{64, 128}, 0x7c00, "element 0 is inf"}};
  for (const Fault& fault : faults) {
    add("a.weight", {64, 128}, 1);
    add("b.weight", {64, 128}, 2);
    add("z.weight", fault.shape, 3);
    std::fill(values_.back().begin(), values_.back().end(), fault.element);
    QuantizeWeightsRequest request;
    request.input = write("w.safetensors");
    request.weights = "*.weight";
    request.format = samples::table_format(8, 8);
    int trained = 0;
    request.options.make_books = [&](std::vector<float> vectors, BookShape shape) {
      ++trained;
      return make_host_books(std::move(vectors), std::move(shape));
    };
    const std::string message = message_of([&] { quantize_weights(request); });
    EXPECT_NE(message.find(fault.words), std::string::npos) << message;
    EXPECT_NE(message.find("z.weight"), std::string::npos) << message;
    EXPECT_NE(message.find("or leave it out with --exclude"), std::string::npos) << message;
    EXPECT_EQ(trained, 0) << message;
    request.exclude = {"z.*"};
    EXPECT_EQ(quantize_weights(request).bundle.items.size(), 2u);
    names_.clear();
    shapes_.clear();
    values_.clear();
  }
}

TEST_F(Quantize, AllCachesAreJudgedBeforeTheFirstIsTrained) {
  const QuantizeKvRequest good = kv_request();
  const auto refused = [&](const std::function<void(QuantizeKvRequest&)>& spoil,
                           const std::string& words) {
    QuantizeKvRequest request = good;
    request.options.make_books = [](std::vector<float>, BookShape) {
      ADD_FAILURE() << "trains";
      return std::unique_ptr<VectorBooks>();
    };
    spoil(request);
    const std::string message = message_of([&] { quantize_kv(request); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
  };
  // Faults of the second layer: its values' length, its queries, a number, the calibration's.
  shapes_[5] = {2, 20, 32};
  refused([&](auto& r) { r.input = write("shape.safetensors"); }, "'layer1.v': has shape");
  shapes_[5] = {2, 40, 16};
  shapes_[6] = {3, 8, 16};
  values_[6].resize(3 * 8 * 16);
  refused([&](auto& r) { r.input = write("queries.safetensors"); }, "'layer1.q': has shape");
  shapes_[6] = {4, 8, 16};
  values_[6].resize(4 * 8 * 16);
  values_[4][3] = 0x7c00;
  refused([&](auto& r) { r.input = write("inf.safetensors"); }, "'layer1.k': element 3 is inf");
  refused([&](auto& r) { r.calibration = write("inf.safetensors"); }, "'layer1.k': element 3");
  values_[4][3] = 0;
  shapes_[4] = {1, 80, 16};
  refused([&](auto& r) { r.calibration = write("heads.safetensors"); }, "'layer1.k': has shape");
  refused([](auto& r) { r.key_format.index_bits = 9; }, "2 of 2 tensors in all");
  refused([](auto& r) { r.exclude = {"layer*"}; }, "--exclude leaves out every tensor");
}

// Numbers that are beyond f16, as entries or scales of the last of two tensors, in each format that
// stores such; what divides by scales of its own takes them.
class Beyond : public Quantize {
 protected:
  static void refuse_training(QuantizeRequest& request) {
    request.dtype = DType::f16;
    request.options.make_books = [](std::vector<float>, BookShape) {
      ADD_FAILURE() << "trains";
      return std::unique_ptr<VectorBooks>();
    };
  }
  // Two layers of keys, values and weights; the second's are `factor` times normal numbers.
  std::filesystem::path floats(float factor) {
    std::vector<std::vector<float>> values;
    std::vector<TensorView> views;
    values.reserve(6);
    for (const std::string layer : {"a", "b"}) {
      for (const std::string name : {".k", ".v", ".weight"}) {
        const bool weight = name == ".weight";
        const auto seed = static_cast<std::uint32_t>(views.size());
        values.push_back(samples::normal_floats(weight ? 64 * 128 : 2 * 64 * 64, seed));
        for (float& value : values.back()) value *= layer == "b" ? factor : 1;
        const std::vector<std::int64_t> shape =
            weight ? std::vector<std::int64_t>{64, 128} : std::vector<std::int64_t>{2, 64, 64};
        views.push_back(tensor_view(layer + name, TensorType::f32, shape, values.back()));
      }
    }
    write_safetensors(directory_ / "floats.safetensors", views, {});
    return directory_ / "floats.safetensors";
  }
  static VqFormat preset(const std::string& name) { return parse_format(name, "format"); }
};

TEST_F(Beyond, WeightsAreRefusedBeforeTheFirstIsTrained) {
  QuantizeWeightsRequest request;
  request.input = floats(1e6f);
  request.weights = "*.weight";
  request.format = samples::table_format(8, 8);
  request.any_format = true;
  const QuantizeWeightsRequest trained = request;
  refuse_training(request);
  const std::string message = message_of([&] { quantize_weights(request); });
  for (const char* words : {"floats.safetensors: b.weight: entries of numbers up to ",
                            "beyond f16; use --dtype bf16, or a format with stage_scales",
                            "or leave it out with --exclude"}) {
    EXPECT_NE(message.find(words), std::string::npos) << message;
  }
  for (int remedy = 0; remedy < 2; ++remedy) {
    request = trained;
    request.dtype = remedy == 0 ? DType::bf16 : DType::f16;
    request.format.stage_scales = remedy == 1;
    EXPECT_EQ(quantize_weights(request).bundle.items.size(), 2u);
  }
}

TEST_F(Beyond, CachesAreRefusedBeforeTheFirstIsTrained) {
  VqFormat parts;
  for (int part = 0; part < 2; ++part) {
    parts.parts.push_back(samples::table_format(8, 4));
    for (int i = 0; i < 32; ++i) parts.parts.back().channels.push_back(part * 32 + i);
  }
  VqFormat rotated = samples::table_format(4, 4);
  rotated.hadamard = true;
  struct Case {
    VqFormat keys;
    const char* words;
  };
  const std::vector<Case> cases{
      {samples::table_format(4, 4), "b.k: entries of numbers up to "},
      {rotated, "b.k: entries of numbers up to "},
      {parts, "b.k: entries of numbers up to "},
      {preset("int8-channel"), "b.k: scales of numbers up to "},
      {preset("int4-kivi-keys"), "b.k: the scale inf and the zero -inf of a token"}};
  for (const Case& each : cases) {
    QuantizeKvRequest request;
    request.input = floats(1e8f);
    request.keys = "*.k";
    request.values = "*.v";
    request.key_format = each.keys;
    request.value_format = preset("int8-token");  // whose scales are floats
    request.any_format = true;
    refuse_training(request);
    const std::string message = message_of([&] { quantize_kv(request); });
    EXPECT_NE(message.find(each.words), std::string::npos) << message;
    EXPECT_NE(message.find("bf16"), std::string::npos) << message;
    request.calibration = floats(1e8f);
    EXPECT_EQ(message_of([&] { quantize_kv(request); }), message);
    request = {};
    request.input = floats(1e8f);
    request.keys = "*.k";
    request.values = "*.v";
    request.key_format = preset("int8-token");
    request.value_format = each.keys;
    request.any_format = true;
    refuse_training(request);
    const std::string values = message_of([&] { quantize_kv(request); });
    EXPECT_NE(values.find("b.v: "), std::string::npos) << values;
    request.dtype = DType::bf16;
    request.options.make_books = make_host_books;
    EXPECT_EQ(quantize_kv(request).bundle.items.size(), 2u);
  }
  QuantizeKvRequest split;
  split.input = floats(1e8f);
  split.keys = "*.k";
  split.values = "*.v";
  for (VqFormat& part : parts.parts) part.stage_scales = true;
  split.key_format = in_parts(parts.parts);
  split.value_format = preset("int8-token");
  split.split_by = samples::table_format(4, 4);
  split.any_format = true;
  refuse_training(split);
  const std::string message = message_of([&] { quantize_kv(split); });
  EXPECT_NE(message.find("b.k: entries of numbers"), std::string::npos) << message;
}

TEST_F(Quantize, LeavesOutWhatIsExcludedAndWarnsOfNamesThatLeaveOutNothing) {
  QuantizeKvRequest request = kv_request();
  request.exclude = {"layer0.*", "layer7.k"};
  std::vector<std::string> warnings;
  request.options.warn = [&](const std::string& message) { warnings.push_back(message); };
  std::vector<std::string> judged;
  request.judged = [&](const BundleItem& item) {
    const auto& data = std::get<AttentionData>(item.data);
    EXPECT_EQ(std::tuple(data.keys.heads, data.keys.rows, data.keys.columns),
              std::tuple(2, 40, 16));
    judged.push_back(item.name);
  };
  const QuantizeResult result = quantize_kv(request);
  ASSERT_EQ(result.bundle.items.size(), 1u);
  EXPECT_EQ(result.bundle.items[0].name, "layer1");
  EXPECT_EQ(judged, std::vector<std::string>{"layer1"});
  ASSERT_FALSE(warnings.empty());
  EXPECT_NE(warnings[0].find("--exclude 'layer7.k' leaves out nothing"), std::string::npos);
}

}  // namespace
}  // namespace vqgen
