// One test per kind of inconsistency in a safetensors file: each must give an Error that names the
// file, never a crash or a wrong tensor.
#include <cstring>
#include <utility>

#include "quantizer/safetensors.h"
#include "tests/quantizer/samples.h"

namespace vqgen {
namespace {

std::vector<std::byte> file_of(const std::string& header, std::size_t data_bytes) {
  std::vector<std::byte> bytes(8 + header.size() + data_bytes);
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}

// The message for a file with this header and 8 bytes of data; it must hold `expected`.
void expect_lie(const std::string& header, const std::string& expected) {
  const std::string message =
      message_of([&] { SafetensorsFile(file_of(header, 8), "lie.safetensors"); });
  EXPECT_EQ(message.rfind("lie.safetensors: ", 0), 0u) << message;
  EXPECT_NE(message.find(expected), std::string::npos) << message;
}

const std::string kGood = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

TEST(SafetensorsLies, TheHonestFileIsRead) {
  EXPECT_EQ(SafetensorsFile(file_of(kGood, 8), "good").read_floats("a").size(), 2u);
  EXPECT_EQ(SafetensorsFile(file_of(kGood + "   ", 8), "padded").tensors().size(), 1u);
  EXPECT_TRUE(SafetensorsFile(file_of("{}", 0), "empty").tensors().empty());
}

TEST(SafetensorsLies, TruncationAnywhere) {
  const std::vector<std::byte> whole = file_of(kGood, 8);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    message_of([&] {
      SafetensorsFile(std::vector(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)),
                      "cut");
    });
  }
}

TEST(SafetensorsLies, HeaderLengthHuge) {
  for (const std::uint64_t length : {std::uint64_t{1} << 20, std::uint64_t{100'000'001}, UINT64_MAX,
                                     UINT64_MAX - 7, std::uint64_t{1} << 63}) {
    std::vector<std::byte> bytes = file_of(kGood, 8);
    std::memcpy(bytes.data(), &length, 8);
    EXPECT_NE(message_of([&] { SafetensorsFile(bytes, "lie"); }).find("header of"),
              std::string::npos);
  }
}

TEST(SafetensorsLies, HeaderIsNoJson) {
  expect_lie("", "malformed");
  expect_lie(R"({"a":)", "malformed");
  expect_lie(std::string("\0\0\0\0", 4), "malformed");
  expect_lie("[]", "must be an object");
  expect_lie(R"({"a":3})", "/a: must be an object");
}

TEST(SafetensorsLies, DeepNesting) {
  expect_lie(std::string(100000, '['), "nested deeper");
  std::string objects;
  for (int i = 0; i < 10000; ++i) objects += R"({"a":)";
  expect_lie(objects, "nested deeper");
}

TEST(SafetensorsLies, DuplicateNames) {
  expect_lie(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
             R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
             "'a' is there twice");
  expect_lie(R"({"a":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}})",
             "'dtype' is there twice");
}

TEST(SafetensorsLies, DtypeThatIsNone) {
  for (const char* dtype : {"7", "null", R"("")", R"("f16")", R"("F16\nF32")", R"("F 16")"}) {
    expect_lie(std::string(R"({"a":{"dtype":)") + dtype + R"(,"shape":[2],"data_offsets":[0,8]}})",
               "/a/dtype: must be");
  }
}

// Types that this reader does not know must not make it refuse the tensors beside them.
TEST(SafetensorsLies, DtypeUnknownIsJudgedWhereItIsRead) {
  for (const std::string dtype : {"F33", "F8_E8M0", "F4", "F6_E2M3", "C64", "F64", "BOOL"}) {
    const std::string header = R"({"a":{"dtype":")" + dtype +
                               R"(","shape":[64],"data_offsets":[0,4]},)"
                               R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
    const SafetensorsFile file(file_of(header, 8), "new.safetensors");
    EXPECT_EQ(file.read_floats("b"), std::vector<float>{0});
    const std::string message = message_of([&] { file.read_floats("a"); });
    EXPECT_EQ(message, "new.safetensors: tensor 'a': is " + dtype +
                           " where F16, BF16 or F32 is wanted; convert it");
    message_of([&] { file.read_bits16("a"); });
  }
  expect_lie(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,4]}})", "belong to none");
  expect_lie(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,12]}})", "cut short");
  expect_lie(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[8,0]}})", "0 is before 8");
}

TEST(SafetensorsLies, MembersMissingOrUnknown) {
  expect_lie(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", "'dtype' is missing");
  expect_lie(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", "'shape' is missing");
  expect_lie(R"({"a":{"dtype":"F32","shape":[2]}})", "'data_offsets' is missing");
  expect_lie(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"stride":1}})", "'stride'");
}

TEST(SafetensorsLies, ShapeMismatch) {
  expect_lie(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "is not the 12 bytes");
  expect_lie(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,8]}})", "is not the 4 bytes");
  expect_lie(R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", "must be an array");
}

TEST(SafetensorsLies, SizesNegativeFractionalOrOfWrongType) {
  for (const char* size : {"-2", "2.0", "2.5", "true", "\"2\"", "null", "[2]", "1e3",
                           "18446744073709551615", "-9223372036854775808"}) {
    expect_lie(
        std::string(R"({"a":{"dtype":"F32","shape":[)") + size + R"(],"data_offsets":[0,8]}})",
        "/a/shape/0: must be a whole number");
  }
}

TEST(SafetensorsLies, ShapeProductOverflows) {
  expect_lie(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})",
             "overflows");
  // 2^62 elements of 4 bytes are 0 in 64 bits.
  expect_lie(R"({"a":{"dtype":"F32","shape":[2147483648,2147483648],"data_offsets":[0,0]}})",
             "overflows");
}

TEST(SafetensorsLies, OffsetsNegativeReversedOrMalformed) {
  const auto with = [](const std::string& offsets) {
    return R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + offsets + "}}";
  };
  expect_lie(with("[-8,0]"), "/a/data_offsets/0");
  expect_lie(with("[8,0]"), "0 is before 8");
  expect_lie(with("[0]"), "must be [begin, end]");
  expect_lie(with("[0,8,8]"), "must be [begin, end]");
  expect_lie(with("8"), "must be [begin, end]");
  expect_lie(with("[0,18446744073709551615]"), "/a/data_offsets/1");
}

TEST(SafetensorsLies, OffsetsOutOfTheFile) {
  expect_lie(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})", "cut short");
  expect_lie(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[1000,1008]}})", "cut short");
}

TEST(SafetensorsLies, OffsetsOverlap) {
  expect_lie(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
             R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
             "tensor 'b': begins at byte 4 where the tensor before it ends at 8: they overlap");
  expect_lie(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
             R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
             "they overlap");
}

TEST(SafetensorsLies, HolesAndTrailingBytes) {
  expect_lie(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "a hole");
  expect_lie(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "belong to none");
  expect_lie("{}", "belong to none");
}

TEST(SafetensorsLies, MetadataOfOtherThanStrings) {
  expect_lie(R"({"__metadata__":{"a":1}})", "/__metadata__/a: must be a string");
  expect_lie(R"({"__metadata__":[]})", "/__metadata__: must be an object of strings");
}

TEST(SafetensorsLies, ControlCharactersStayOutOfMessages) {
  expect_lie(R"({"a\nb":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "control character");
}

}  // namespace
}  // namespace vqgen
