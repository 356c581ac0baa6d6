// Reads a GGUF file's header from front to back, some bytes at a time; internal to gguf_file.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/files.h"
#include "core/json/json.h"

namespace vqgen {

class GgufHeader {
 public:
  GgufHeader(const OpenFile& file, std::string source) : file_(file), source_(std::move(source)) {}

  std::uint64_t at() const { return at_; }  // of the next byte
  std::uint64_t size() const { return file_.size(); }

  // Judges the first bytes and the version.
  void begin();
  // How many `what` there are; Error(bad_input) above `most`.
  std::uint64_t count(const char* what, std::uint64_t most);
  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  // A text of at most so many bytes, none a control character.
  std::string text(const char* what, std::size_t most);
  // Reads a key and its value; a null takes the place of an array, and of a text that is long or
  // has lines, such as a template of chats.
  void read_key(Json& metadata);

  // Error(bad_input) about this file.
  [[noreturn]] void fail(const std::string& problem) const;

 private:
  // The next bytes, of which there are at most kWindow; valid until the next call.
  std::span<const std::byte> take(std::size_t count);
  void skip(std::uint64_t count);
  void require(std::uint64_t count) const;
  Json value(std::uint32_t type, const std::string& key);
  Json line();
  void skip_array(const std::string& key);

  const OpenFile& file_;
  std::string source_;
  std::uint64_t at_ = 0;
  std::uint64_t window_begin_ = 0;
  std::vector<std::byte> window_;
};

}  // namespace vqgen
