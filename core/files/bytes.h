// Little-endian integers and sized pieces, onto a string and off the front of bytes that may lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace vqgen {

template <class T>
void append_integer(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>((value >> (8 * i)) & 0xff);
}

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Takes pieces off the front; false, and nothing taken, where too little is left.
struct ByteReader {
  std::span<const std::byte> left;

  bool take(std::uint64_t count, std::span<const std::byte>& piece) {
    if (count > left.size()) return false;
    piece = left.first(static_cast<std::size_t>(count));
    left = left.subspan(static_cast<std::size_t>(count));
    return true;
  }
  template <class T>
  bool take_integer(T& value) {
    std::span<const std::byte> piece;
    if (!take(sizeof(T), piece)) return false;
    value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<T>(std::to_integer<T>(piece[i]) << (8 * i));
    }
    return true;
  }
  bool take_sized(std::span<const std::byte>& piece) {
    std::uint64_t count = 0;
    return take_integer(count) && take(count, piece);
  }
};

}  // namespace vqgen
