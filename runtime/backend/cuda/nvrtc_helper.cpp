// vqgen-nvrtc: the process in which NVRTC runs, one per compilation. vqgen and libvqgen start it
// with their process id, talk to it on its standard input (nvrtc_talk.h), and it ends with them or
// when that closes.
//
// It is a separate process because NVRTC replaces the handlers of SIGINT and SIGTERM while it
// compiles, and its own may wait for a lock that the interrupted thread holds.
#include <dlfcn.h>
#include <link.h>
#include <nvrtc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

#include "core/roomy_stack.h"
#include "runtime/backend/cuda/nvrtc_talk.h"

#define VQGEN_NVRTC_FUNCTIONS(X) \
  X(nvrtcVersion)                \
  X(nvrtcGetErrorString)         \
  X(nvrtcGetNumSupportedArchs)   \
  X(nvrtcGetSupportedArchs)      \
  X(nvrtcCreateProgram)          \
  X(nvrtcCompileProgram)         \
  X(nvrtcGetProgramLogSize)      \
  X(nvrtcGetProgramLog)          \
  X(nvrtcGetCUBINSize)           \
  X(nvrtcGetCUBIN)

namespace vqgen {
namespace {

// One line that names the library and what is wrong with it.
struct NvrtcFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct NvrtcApi {
#define VQGEN_MEMBER(function) decltype(&::function) function = nullptr;
  VQGEN_NVRTC_FUNCTIONS(VQGEN_MEMBER)
#undef VQGEN_MEMBER

  std::string path;  // of the loaded library file
  int major = 0;
  int minor = 0;
  std::string archs;  // "75 80 90": what it can compile for

  // NvrtcFault unless `result` is success.
  void check(nvrtcResult result, const char* call) const {
    if (result == NVRTC_SUCCESS) return;
    throw NvrtcFault(std::string(call) + " of " + path + ": " + nvrtcGetErrorString(result));
  }
};

constexpr const char* kRemedy =
    "install the CUDA toolkit or the Python wheel nvidia-cuda-nvrtc, or set VQGEN_NVRTC to "
    "libnvrtc or its folder";

template <class Function>
void look_up(void* library, const char* name, const std::string& path, Function& function) {
  void* const symbol = ::dlsym(library, name);
  if (symbol == nullptr) {
    throw NvrtcFault(path + " has no " + name +
                     ": not NVRTC, or older than 11.2; set VQGEN_NVRTC to a libnvrtc of 12 or "
                     "newer, or to its folder");
  }
  function = reinterpret_cast<Function>(symbol);
}

// The loaded file, as the loader found it; `name` where it does not tell.
std::string file_of(void* library, const std::string& name) {
  link_map* map = nullptr;
  const bool told = ::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0';
  return told ? map->l_name : name;
}

// NVRTC opens its builtins by bare name when it compiles; a library of that name that is already
// loaded satisfies it from any folder.
void preload_builtins(const NvrtcApi& api) {
  const std::size_t slash = api.path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : api.path.substr(0, slash + 1);
  const std::string builtins = folder + "libnvrtc-builtins.so." + std::to_string(api.major) + "." +
                               std::to_string(api.minor);
  ::dlopen(builtins.c_str(), RTLD_NOW | RTLD_LOCAL);
}

NvrtcApi read_api(void* library, const std::string& name) {
  NvrtcApi api;
  api.path = file_of(library, name);
#define VQGEN_TEXT(text) #text
#define VQGEN_LOOK_UP(function) look_up(library, VQGEN_TEXT(function), api.path, api.function);
  VQGEN_NVRTC_FUNCTIONS(VQGEN_LOOK_UP)
#undef VQGEN_LOOK_UP
#undef VQGEN_TEXT
  api.check(api.nvrtcVersion(&api.major, &api.minor), "nvrtcVersion");
  int count = 0;
  api.check(api.nvrtcGetNumSupportedArchs(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> archs(static_cast<std::size_t>(count));
  api.check(api.nvrtcGetSupportedArchs(archs.data()), "nvrtcGetSupportedArchs");
  for (const int arch : archs) api.archs += (api.archs.empty() ? "" : " ") + std::to_string(arch);
  preload_builtins(api);
  return api;
}

// The first of `candidates` that loads; a name without a folder means the loader's own search path.
// NvrtcFault, with what was tried, where none does, and where the one that does is no NVRTC. It
// stays open for the life of the process.
NvrtcApi open_nvrtc(const std::vector<std::string>& candidates) {
  std::string tried;
  for (const std::string& candidate : candidates) {
    void* const library = ::dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return read_api(library, candidate);
    const char* const reason = ::dlerror();
    // A library that is there but does not load deserves its reason.
    const bool there = ::access(candidate.c_str(), F_OK) == 0;
    tried += (tried.empty() ? "" : ", ") + (there && reason != nullptr ? reason : candidate);
  }
  throw NvrtcFault("NVRTC, the CUDA run-time compiler, was not found; tried " + tried + "; " +
                   kRemedy);
}

// The parent's next request; nullopt at the end or if it is damaged.
std::optional<NvrtcMessage> hear(NvrtcReader& reader) {
  for (;;) {
    if (std::optional<NvrtcMessage> message = reader.take()) return message;
    if (reader.damaged()) return std::nullopt;
    std::string bytes(65536, '\0');  // a stack may have no more
    const ssize_t got = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    reader.add(std::string_view(bytes).substr(0, static_cast<std::size_t>(got)));
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

NvrtcMessage compiled(const NvrtcApi& api, const NvrtcMessage& wanted) {
  if (wanted.size() < 2) return {"rejected", "", "the request has no text"};
  std::vector<const char*> options;
  for (std::size_t i = 2; i < wanted.size(); ++i) options.push_back(wanted[i].c_str());
  try {
    nvrtcProgram program = nullptr;  // goes with the process
    api.check(
        api.nvrtcCreateProgram(&program, wanted[1].c_str(), wanted[0].c_str(), 0, nullptr, nullptr),
        "nvrtcCreateProgram");
    const nvrtcResult result =
        api.nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data());
    std::size_t bytes = 0;
    api.check(api.nvrtcGetProgramLogSize(program, &bytes), "nvrtcGetProgramLogSize");
    std::string log(bytes, '\0');
    api.check(api.nvrtcGetProgramLog(program, log.data()), "nvrtcGetProgramLog");
    while (!log.empty() && log.back() == '\0') log.pop_back();
    if (result != NVRTC_SUCCESS) return {"rejected", log, api.nvrtcGetErrorString(result)};
    api.check(api.nvrtcGetCUBINSize(program, &bytes), "nvrtcGetCUBINSize");
    std::string cubin(bytes, '\0');
    api.check(api.nvrtcGetCUBIN(program, cubin.data()), "nvrtcGetCUBIN");
    return {"compiled", log, cubin};
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
    say({"opened", api.path, std::to_string(api.major), std::to_string(api.minor), api.archs});
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
  vqgen::on_roomy_stack([] {
    vqgen::serve();
    return 0;
  });
  ::_exit(0);  // without taking 100 MB of compiler down in order
}
