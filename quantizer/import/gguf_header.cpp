#include "quantizer/import/gguf_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace vqgen {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read as little endian");

constexpr std::size_t kWindow = 1 << 20;
constexpr std::size_t kMostKey = 65535;
constexpr std::string_view kMagic = "GGUF";

enum ValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};
constexpr std::size_t kValueBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

// Such characters would break messages over lines.
bool has_control(std::string_view text) {
  return std::ranges::any_of(text, [](unsigned char c) { return c < ' '; });
}

}  // namespace

void GgufHeader::fail(const std::string& problem) const {
  throw Error(ErrorKind::bad_input, fmt::format("{}: {}", source_, problem));
}

void GgufHeader::require(std::uint64_t count) const {
  if (count <= size() - at_) return;
  fail(
      fmt::format("{} bytes at byte {} do not fit the {} bytes of the file: it is cut short; "
                  "fetch it again",
                  count, at_, size()));
}

std::span<const std::byte> GgufHeader::take(std::size_t count) {
  require(count);
  if (at_ < window_begin_ || at_ + count > window_begin_ + window_.size()) {
    window_begin_ = at_;
    window_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kWindow, size() - at_)));
    file_.read(at_, window_);
  }
  const auto taken = std::span<const std::byte>(window_).subspan(
      static_cast<std::size_t>(at_ - window_begin_), count);
  at_ += count;
  return taken;
}

void GgufHeader::skip(std::uint64_t count) {
  require(count);
  at_ += count;
}

void GgufHeader::begin() {
  if (size() < kMagic.size() || std::memcmp(take(4).data(), kMagic.data(), 4) != 0) {
    fail("is no GGUF file, which begins with 'GGUF'; fetch it again, or give a folder");
  }
  const auto version = number<std::uint32_t>();
  if (version == 2 || version == 3) return;
  const bool swapped = (version & 0xffff) == 0;
  fail(
      swapped
          ? std::string("is a big-endian GGUF file, which is not read; take a little-endian one")
          : fmt::format("is GGUF of version {}, and 2 and 3 are read; take a newer file", version));
}

std::uint64_t GgufHeader::count(const char* what, std::uint64_t most) {
  const auto count = number<std::uint64_t>();
  if (count <= most) return count;
  fail(fmt::format("says that it has {} {}, and {} are the most; fetch it again", count, what,
                   most));
}

std::string GgufHeader::text(const char* what, std::size_t most) {
  const auto length = number<std::uint64_t>();
  require(length);
  if (length > most) {
    fail(fmt::format("{} has {} bytes at byte {}, and {} are the most; fetch it again", what,
                     length, at_, most));
  }
  const auto bytes = take(static_cast<std::size_t>(length));
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (has_control(text)) {
    fail(fmt::format("{} holds a control character before byte {}; fetch it again", what, at_));
  }
  return text;
}

void GgufHeader::read_key(Json& metadata) {
  const std::string key = text("a key of metadata", kMostKey);
  if (metadata.contains(key)) {
    fail(fmt::format("key '{}' is there twice; fetch it again", key));
  }
  metadata[key] = value(number<std::uint32_t>(), key);
}

Json GgufHeader::value(std::uint32_t type, const std::string& key) {
  switch (type) {
    case kU8:
      return number<std::uint8_t>();
    case kI8:
      return number<std::int8_t>();
    case kU16:
      return number<std::uint16_t>();
    case kI16:
      return number<std::int16_t>();
    case kU32:
      return number<std::uint32_t>();
    case kI32:
      return number<std::int32_t>();
    case kF32:
      return number<float>();
    case kBool:
      return number<std::uint8_t>() != 0;
    case kU64:
      return number<std::uint64_t>();
    case kI64:
      return number<std::int64_t>();
    case kF64:
      return number<double>();
    case kString:
      return line();
    case kArray:
      skip_array(key);
      return nullptr;
    default:
      fail(fmt::format("key '{}' has the unknown type {}; update vqgen, or fetch it again", key,
                       type));
  }
}

Json GgufHeader::line() {
  const auto length = number<std::uint64_t>();
  require(length);
  if (length > kMostKey) {
    skip(length);
    return nullptr;
  }
  const auto bytes = take(static_cast<std::size_t>(length));
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return has_control(text) ? Json() : Json(std::move(text));
}

void GgufHeader::skip_array(const std::string& key) {
  const auto type = number<std::uint32_t>();
  const auto count = number<std::uint64_t>();
  if (type == kString) {
    require(count);  // each has a length at least
    for (std::uint64_t i = 0; i < count; ++i) skip(number<std::uint64_t>());
    return;
  }
  if (type > kF64 || type == kArray) {
    fail(fmt::format("key '{}' is an array of type {}, which is not read; fetch it again", key,
                     type));
  }
  const std::uint64_t bytes = kValueBytes[type];
  require(count);
  skip(count * bytes);
}

}  // namespace vqgen
