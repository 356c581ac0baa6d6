#include "runtime/cache/key_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

namespace vqgen {
namespace {

using Clock = std::chrono::steady_clock;

// flock has no time limit, so it is asked again and again, ever more slowly.
bool lock_until(int file, Clock::time_point end, bool& waited) {
  std::chrono::milliseconds pause{1};
  while (::flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return false;
    waited = waited || errno == EWOULDBLOCK;
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds{20});
  }
  return true;
}

bool same_file(int file, const std::filesystem::path& path) {
  struct stat mine {};
  struct stat named {};
  return ::fstat(file, &mine) == 0 && ::stat(path.c_str(), &named) == 0 &&
         mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
}

}  // namespace

KeyLock::KeyLock(const std::filesystem::path& file, std::chrono::milliseconds longest)
    : path_(file) {
  std::error_code ignored;
  std::filesystem::create_directories(path_.parent_path(), ignored);
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (file_ < 0 || lock_until(file_, Clock::now() + longest, waited_)) return;
  ::close(file_);
  file_ = -1;
}

// Who waited for this file gets it still, finds the artifact, and leaves another's file alone.
KeyLock::~KeyLock() {
  if (file_ < 0) return;
  if (same_file(file_, path_)) ::unlink(path_.c_str());
  ::flock(file_, LOCK_UN);  // a child that was forked meanwhile has the file open too
  ::close(file_);
}

}  // namespace vqgen
