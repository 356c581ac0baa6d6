#include "core/files/digest.h"

// The plain functions, deprecated in favour of EVP, whose first use in a process reads OpenSSL's
// configuration and gathers its providers: 1 ms, a fifth of the first prepare of a cached kernel.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <array>
#include <cstdint>

#include "core/error.h"

namespace vqgen {
namespace {

void require(int result) {
  if (result != 1)
    throw Error(ErrorKind::device, "SHA-256: OpenSSL failed; check its installation");
}

std::string hex_of(std::span<const unsigned char> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

struct Digest::State {
  SHA256_CTX context{};
  State() { require(SHA256_Init(&context)); }
  void add(const void* data, std::size_t size) { require(SHA256_Update(&context, data, size)); }
  std::string hex() {
    std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
    require(SHA256_Final(digest.data(), &context));
    return hex_of(digest);
  }
};

Digest::Digest() : state_(std::make_unique<State>()) {}
Digest::~Digest() = default;

Digest& Digest::add(std::string_view part) {
  std::array<unsigned char, 8> length{};
  for (std::size_t i = 0; i < 8; ++i) {
    length[i] = static_cast<unsigned char>(static_cast<std::uint64_t>(part.size()) >> (8 * i));
  }
  state_->add(length.data(), length.size());
  state_->add(part.data(), part.size());
  return *this;
}

std::string Digest::hex() { return state_->hex(); }

std::string sha256_hex(std::span<const std::byte> bytes) {
  Digest::State state;
  state.add(bytes.data(), bytes.size());
  return state.hex();
}

}  // namespace vqgen
