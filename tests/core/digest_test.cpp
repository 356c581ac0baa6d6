// SHA-256 against published vectors, and the length prefix that keeps lists of parts apart.
#include "core/files/digest.h"

#include <gtest/gtest.h>

namespace vqgen {
namespace {

std::string plain(std::string_view text) { return sha256_hex(std::as_bytes(std::span(text))); }

// FIPS 180-4 and the NIST examples.
TEST(Digest, KnownVectors) {
  EXPECT_EQ(plain(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(plain("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(plain("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(plain(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Digest, APartIsItsLengthAndItsBytes) {
  EXPECT_EQ(Digest().hex(), plain(""));
  EXPECT_EQ(Digest().add("abc").hex(), plain(std::string("\3\0\0\0\0\0\0\0abc", 11)));
  EXPECT_EQ(Digest().add("").hex(), plain(std::string(8, '\0')));
  const std::string longer(300, 'x');
  std::string prefixed("\x2c\1\0\0\0\0\0\0", 8);
  prefixed += longer;
  EXPECT_EQ(Digest().add(longer).hex(), plain(prefixed));
}

TEST(Digest, PartsDoNotRunTogether) {
  const std::string apart = Digest().add("ab").add("c").hex();
  EXPECT_NE(apart, Digest().add("a").add("bc").hex());
  EXPECT_NE(apart, Digest().add("abc").hex());
  EXPECT_NE(apart, Digest().add("ab").add("c").add("").hex());
  EXPECT_NE(apart, Digest().add("c").add("ab").hex());
  EXPECT_EQ(apart, Digest().add("ab").add("c").hex());
}

}  // namespace
}  // namespace vqgen
