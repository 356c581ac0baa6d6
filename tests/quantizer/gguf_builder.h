// Builds GGUF files for tests, right ones and wrong ones.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/bytes.h"

namespace vqgen {

struct GgufBuilder {
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> axes;  // the innermost first, as in the file
    std::uint32_t type = 0;
    std::string bytes;
    std::uint64_t moved = 0;  // from where it belongs
  };

  std::uint32_t version = 3;
  std::uint64_t alignment = 32;
  std::string keys;
  std::uint64_t key_count = 0;
  std::vector<Tensor> tensors;

  static void text(std::string& out, std::string_view value) {
    append_integer(out, std::uint64_t{value.size()});
    out += value;
  }
  void key(std::string_view name, std::uint32_t type, std::string_view value) {
    text(keys, name);
    append_integer(keys, type);
    keys += value;
    ++key_count;
  }
  void number(std::string_view name, std::uint32_t value) {
    std::string bytes;
    append_integer(bytes, value);
    key(name, 4, bytes);
  }
  void real(std::string_view name, float value) {
    key(name, 6, {reinterpret_cast<const char*>(&value), sizeof value});
  }
  void word(std::string_view name, std::string_view value) {
    std::string bytes;
    text(bytes, value);
    key(name, 8, bytes);
  }
  // Texts, as a vocabulary has them.
  void words(std::string_view name, const std::vector<std::string>& values) {
    std::string bytes;
    append_integer(bytes, std::uint32_t{8});
    append_integer(bytes, std::uint64_t{values.size()});
    for (const std::string& each : values) text(bytes, each);
    key(name, 9, bytes);
  }
  void add(const std::string& name, std::vector<std::uint64_t> axes, std::uint32_t type,
           std::string bytes) {
    tensors.push_back({name, std::move(axes), type, std::move(bytes)});
  }
  Tensor& find(std::string_view name) {
    for (Tensor& each : tensors) {
      if (each.name == name) return each;
    }
    return tensors.emplace_back();
  }

  std::string file() const {
    std::string header = "GGUF";
    append_integer(header, version);
    append_integer(header, std::uint64_t{tensors.size()});
    append_integer(header, key_count);
    header += keys;
    std::string data;
    for (const Tensor& each : tensors) {
      text(header, each.name);
      append_integer(header, static_cast<std::uint32_t>(each.axes.size()));
      for (const std::uint64_t axis : each.axes) append_integer(header, axis);
      append_integer(header, each.type);
      append_integer(header, data.size() + each.moved);
      data += each.bytes;
      pad(data);
    }
    pad(header);
    return header + data;
  }

 private:
  void pad(std::string& text) const {
    if (alignment > 0) text.resize((text.size() + alignment - 1) / alignment * alignment, '\0');
  }
};

}  // namespace vqgen
