// Lines out of the bytes of a pipe, however these are cut.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace vqgen {

class LineBuffer {
 public:
  // No line may be longer.
  explicit LineBuffer(std::size_t most) : most_(most) {}

  void add(std::string_view bytes) { bytes_ += bytes; }

  // The next whole line, without its end.
  std::optional<std::string> take() {
    const std::size_t end = bytes_.find('\n', searched_);
    if (end == std::string::npos) {
      searched_ = bytes_.size();
      return std::nullopt;
    }
    std::string line = bytes_.substr(0, end);
    bytes_.erase(0, end + 1);
    searched_ = 0;
    return line;
  }

  // Whether what is left after take() has no end within the bound.
  bool overflows() const { return bytes_.size() > most_; }

 private:
  std::size_t most_;
  std::string bytes_;
  std::size_t searched_ = 0;  // bytes that hold no line's end
};

}  // namespace vqgen
