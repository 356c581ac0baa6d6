// Files given instead of a safetensors file: shards with their index, folders, files of other
// formats. Each is read, or refused by its name.
#include "quantizer/foreign.h"

#include "core/files/files.h"
#include "quantizer/safetensors.h"
#include "tests/quantizer/samples.h"
#include "tests/write_safetensors.h"

namespace vqgen {
namespace {

class Foreign : public ::testing::Test {
 protected:
  // A shard of tensors with one number each.
  void shard(const std::string& name, const std::map<std::string, float>& tensors) const {
    std::vector<std::vector<float>> values;
    std::vector<TensorView> views;
    values.reserve(tensors.size());
    for (const auto& [tensor, value] : tensors) {
      values.push_back({value});
      views.push_back(tensor_view(tensor, TensorType::f32, {1}, values.back()));
    }
    write_safetensors(folder_ / name, views, {{"format", "pt"}});
  }
  std::filesystem::path text(const std::string& name, const std::string& content) const {
    publish_text(folder_ / name, content);
    return folder_ / name;
  }
  std::filesystem::path index(const Json& weight_map) const {
    return text("model.safetensors.index.json",
                Json{{"metadata", {{"total_size", 8}}}, {"weight_map", weight_map}}.dump());
  }
  void refused(const std::filesystem::path& path, const std::vector<std::string>& words) const {
    const std::string message = message_of([&] { SafetensorsFile{path}; });
    for (const std::string& word : words) {
      EXPECT_NE(message.find(word), std::string::npos) << word << " is missing in: " << message;
    }
    EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
  }

  samples::TemporaryDirectory folder_;
};

TEST_F(Foreign, AnIndexOfShardsIsReadAsOneFile) {
  shard("model-1.safetensors", {{"a", 1}, {"b", 2}, {"left over", 9}});
  shard("model-2.safetensors", {{"c", 3}, {"b", 4}});
  const std::filesystem::path path = index(
      {{"a", "model-1.safetensors"}, {"b", "model-2.safetensors"}, {"c", "model-2.safetensors"}});
  for (const std::filesystem::path& given : {path, folder_ / ""}) {
    const SafetensorsFile file(given);
    EXPECT_EQ(file.source(), path.string());
    EXPECT_TRUE(file.metadata().empty());
    ASSERT_EQ(file.tensors().size(), 3u);
    EXPECT_EQ(file.read_floats("a"), std::vector<float>{1});
    EXPECT_EQ(file.read_floats("b"), std::vector<float>{4}) << "the index says which shard counts";
    EXPECT_EQ(file.read_floats("c"), std::vector<float>{3});
    EXPECT_EQ(file.find("left over"), nullptr);
    const std::string message = message_of([&] { file.read_u32("c"); });
    EXPECT_NE(message.find("model-2.safetensors: tensor 'c': is F32"), std::string::npos);
  }
}

TEST_F(Foreign, AnIndexThatDoesNotHoldIsRefused) {
  shard("model-1.safetensors", {{"a", 1}});
  refused(index({{"a", "model-1.safetensors"}, {"b", "model-1.safetensors"}}),
          {"index.json: tensor 'b'", "is not in model-1.safetensors", "again"});
  refused(index({{"a", "model-2.safetensors"}}), {"model-2.safetensors: cannot read"});
  refused(index({{"a", 3}}), {"/weight_map/a: must be a string"});
  refused(index(Json::array()), {"/weight_map: must be an object"});
  refused(text("config.json", R"({"model_type": "llama"})"), {"config.json", "'weight_map'"});
  refused(text("broken.json", R"({"weight_map": )"), {"broken.json: malformed JSON"});
  index({{"a", "nested.json"}});
  refused(folder_ / "", {"nested.json: cannot read"});
  text("nested.json", R"({"weight_map": {}})");
  refused(folder_ / "", {"nested.json: is JSON", "name the shard"});
}

TEST_F(Foreign, NamesOfShardsDoNotLeadElsewhere) {
  shard("outside.safetensors", {{"a", 1}});
  std::filesystem::create_directory(folder_ / "inner");
  for (const char* name : {"../outside.safetensors", "/etc/passwd", "..", ".", "", "x/../y",
                           "..\\outside.safetensors"}) {
    publish_text(folder_ / "inner" / "model.safetensors.index.json",
                 Json{{"weight_map", {{"a", name}}}}.dump());
    refused(folder_ / "inner", {"/weight_map/a", "is no name of a file beside the index"});
  }
  refused(index({{"a", "b\nc"}}), {"/weight_map: a name holds a control character"});
  refused(index({{"a\nb", "c"}}), {"/weight_map: a name holds a control character"});
}

TEST_F(Foreign, FoldersHaveOneIndexOrOneFile) {
  refused(folder_ / "", {"holds no safetensors file and no index"});
  text("pytorch_model.bin", "PK\3\4");
  refused(folder_ / "", {"holds pytorch_model.bin, but no safetensors file", "convert it"});
  shard("a.safetensors", {{"a", 1}});
  EXPECT_EQ(SafetensorsFile(folder_ / "").read_floats("a"), std::vector<float>{1});
  shard("b.safetensors", {{"b", 1}});
  refused(folder_ / "", {"2 files ending in .safetensors", "a.safetensors and b.safetensors"});
  text("one.safetensors.index.json", "{}");
  text("two.safetensors.index.json", "{}");
  refused(folder_ / "", {"2 files ending in .safetensors.index.json", "name one"});
}

TEST_F(Foreign, FilesOfOtherFormatsAreNamed) {
  using namespace std::string_literals;
  const std::string zeros(200, '\0');
  const std::vector<std::pair<std::string, std::vector<std::string>>> known{
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 131200\n",
       {"Git LFS", "git lfs pull"}},
      {"/annex/objects/SHA256E-s1--0.safetensors\n", {"git-annex", "git annex get"}},
      {"PK\3\4"s + zeros, {"zip archive", "PyTorch", "convert it"}},
      {"\x80\2"s + zeros, {"pickle", "convert it"}},
      {"\x80\4"s + zeros, {"pickle"}},
      {"GGUF\3"s + zeros, {"GGUF"}},
      {"\x93NUMPY\1\0"s + zeros, {"NumPy"}},
      {"\x89HDF\r\n\x1a\n"s + zeros, {"HDF5"}},
      {"\x1f\x8b\b"s + zeros, {"gzip", "unpack"}},
      {"<!DOCTYPE html><html>" + zeros, {"HTML", "fetch it again"}}};
  for (const auto& [content, words] : known) refused(text("given", content), words);
}

// Whatever bytes the length of its header has.
TEST_F(Foreign, AHeaderThatBeginsLikeAnotherFormatIsRead) {
  const std::string head = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  for (const std::size_t length : {std::size_t{0x7b}, std::size_t{0x280}, std::size_t{0x8b1f}}) {
    std::string file(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> (8 * i));
    file += head + std::string(length - head.size(), ' ') + std::string(4, '\0');
    EXPECT_EQ(SafetensorsFile(text("given", file)).read_floats("a"), std::vector<float>{0});
  }
}

}  // namespace
}  // namespace vqgen
