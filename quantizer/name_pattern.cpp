#include "quantizer/name_pattern.h"

#include <algorithm>

namespace vqgen {
namespace {

// Matches one text a star by backtracking; `dead` remembers the places that were tried in vain, so
// that many stars do not take exponential time.
class Matcher {
 public:
  Matcher(std::string_view pattern, std::string_view name)
      : pattern_(pattern), name_(name), dead_((pattern.size() + 1) * (name.size() + 1), false) {}

  bool match(std::size_t p, std::size_t n) {
    const std::size_t place = p * (name_.size() + 1) + n;
    if (dead_[place]) return false;
    bool found = false;
    if (p == pattern_.size()) {
      found = n == name_.size();
    } else if (pattern_[p] == '*') {
      for (std::size_t end = n; end <= name_.size() && !found; ++end) {
        texts.emplace_back(name_.substr(n, end - n));
        found = match(p + 1, end);
        if (!found) texts.pop_back();
      }
    } else {
      found = n < name_.size() && pattern_[p] == name_[n] && match(p + 1, n + 1);
    }
    dead_[place] = !found;
    return found;
  }

  std::vector<std::string> texts;

 private:
  std::string_view pattern_;
  std::string_view name_;
  std::vector<bool> dead_;
};

}  // namespace

std::optional<std::vector<std::string>> match_pattern(std::string_view pattern,
                                                      std::string_view name) {
  Matcher matcher(pattern, name);
  if (!matcher.match(0, 0)) return std::nullopt;
  return std::move(matcher.texts);
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
