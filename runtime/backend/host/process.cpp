#include "runtime/backend/host/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>

#include "core/error.h"

namespace vqgen::host {
namespace {

// This process's environment with the compiler's messages in English.
std::vector<char*> english_environment() {
  static char english[] = "LC_ALL=C";
  std::vector<char*> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with("LC_ALL=")) out.push_back(*entry);
  }
  out.push_back(english);
  out.push_back(nullptr);
  return out;
}

}  // namespace

ScratchFolder::ScratchFolder(const std::filesystem::path& parent) {
  std::error_code failed;
  const std::filesystem::path base =
      parent.empty() ? std::filesystem::temp_directory_path(failed) : parent;
  std::string name = (base / "vqgen-host-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw Error(ErrorKind::device, "cannot make a folder in " + base.string() + ": " +
                                       std::strerror(errno) + "; name a writable scratch folder");
  }
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!kept_) std::filesystem::remove_all(path_, ignored);
}

std::optional<int> run_process(const std::vector<std::string>& command,
                               const std::filesystem::path& folder, const std::string& log) {
  std::vector<char*> arguments;
  for (const std::string& part : command) arguments.push_back(const_cast<char*>(part.c_str()));
  arguments.push_back(nullptr);
  std::vector<char*> environment = english_environment();

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t child = 0;
  const int failed =
      posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed == ENOENT || failed == ENOTDIR || failed == EACCES) return std::nullopt;
  if (failed != 0) {
    throw Error(ErrorKind::device, "cannot start " + command[0] + ": " + std::strerror(failed) +
                                       "; free memory or "
                                       "processes and try again");
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) {
      throw Error(ErrorKind::device, "lost " + command[0] + ": " + std::strerror(errno) +
                                         "; leave SIGCHLD at its default and try again");
    }
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace vqgen::host
