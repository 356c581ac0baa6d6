#include "runtime/backend/cuda/nvrtc_talk.h"

#include <cstring>

namespace vqgen {
namespace {

// Changes with the messages: a helper of another version is told at once.
constexpr std::string_view kMark = "VQNVRTC1";
constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);

void put_length(std::string& out, std::uint64_t value) {
  char bytes[kLengthBytes];
  std::memcpy(bytes, &value, kLengthBytes);
  out.append(bytes, kLengthBytes);
}

// Of at least kLengthBytes.
std::uint64_t length_at(std::string_view bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data(), kLengthBytes);
  return value;
}

// nullopt where lengths and bytes do not agree.
std::optional<NvrtcMessage> parse(std::string_view body) {
  NvrtcMessage message;
  while (!body.empty()) {
    if (body.size() < kLengthBytes) return std::nullopt;
    const std::uint64_t length = length_at(body);
    body.remove_prefix(kLengthBytes);
    if (length > body.size()) return std::nullopt;
    message.emplace_back(body.substr(0, static_cast<std::size_t>(length)));
    body.remove_prefix(static_cast<std::size_t>(length));
  }
  return message;
}

}  // namespace

std::string encode(const NvrtcMessage& message) {
  std::uint64_t length = 0;
  for (const std::string& text : message) length += kLengthBytes + text.size();
  std::string out(kMark);
  put_length(out, length);
  for (const std::string& text : message) {
    put_length(out, text.size());
    out += text;
  }
  return out;
}

std::optional<NvrtcMessage> NvrtcReader::take() {
  const std::string_view mark = std::string_view(bytes_).substr(0, kMark.size());
  damaged_ = damaged_ || !kMark.starts_with(mark);
  const std::size_t head = kMark.size() + kLengthBytes;
  if (damaged_ || bytes_.size() < head) return std::nullopt;
  const std::uint64_t length = length_at(std::string_view(bytes_).substr(kMark.size()));
  damaged_ = length > kMostNvrtcBytes;
  if (damaged_ || bytes_.size() - head < length) return std::nullopt;
  const auto whole = head + static_cast<std::size_t>(length);
  std::optional<NvrtcMessage> message = parse(std::string_view(bytes_).substr(head, whole - head));
  damaged_ = !message;
  bytes_.erase(0, whole);
  return message;
}

}  // namespace vqgen
