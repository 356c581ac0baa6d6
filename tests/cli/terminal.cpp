#include "tests/cli/terminal.h"

#include <fcntl.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

#include "core/files/files.h"

namespace vqgen {

Outcome vqgen_on_terminal(const Arguments& arguments, const Variables& variables) {
  const Folder folder;
  std::vector<std::string> command{"env", "XDG_DATA_HOME=" + folder.path("data")};
  for (const auto& [name, value] : variables) command.push_back(name + "=" + value);
  command.emplace_back(VQGEN_TOOL);
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : command) pointers.push_back(word.data());
  pointers.push_back(nullptr);

  const std::string out = folder.path("out");
  winsize size{};
  size.ws_row = 24;
  size.ws_col = 80;
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child < 0) throw std::runtime_error("no terminal");
  if (child == 0) {
    dup2(open(out.c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
    execvp(pointers[0], pointers.data());
    _exit(127);
  }
  std::string err;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(terminal, buffer, sizeof buffer)) > 0;) {
    err.append(buffer, static_cast<std::size_t>(got));
  }
  close(terminal);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_text(out), err};
}

}  // namespace vqgen
