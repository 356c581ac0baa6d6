// SHA-256 over length-prefixed parts, so that no two lists of parts collide by concatenation.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace vqgen {

class Digest {
 public:
  Digest();
  ~Digest();
  // Adds one part: its length as 8 little-endian bytes, then its bytes.
  Digest& add(std::string_view part);
  // 64 lower-case hex digits; the digest must not be used after.
  std::string hex();

 private:
  friend std::string sha256_hex(std::span<const std::byte> bytes);
  struct State;
  std::unique_ptr<State> state_;
};

// Plain SHA-256 of the bytes, hex.
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace vqgen
