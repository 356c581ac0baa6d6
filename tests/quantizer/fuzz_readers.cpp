// Mutates valid files and requires that the readers either accept the result or throw vqgen::Error:
// no crash, no other exception, no endless loop, no sanitizer report. Runs each reader for
// VQGEN_FUZZ_SECONDS (default 5) from a fixed seed; an input depends only on the seed and its
// number.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "core/access/access_counts_summary.h"
#include "core/files/files.h"
#include "core/json/json.h"
#include "core/problem/config.h"
#include "core/profiles.h"
#include "quantizer/access_counts.h"
#include "quantizer/bundle.h"
#include "quantizer/encode.h"
#include "quantizer/safetensors.h"
#include "tests/quantizer/fuzz_files.h"
#include "tests/quantizer/samples.h"

namespace vqgen {
namespace {

std::vector<std::string> texts_below(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(VQGEN_SOURCE_DIR) / folder)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> texts;
  for (const auto& path : paths) texts.push_back(read_text(path));
  return texts;
}

TEST(FuzzReaders, Json) {
  const std::vector<std::string> configs = texts_below("examples/configs");
  const std::vector<std::string> gpus = texts_below("profiles/gpus");
  std::vector<std::string> corpus = configs;
  corpus.insert(corpus.end(), gpus.begin(), gpus.end());
  corpus.push_back(std::string(63, '[') + "1" + std::string(63, ']'));
  fuzz("json", corpus, [&](Mutator& mutator, std::size_t base) {
    const Json json = parse_json(mutator.mutate(corpus[base]), "fuzz.json");
    if (base < configs.size()) {
      to_json(read_config(json, "fuzz.json").problem).dump();
    } else if (base < configs.size() + gpus.size()) {
      GpuSpec gpu;
      read_fields(JsonCursor(json, "fuzz.json"), gpu);
      to_json(gpu).dump();
    }
  });
}

// An accepted profile must have computable figures.
TEST(FuzzReaders, AccessCounts) {
  const std::vector<std::string> corpus{
      access_counts_text(profile_bundle(samples::full_bundle(), 2)), access_counts_text({})};
  fuzz("access_counts", corpus, [&](Mutator& mutator, std::size_t base) {
    const Json json = parse_json(mutator.mutate(corpus[base]), "fuzz.json");
    for (const AccessCounts& profile : read_access_counts(json, "fuzz.json")) {
      summarise(profile);
      steadiness(profile);
      share_below(profile, profile.entries, Numbering::hot_first);
    }
  });
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Mutates only the header and fixes its length, so that later checks are reached.
std::string with_mutated_header(Mutator& mutator, const std::string& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  const std::size_t data = sizeof length + static_cast<std::size_t>(length);
  const std::string header = mutator.mutate(file.substr(sizeof length, data - sizeof length));
  length = header.size();
  std::string result(sizeof length, '\0');
  std::memcpy(result.data(), &length, sizeof length);
  return result + header + file.substr(data);
}

// Every tensor of an accepted file can be read, and every bundle decoded.
void use(const SafetensorsFile& file) {
  for (const TensorInfo& info : file.tensors()) {
    switch (info.type) {
      case TensorType::f16:
      case TensorType::bf16:
      case TensorType::f32:
        file.read_floats(info.name);
        break;
      case TensorType::u32:
        file.read_u32(info.name);
        break;
      case TensorType::i32:
        file.read_i32(info.name);
        break;
      case TensorType::u16:
        file.read_bits16(info.name);
        break;
      default:
        break;
    }
  }
  if (!file.metadata().contains("vqgen.bundle")) return;
  for (const BundleItem& item : read_bundle(file).items) {
    if (const auto* attention = std::get_if<AttentionData>(&item.data)) {
      reconstruct(attention->keys);
      reconstruct(attention->values);
    } else {
      reconstruct(std::get<LinearData>(item.data).weights);
    }
  }
}

TEST(FuzzReaders, Safetensors) {
  const std::vector<float> floats = samples::normal_floats(24, 1);
  const std::vector<std::uint16_t> halves = samples::bits_of(floats, DType::f16);
  const std::vector<std::uint32_t> words{1, 2, 3};
  const std::vector<std::string> corpus{
      text_of(serialize_safetensors({tensor_view("a.k", TensorType::f32, {2, 3, 4}, floats),
                                     tensor_view("a.v", TensorType::f16, {24}, halves),
                                     tensor_view("w", TensorType::u32, {3}, words)},
                                    {{"origin", "fuzz"}})),
      text_of(serialize_bundle(samples::full_bundle())),
      text_of(serialize_bundle(samples::lattice_bundle())),
      text_of(serialize_bundle(samples::full_bundle(DType::bf16)))};
  fuzz("safetensors", corpus, [&](Mutator& mutator, std::size_t base) {
    const std::string text = mutator.below(2) == 0 ? mutator.mutate(corpus[base])
                                                   : with_mutated_header(mutator, corpus[base]);
    use(SafetensorsFile(bytes_of(text), "fuzz.safetensors"));
  });
}

}  // namespace
}  // namespace vqgen
