// SHA-256 over length-prefixed parts, so that no two lists of parts collide by concatenation.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace vqgen {

// Plain SHA-256 of the bytes, hex.
std::string sha256_hex(std::span<const std::byte> bytes);

class Digest {
 public:
  // Adds one part, of which it keeps a copy: its length as 8 little-endian bytes, then its bytes.
  Digest& add(std::string_view part);
  // 64 lower-case hex digits.
  std::string hex() const { return sha256_hex(std::as_bytes(std::span(parts_))); }

 private:
  std::string parts_;
};

}  // namespace vqgen
