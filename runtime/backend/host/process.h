// Running one program without a shell.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace vqgen::host {

// A private folder that goes with its owner, unless it is kept.
class ScratchFolder {
 public:
  // Under `parent`, or the system's temporary folder where that is empty. Error(device).
  explicit ScratchFolder(const std::filesystem::path& parent);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  std::filesystem::path path_;
  bool kept_ = false;
};

// Runs `command` (program and arguments) in `folder`, its messages in English and into folder/log.
// The exit status, 128 + n after signal n; nullopt where there is no such program. Thread-safe.
std::optional<int> run_process(const std::vector<std::string>& command,
                               const std::filesystem::path& folder, const std::string& log);

}  // namespace vqgen::host
