#include "core/digest.h"

#include <openssl/evp.h>

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
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
  void add(const void* data, std::size_t size) { require(EVP_DigestUpdate(context, data, size)); }
};

Digest::Digest() : state_(std::make_unique<State>()) {
  require(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr));
}
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

std::string Digest::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  require(EVP_DigestFinal_ex(state_->context, digest.data(), &size));
  return hex_of(std::span(digest).first(size));
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  require(EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr));
  return hex_of(std::span(digest).first(size));
}

}  // namespace vqgen
