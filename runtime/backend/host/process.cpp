#include "runtime/backend/host/process.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>

#include "core/json/leftovers.h"
#include "runtime/backend/backend.h"
#include "runtime/process/child.h"
#include "runtime/process/temporary_folder.h"

namespace vqgen::host {

ScratchFolder::ScratchFolder(const std::filesystem::path& parent) {
  const std::filesystem::path base = parent.empty() ? temporary_folder() : parent;
  std::string name = (base / "vqgen-host-XXXXXX").string();
  Leftovers leftovers;
  if (mkdtemp(name.data()) == nullptr) {
    throw device_error("cannot make a folder in {}: {}; name a writable scratch folder",
                       base.string(), std::strerror(errno));
  }
  path_ = name;
  leftovers.add(path_);
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!kept_) std::filesystem::remove_all(path_, ignored);
  Leftovers().forget(path_);
}

std::optional<int> run_process(const std::vector<std::string>& command,
                               const std::filesystem::path& folder, const std::string& log,
                               RunOptions options) {
  const OwnedFile nothing = above_standard(OwnedFile(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
  const std::filesystem::path path = folder / log;
  const OwnedFile said = above_standard(
      OwnedFile(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)));
  if (nothing.get() < 0 || said.get() < 0) {
    throw device_error("cannot start {}: {}: {}; make room there", command.at(0), path.string(),
                       std::strerror(errno));
  }
  options.environment.push_back("LC_ALL=C");
  try {
    Child child(ChildSetup{command, folder, std::move(options.environment)},
                ChildFiles{nothing.get(), said.get(), said.get()});
    const auto limit =
        options.longest ? std::chrono::steady_clock::now() + *options.longest : Child::Time::max();
    if (!child.ended(limit)) {
      throw device_error("{} took more than {} s and was ended; see whether it hangs", command[0],
                         options.longest->count());
    }
    const std::optional<int> status = child.end();
    if (!status) {
      throw device_error("lost {}; leave SIGCHLD at its default and try again", command[0]);
    }
    return WIFEXITED(*status) ? WEXITSTATUS(*status) : 128 + WTERMSIG(*status);
  } catch (const StartError& error) {
    const int code = error.code();
    if (code == ENOENT || code == ENOTDIR || code == EACCES) return std::nullopt;
    throw;
  }
}

}  // namespace vqgen::host
