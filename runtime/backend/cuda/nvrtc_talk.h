// Messages between vqgen and the process that compiles. A message is a list of texts, framed by its
// length as each text is by its own. Neither end trusts a length.
//   parent  candidates...                        the libraries to try, in order
//   child   "opened", path, major, minor, archs  archs as "75 80 90"; or "failed", reason
//   parent  name, text, options...
//   child   "compiled", log, cubin               or "rejected", log, reason
//
// The child's half, vqgen-nvrtc, links nothing but the C++ runtime, and so does this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vqgen {

using NvrtcMessage = std::vector<std::string>;

constexpr std::uint64_t kMostNvrtcBytes = std::uint64_t{1} << 28;

std::string encode(const NvrtcMessage& message);

// Messages out of bytes, however these arrive.
class NvrtcReader {
 public:
  void add(std::string_view bytes) { bytes_ += bytes; }
  // The next message that is whole; nullopt where bytes are missing, or it is damaged().
  std::optional<NvrtcMessage> take();
  // True if the bytes received are no message, or exceed kMostNvrtcBytes.
  bool damaged() const { return damaged_; }

 private:
  std::string bytes_;
  bool damaged_ = false;
};

}  // namespace vqgen
