#include "quantizer/name_pattern.h"

#include <algorithm>

namespace vqgen {

// A text between two stars is matched at its first occurrence, which leaves most to the rest; what
// follows the last star ends the name.
std::optional<std::vector<std::string>> match_pattern(std::string_view pattern,
                                                      std::string_view name) {
  std::size_t star = std::min(pattern.find('*'), pattern.size());
  std::vector<std::string> texts;
  if (!name.starts_with(pattern.substr(0, star))) return std::nullopt;
  std::size_t at = star;
  while (star < pattern.size()) {
    const std::size_t next = std::min(pattern.find('*', star + 1), pattern.size());
    const std::string_view behind = pattern.substr(star + 1, next - star - 1);
    const std::size_t end =
        next < pattern.size() ? name.find(behind, at) : name.rfind(behind, name.size());
    if (end == std::string_view::npos || end < at) return std::nullopt;
    texts.emplace_back(name.substr(at, end - at));
    at = end + behind.size();
    star = next;
  }
  if (at != name.size()) return std::nullopt;
  return texts;
}

std::string fill_pattern(std::string_view pattern, const std::vector<std::string>& texts) {
  std::string name;
  std::size_t star = 0;
  for (const char c : pattern) {
    if (c == '*') {
      name += texts[star++];
    } else {
      name += c;
    }
  }
  return name;
}

std::size_t star_count(std::string_view pattern) {
  return static_cast<std::size_t>(std::count(pattern.begin(), pattern.end(), '*'));
}

std::string item_name(std::string_view tensor) {
  return std::string(tensor.substr(0, tensor.rfind('.')));
}

}  // namespace vqgen
