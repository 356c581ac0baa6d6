// A lock on one key, so that processes which miss it at once compile it once. It only saves work:
// who cannot have it goes on without.
#pragma once

#include <chrono>
#include <filesystem>

namespace vqgen {

// Held while the object lives, by flock on `file`: the kernel frees it with the process, however
// that ends. The holder removes the file, in an interruption too (core/json/leftovers.h). Threads
// exclude each other as processes do.
class KeyLock {
 public:
  // Waits for `longest` at most. Not held where the file cannot be made or locked, or the wait is
  // over.
  KeyLock(const std::filesystem::path& file, std::chrono::milliseconds longest);
  KeyLock(const KeyLock&) = delete;
  KeyLock& operator=(const KeyLock&) = delete;
  ~KeyLock();

  bool held() const { return file_ >= 0; }
  // Whether another held it first.
  bool waited() const { return waited_; }

 private:
  int attempt();  // 0 where the lock is had, else errno

  std::filesystem::path path_;
  int file_ = -1;
  bool named_ = false;  // whether the file that is held is the one of that name
  bool waited_ = false;
};

}  // namespace vqgen
