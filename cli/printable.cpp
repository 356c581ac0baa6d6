// Text from outside as a terminal can show it: no control character moves the cursor or turns the
// direction of what follows, and no input fills the screen.
#include "cli/command.h"

namespace vqgen::cli {
namespace {

// A character of UTF-8 and its length in bytes; nothing of bytes that are none, overlong ones and
// halves of surrogates included.
struct Character {
  char32_t code = 0;
  std::size_t bytes = 0;
};
std::optional<Character> character_at(std::string_view text, std::size_t at) {
  static constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const auto lead = static_cast<unsigned char>(text[at]);
  const std::size_t bytes = lead < 0x80   ? 1
                            : lead < 0xc0 ? 0
                            : lead < 0xe0 ? 2
                            : lead < 0xf0 ? 3
                            : lead < 0xf8 ? 4
                                          : 0;
  if (bytes == 0 || at + bytes > text.size()) return std::nullopt;
  char32_t code = bytes == 1 ? lead : lead & (0x7fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[at + i]);
    if ((next & 0xc0) != 0x80) return std::nullopt;
    code = code << 6 | (next & 0x3fu);
  }
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (code < kLeast[bytes] || code > 0x10ffff || surrogate) return std::nullopt;
  return Character{code, bytes};
}

// C0, DEL and C1; line and paragraph separators; and what marks or overrides a direction.
bool is_control(char32_t code) {
  const auto within = [&](char32_t least, char32_t most) { return code >= least && code <= most; };
  return code < 0x20 || within(0x7f, 0x9f) || code == 0x61c || within(0x200e, 0x200f) ||
         within(0x2028, 0x202e) || within(0x2066, 0x2069);
}

}  // namespace

std::string printable(std::string_view text, std::string_view kept) {
  std::string shown;
  for (std::size_t at = 0; at < text.size();) {
    const std::optional<Character> each = character_at(text, at);
    if (!each) {
      shown += '?';
      ++at;
      continue;
    }
    if (is_control(each->code) && kept.find(text[at]) == kept.npos) {
      shown += ' ';
    } else {
      shown += text.substr(at, each->bytes);
    }
    at += each->bytes;
  }
  return shown;
}

std::string one_line(std::string_view text) { return printable(text, ""); }

std::string message_line(std::string_view text) {
  constexpr std::size_t kHead = 1200, kTail = 600;  // a remedy is at the end
  std::string line = one_line(text);
  if (line.size() <= 2 * kHead) return line;
  const auto begins = [&](std::size_t at) { return (line[at] & 0xc0) != 0x80; };
  std::size_t head = kHead, tail = line.size() - kTail;
  while (!begins(head)) --head;
  while (!begins(tail)) ++tail;
  return fmt::format("{} ... {} bytes left out ... {}", line.substr(0, head), tail - head,
                     line.substr(tail));
}

}  // namespace vqgen::cli
