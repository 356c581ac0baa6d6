#include "runtime/backend/cuda/nvrtc_talk.h"

#include "core/files/bytes.h"

namespace vqgen {
namespace {

// Changes with the messages, so that a helper of another version is noticed at once.
constexpr std::string_view kMark = "VQNVRTC1";

// nullopt where lengths and bytes do not agree.
std::optional<NvrtcMessage> parse(std::span<const std::byte> body) {
  NvrtcMessage message;
  std::span<const std::byte> text;
  for (ByteReader reader{body}; !reader.left.empty();) {
    if (!reader.take_sized(text)) return std::nullopt;
    message.emplace_back(as_text(text));
  }
  return message;
}

}  // namespace

std::string encode(const NvrtcMessage& message) {
  std::string body;
  for (const std::string& text : message) {
    append_integer(body, std::uint64_t{text.size()});
    body += text;
  }
  std::string out(kMark);
  append_integer(out, std::uint64_t{body.size()});
  return out + body;
}

std::optional<NvrtcMessage> NvrtcReader::take() {
  const std::string_view mark = std::string_view(bytes_).substr(0, kMark.size());
  damaged_ = damaged_ || !kMark.starts_with(mark);
  ByteReader reader{std::as_bytes(std::span(bytes_).subspan(mark.size()))};
  std::uint64_t length = 0;
  if (damaged_ || !reader.take_integer(length)) return std::nullopt;
  std::span<const std::byte> body;
  damaged_ = length > kMostNvrtcBytes;
  if (damaged_ || !reader.take(length, body)) return std::nullopt;
  std::optional<NvrtcMessage> message = parse(body);
  damaged_ = !message;
  bytes_.erase(0, bytes_.size() - reader.left.size());
  return message;
}

}  // namespace vqgen
