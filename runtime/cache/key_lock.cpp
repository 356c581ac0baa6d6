#include "runtime/cache/key_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "core/json/leftovers.h"
#include "runtime/cache/trust.h"

namespace vqgen {
namespace {

using Clock = std::chrono::steady_clock;

bool same_file(int file, const std::filesystem::path& path) {
  struct stat mine {};
  struct stat named {};
  return ::fstat(file, &mine) == 0 && ::stat(path.c_str(), &named) == 0 &&
         mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
}

}  // namespace

// flock has no time limit, so it is asked again and again, ever more slowly.
KeyLock::KeyLock(const std::filesystem::path& file, std::chrono::milliseconds longest)
    : path_(file) {
  make_closed_folders(path_.parent_path());
  const Clock::time_point end = Clock::now() + longest;
  std::chrono::milliseconds pause{1};
  int error = attempt();
  while (error == EWOULDBLOCK || error == EINTR) {
    waited_ = waited_ || error == EWOULDBLOCK;
    if (Clock::now() >= end) break;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::milliseconds{20});
    error = attempt();
  }
  if (error == 0 || file_ < 0) return;
  ::close(file_);
  file_ = -1;
}

// Makes and locks the file in one step, since nobody would remove one that nobody holds.
int KeyLock::attempt() {
  Leftovers leftovers;
  if (file_ < 0) file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (file_ < 0 || ::flock(file_, LOCK_EX | LOCK_NB) != 0) return errno;
  named_ = same_file(file_, path_);
  if (named_) leftovers.add(path_);
  return 0;
}

// Who waited for this file gets it still, finds the artifact, and leaves another's file alone.
KeyLock::~KeyLock() {
  if (file_ < 0) return;
  Leftovers leftovers;
  if (same_file(file_, path_)) ::unlink(path_.c_str());
  if (named_) leftovers.forget(path_);
  ::flock(file_, LOCK_UN);  // a child that was forked meanwhile has the file open too
  ::close(file_);
}

}  // namespace vqgen
