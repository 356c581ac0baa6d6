#include "core/files/digest.h"

// Uses OpenSSL's plain functions, deprecated in favour of EVP: the first use of EVP in a process
// reads OpenSSL's configuration and gathers providers, which is slow.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/sha.h>

#include <array>
#include <cstdint>

#include "core/error.h"

namespace vqgen {

Digest& Digest::add(std::string_view part) {
  for (int i = 0; i < 8; ++i) {
    parts_ += static_cast<char>(static_cast<std::uint64_t>(part.size()) >> (8 * i));
  }
  parts_ += part;
  return *this;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  SHA256_CTX context{};
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  if (SHA256_Init(&context) != 1 || SHA256_Update(&context, bytes.data(), bytes.size()) != 1 ||
      SHA256_Final(digest.data(), &context) != 1) {
    throw Error(ErrorKind::device, "SHA-256: OpenSSL failed; check its installation");
  }
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

}  // namespace vqgen
