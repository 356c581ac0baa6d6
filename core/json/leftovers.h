// What an interrupted process must not leave behind: temporary files and folders, lock files, child
// processes. Whoever makes one registers it here at once; a program that is about to end removes
// all that is registered: the tool when it is interrupted, the library when its process exits.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <mutex>

namespace vqgen {

// How a child process is ended: by SIGKILL; or by SIGTERM if it has leftovers of its own, then by
// SIGKILL if it does not end soon.
enum class Farewell { kill, terminate };

// While one lives, end_leftovers() waits: making a thing and naming it, or removing and forgetting
// it, are one step for it. Hold it for a few calls of the system. Not to be nested.
class Leftovers {
 public:
  Leftovers();
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;

  // A file, or a folder with all that is in it. A relative path is one of the folder that the
  // process is in by then.
  void add(const std::filesystem::path& path);
  void forget(const std::filesystem::path& path);
  // A child that leads a process group. It must not be reaped before it is forgotten.
  void add_child(pid_t leader, Farewell farewell);
  void forget_child(pid_t leader);

 private:
  std::unique_lock<std::mutex> lock_;
};

// Ends all children that this process named, with their groups, and removes all paths, within some
// two seconds. From then on each thread that makes a Leftovers stops there. For a program that ends
// right after.
void end_leftovers();

}  // namespace vqgen
