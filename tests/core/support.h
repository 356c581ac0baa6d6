// Shared by the tests of core/: configs to start from, edits of them, and errors judged by words.
#pragma once

#include <gtest/gtest.h>

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json/json.h"
#include "core/problem/config.h"
#include "tests/message_of.h"

namespace vqgen {

// Sound configs of the ops with formats spelled out, which check() accepts too.
inline Json attention_json() {
  return parse_json(R"({
    "op": "attention_decode",
    "shape": {"batch": 2, "query_heads": 8, "kv_heads": 2, "head_dim": 128, "tokens": 1000},
    "keys": {"vector_size": 4, "index_bits": 8},
    "values": {"vector_size": 4, "index_bits": 8}})",
                    "attention");
}
inline Json append_json() {
  return parse_json(R"({
    "op": "kv_append",
    "shape": {"batch": 2, "kv_heads": 2, "head_dim": 128, "tokens": 1000, "new_tokens": 4},
    "keys": {"vector_size": 4, "index_bits": 8},
    "values": {"vector_size": 4, "index_bits": 8}})",
                    "append");
}
inline Json dequantize_json() {
  return parse_json(R"({
    "op": "kv_dequantize",
    "shape": {"batch": 2, "kv_heads": 2, "head_dim": 128, "tokens": 1000},
    "keys": {"vector_size": 4, "index_bits": 8},
    "values": {"vector_size": 4, "index_bits": 8}})",
                    "decode");
}
inline Json merge_json() {
  return parse_json(R"({
    "op": "attention_merge",
    "shape": {"rows": 100, "heads": 8, "head_dim": 128, "parts": 3}})",
                    "merge");
}
inline Json scalar_json() {
  return parse_json(R"({
    "op": "int8_quantize", "dtype": "f32",
    "shape": {"tokens": 1000, "channels": 192, "scales": "computed"}})",
                    "scalar");
}
inline Json weight_rows_json() {
  return parse_json(R"({
    "op": "weight_dequantize",
    "shape": {"rows": 128, "out_features": 512, "in_features": 1024},
    "weights": {"vector_size": 8, "index_bits": 8}})",
                    "weight rows");
}
inline Json gemv_json() {
  return parse_json(R"({
    "op": "gemv",
    "shape": {"m": 2, "out_features": 512, "in_features": 1024},
    "weights": {"vector_size": 8, "index_bits": 8}})",
                    "gemv");
}

// An edit of a config: a JSON pointer, and the value to put there as JSON text; "" removes it.
struct Edit {
  std::string pointer;
  std::string value;
};

inline Json edited(Json json, const std::vector<Edit>& edits) {
  for (const Edit& edit : edits) {
    const Json::json_pointer pointer(edit.pointer);
    if (edit.value.empty()) {
      json[pointer.parent_pointer()].erase(pointer.back());
    } else {
      json[pointer] = parse_json(edit.value, "the test's edit");
    }
  }
  return json;
}

// The config of an op with these fields of its plan fixed.
inline Config with_plan(const Json& json, const Json& plan) {
  Config config = read_config(json, "c.json");
  config.plan = plan;
  return config;
}

inline void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' is missing in: " << text;
  }
}

// The shipped example config.json files, sorted.
inline std::vector<std::filesystem::path> example_configs() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(VQGEN_SOURCE_DIR "/examples/configs")) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  EXPECT_FALSE(paths.empty());
  return paths;
}

// An empty folder that the object removes.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "vqgen-core-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace vqgen
