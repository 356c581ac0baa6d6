// vqgen-nvrtc: the process in which NVRTC runs, one a compilation. vqgen and libvqgen start it with
// the number of their own process, and speak to it on its standard input (nvrtc_talk.h). It ends
// with them, or when that is closed.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/backend/cuda/nvrtc_api.h"
#include "runtime/backend/cuda/nvrtc_talk.h"

namespace vqgen {
namespace {

// An nvrtcProgram that destroys itself.
class Program {
 public:
  Program(const NvrtcApi& api, const std::string& name, const std::string& text) : api_(api) {
    api_.check(api_.nvrtcCreateProgram(&program_, text.c_str(), name.c_str(), 0, nullptr, nullptr),
               "nvrtcCreateProgram");
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { api_.nvrtcDestroyProgram(&program_); }

  nvrtcResult compile(const std::vector<const char*>& options) {
    return api_.nvrtcCompileProgram(program_, static_cast<int>(options.size()), options.data());
  }
  std::string log() const {
    std::size_t bytes = 0;
    api_.check(api_.nvrtcGetProgramLogSize(program_, &bytes), "nvrtcGetProgramLogSize");
    std::string text(bytes, '\0');
    api_.check(api_.nvrtcGetProgramLog(program_, text.data()), "nvrtcGetProgramLog");
    while (!text.empty() && text.back() == '\0') text.pop_back();
    return text;
  }
  std::string cubin() const {
    std::size_t bytes = 0;
    api_.check(api_.nvrtcGetCUBINSize(program_, &bytes), "nvrtcGetCUBINSize");
    std::string binary(bytes, '\0');
    api_.check(api_.nvrtcGetCUBIN(program_, binary.data()), "nvrtcGetCUBIN");
    return binary;
  }

 private:
  const NvrtcApi& api_;
  nvrtcProgram program_ = nullptr;
};

// What the parent asks next; nullopt where it asks nothing more, or nothing sound.
std::optional<NvrtcMessage> hear(NvrtcReader& reader) {
  for (;;) {
    if (std::optional<NvrtcMessage> message = reader.take()) return message;
    if (reader.damaged()) return std::nullopt;
    char bytes[65536];
    const ssize_t got = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    reader.add(std::string_view(bytes, static_cast<std::size_t>(got)));
  }
}

void say(const NvrtcMessage& message) {
  const std::string text = encode(message);
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t sent = ::send(STDIN_FILENO, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) return;
    if (sent > 0) rest.remove_prefix(static_cast<std::size_t>(sent));
  }
}

NvrtcMessage opened(const NvrtcApi& api) {
  std::string archs;
  for (const int arch : api.archs) archs += (archs.empty() ? "" : " ") + std::to_string(arch);
  return {"opened", api.path, std::to_string(api.major), std::to_string(api.minor), archs};
}

NvrtcMessage compiled(const NvrtcApi& api, const NvrtcMessage& wanted) {
  if (wanted.size() < 2) return {"rejected", "", "the request has no text"};
  std::vector<const char*> options;
  for (std::size_t i = 2; i < wanted.size(); ++i) options.push_back(wanted[i].c_str());
  try {
    Program program(api, wanted[0], wanted[1]);
    const nvrtcResult result = program.compile(options);
    const std::string log = program.log();
    if (result != NVRTC_SUCCESS) return {"rejected", log, api.nvrtcGetErrorString(result)};
    return {"compiled", log, program.cubin()};
  } catch (const NvrtcFault& fault) {
    return {"rejected", "", fault.what()};
  }
}

void serve() {
  NvrtcReader reader;
  const std::optional<NvrtcMessage> candidates = hear(reader);
  if (!candidates) return;
  try {
    const NvrtcApi api = open_nvrtc(*candidates);
    say(opened(api));
    if (const std::optional<NvrtcMessage> wanted = hear(reader)) say(compiled(api, *wanted));
  } catch (const NvrtcFault& fault) {
    say({"failed", fault.what()});
  }
}

}  // namespace
}  // namespace vqgen

int main(int argc, char** argv) {
  if (argc != 2) {
    ::fputs("vqgen-nvrtc: started by vqgen and libvqgen, for which it compiles\n", stderr);
    return 2;
  }
  // The parent may have ended before it was to be noticed.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != ::atoi(argv[1])) return 5;
  ::dup2(STDERR_FILENO, STDOUT_FILENO);  // NVRTC may print
  vqgen::serve();
  ::_exit(0);  // without taking 100 MB of compiler down in order
}
