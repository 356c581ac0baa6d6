#include "quantizer/safetensors.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <limits>

#include "core/files/files.h"
#include "tests/quantizer/samples.h"
#include "tests/write_safetensors.h"

namespace vqgen {
namespace {

class Safetensors : public ::testing::Test {
 protected:
  std::vector<TensorView> views() const {
    return {tensor_view("z.words", TensorType::u32, {2, 2}, words_),
            tensor_view("half", TensorType::f16, {3}, half_),
            tensor_view("brain", TensorType::bf16, {3, 1}, brain_),
            tensor_view("full", TensorType::f32, {1, 3}, full_),
            tensor_view("counts", TensorType::i32, {2}, counts_),
            tensor_view("raw", TensorType::u16, {3}, half_),
            tensor_view("empty", TensorType::f32, {0, 4}, std::vector<float>{}),
            tensor_view("scalar", TensorType::i32, {}, one_)};
  }
  const std::vector<std::uint32_t> words_{1, 2, 0xffffffff, 4};
  const std::vector<float> full_{0.5f, -2.0f, 1e-3f};
  const std::vector<std::uint16_t> half_ = samples::bits_of(full_, DType::f16);
  const std::vector<std::uint16_t> brain_ = samples::bits_of(full_, DType::bf16);
  const std::vector<std::int32_t> counts_{-7, 8};
  const std::vector<std::int32_t> one_{1};
};

TEST_F(Safetensors, GivesBackWhatWasWritten) {
  const samples::TemporaryDirectory directory;
  write_safetensors(directory / "a.safetensors", views(), {{"origin", "test"}});
  const SafetensorsFile file(directory / "a.safetensors");
  EXPECT_EQ(file.metadata().at("origin"), "test");
  ASSERT_EQ(file.tensors().size(), 8u);
  EXPECT_EQ(file.tensors().front().name, "brain");
  EXPECT_EQ(file.at("z.words").shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(file.at("z.words").elements(), 4);
  EXPECT_EQ(file.read_u32("z.words"), words_);
  EXPECT_EQ(file.read_i32("counts"), counts_);
  EXPECT_EQ(file.read_bits16("half"), half_);
  EXPECT_EQ(file.read_bits16("raw"), half_);
  EXPECT_EQ(file.read_floats("full"), full_);
  EXPECT_TRUE(file.read_floats("empty").empty());
  EXPECT_EQ(file.at("scalar").elements(), 1);
  for (std::size_t i = 0; i < full_.size(); ++i) {
    EXPECT_EQ(file.read_floats("half")[i], f16_to_float(half_[i]));
    EXPECT_EQ(file.read_floats("brain")[i], bf16_to_float(brain_[i]));
  }
  EXPECT_EQ(file.find("absent"), nullptr);
}

// A quarter of a terabyte, all of it a hole except the ends: only what is asked for is read.
TEST_F(Safetensors, TensorsOfAFileThatNoMemoryHoldsAreRead) {
  const samples::TemporaryDirectory directory;
  const std::filesystem::path path = directory / "large.safetensors";
  constexpr std::uint64_t kHole = std::uint64_t{1} << 38;
  const std::string header =
      fmt::format(R"({{"hole":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}},)"
                  R"("full":{{"dtype":"F32","shape":[3],"data_offsets":[{0},{1}]}}}})",
                  kHole, kHole + 12);
  const std::uint64_t length = header.size();
  const std::string begin = std::string(reinterpret_cast<const char*>(&length), 8) + header;
  publish_text(path, begin);
  std::error_code code;
  std::filesystem::resize_file(path, begin.size() + kHole + 12, code);
  if (code) GTEST_SKIP() << "this file system has no files of " << kHole << " bytes";
  std::fstream stream(path, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekp(static_cast<std::streamoff>(begin.size() + kHole));
  stream.write(reinterpret_cast<const char*>(full_.data()), 12);
  stream.close();
  const SafetensorsFile file(path);
  EXPECT_EQ(file.at("hole").elements(), static_cast<std::int64_t>(kHole));
  EXPECT_EQ(file.read_floats("full"), full_);
}

TEST_F(Safetensors, AFileThatIsCutWhileItIsReadIsAnError) {
  const samples::TemporaryDirectory directory;
  const std::filesystem::path path = directory / "a.safetensors";
  write_safetensors(path, views(), {});
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_EQ(file.read_bits16("half"), half_);
  EXPECT_NE(message_of([&] { file.read_u32("z.words"); }).find(path.string() + ": cannot read"),
            std::string::npos);
}

TEST_F(Safetensors, IsTheSameFileForTheSameTensorsInAnyOrder) {
  std::vector<TensorView> reversed = views();
  std::reverse(reversed.begin(), reversed.end());
  const std::vector<std::byte> bytes = serialize_safetensors(views(), {});
  EXPECT_EQ(serialize_safetensors(reversed, {}), bytes);
  EXPECT_EQ(std::to_integer<int>(bytes[0]) % 8, 0) << "the data begins 8-byte aligned";
}

TEST_F(Safetensors, NamesWhatIsWrongWithARequest) {
  const SafetensorsFile file(serialize_safetensors(views(), {}), "a.safetensors");
  const std::string absent = message_of([&] { file.read_floats("layer9.k"); });
  EXPECT_NE(absent.find("a.safetensors: tensor 'layer9.k': is not there; the file has brain, "),
            std::string::npos)
      << absent;
  EXPECT_NE(message_of([&] { file.read_floats("counts"); }).find("is I32 where F16, BF16 or F32"),
            std::string::npos);
  message_of([&] { file.read_bits16("full"); });
  message_of([&] { file.read_u32("counts"); });
  message_of([&] { file.read_i32("z.words"); });
  message_of([] { SafetensorsFile("/nonexistent/a.safetensors"); });
}

TEST_F(Safetensors, TheWriterRefusesTwoOfANameAndWrongSizes) {
  std::vector<TensorView> twice = views();
  twice.push_back(twice.front());
  EXPECT_NE(message_of([&] { serialize_safetensors(twice, {}); }).find("'z.words'"),
            std::string::npos);
  std::vector<TensorView> wrong = views();
  wrong[0].shape = {5};
  message_of([&] { serialize_safetensors(wrong, {}); });
}

TEST(ReadFinite, NamesTensorAndIndex) {
  const auto read = [](const std::vector<float>& values) {
    const auto size = static_cast<std::int64_t>(values.size());
    const TensorView view = tensor_view("k", TensorType::f32, {size}, values);
    return SafetensorsFile(serialize_safetensors({view}, {}), "a.safetensors").read_finite("k");
  };
  const std::vector<float> fine{0.0f, -1.0f, std::numeric_limits<float>::max()};
  EXPECT_EQ(read(fine), fine);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> values = fine;
    values.push_back(bad);
    const std::string message = message_of([&] { read(values); });
    EXPECT_NE(message.find("a.safetensors: tensor 'k': element 3 is"), std::string::npos);
  }
}

}  // namespace
}  // namespace vqgen
