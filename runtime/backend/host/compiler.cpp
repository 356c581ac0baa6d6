#include "runtime/backend/host/compiler.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>

#include "core/error.h"
#include "core/files/files.h"
#include "core/roomy_stack.h"
#include "runtime/backend/host/fiber.h"
#include "runtime/process/child.h"

namespace vqgen::host {
namespace {

// -fno-gnu-unique, without which clang has no unique symbols and which it does not know, and hidden
// symbols keep loaded variants apart; no contraction and no aliasing rules keep the arithmetic of
// all compilers alike and let words be read as another type.
std::vector<std::string> options(bool check_races, bool optimize, bool clang) {
  const char* const level = optimize && !kSanitized ? "-O1" : "-O0";
  std::vector<std::string> out = {"-std=c++17",
                                  level,
                                  "-fPIC",
                                  "-shared",
                                  "-fvisibility=hidden",
                                  "-ffp-contract=off",
                                  "-fno-strict-aliasing",
                                  "-fno-exceptions",
                                  "-fno-rtti",
                                  "-w"};
  if (!clang) out.emplace_back("-fno-gnu-unique");
  if (kSanitized) {
    // The checks of UBSan that a kernel can fail, as traps, which ASan reports with their line;
    // address checks as calls, and -O0: together they compile six times faster than
    // -fsanitize=address,undefined inline at -O1.
    out.insert(out.end(),
               {"-g1", "-fno-omit-frame-pointer",
                "-fsanitize=address,shift,bounds,signed-integer-overflow,integer-divide-by-zero,"
                "alignment,float-cast-overflow,unreachable",
                "-fsanitize-undefined-trap-on-error", "--param",
                "asan-instrumentation-with-call-threshold=0"});
  }
  if (check_races) out.push_back("-DVQ_CHECK_RACES");
  return out;
}

// A hung compiler is ended after this; the slowest kernel takes a hundredth of it.
constexpr std::chrono::seconds kLongest{600};

constexpr const char* kRemedy =
    "; install g++ or name a C++17 compiler (VQGEN_CXX for the command line tool)";

// Runs in a folder that is removed with its contents, the compiler's own files included.
std::optional<int> run_compiler(const std::vector<std::string>& command,
                                const ScratchFolder& folder, const std::string& log) {
  const std::string temporary = "TMPDIR=" + std::filesystem::absolute(folder.path()).string();
  return run_process(command, folder.path(), log,
                     {.environment = {temporary}, .longest = kLongest});
}

// A compiler that needs more stack ends without saying so.
std::string about_stack() {
  const std::optional<rlimit> small = small_stack();
  if (!small) return "";
  return fmt::format("; its stack may have only {} KiB, so raise the limit (ulimit -s {})",
                     small->rlim_cur >> 10, kUsualStack >> 10);
}

// The library that a compiler made, by its first bytes; empty where there is none.
std::vector<std::byte> read_library(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return {};
  std::vector<std::byte> bytes = read_file(path);
  const bool elf = bytes.size() > SELFMAG && std::memcmp(bytes.data(), ELFMAG, SELFMAG) == 0;
  return elf ? bytes : std::vector<std::byte>{};
}

}  // namespace

Compiler::Compiler(std::string program, std::filesystem::path scratch, bool check_races,
                   bool optimize)
    : scratch_(std::move(scratch)), check_races_(check_races), optimize_(optimize) {
  if (program.find('/') != program.npos) program = std::filesystem::absolute(program).string();
  candidates_ = program.empty() ? std::vector<std::string>{"g++", "c++"} : std::vector{program};
}

Compiler::Found Compiler::find() const {
  const std::lock_guard lock(mutex_);
  if (found_) return *found_;
  const ScratchFolder folder(scratch_);
  std::string tried;
  for (const std::string& program : candidates_) {
    tried += (tried.empty() ? "" : ", ") + program;
    if (run_compiler({program, "--version"}, folder, "version") != 0) continue;
    std::string line = read_text(folder.path() / "version");
    line.resize(std::min(line.size(), line.find('\n')));
    const std::string name = std::filesystem::path(program).filename().string() + " ";
    if (line.starts_with(name)) line.erase(0, name.size());
    if (!line.empty()) {
      const bool clang = line.find("clang") != line.npos;
      if (clang && kSanitized) {
        throw device_error("{} is clang, whose sanitizer does not go with this build's; name g++",
                           program);
      }
      return *(found_ = Found{program, line, options(check_races_, optimize_, clang)});
    }
    tried += " (which is not a compiler: it tells no version)";
  }
  throw device_error("no host compiler: tried {} on PATH{}", tried, kRemedy);
}

CompilerIdentity Compiler::identity() const {
  const Found found = find();
  return {fmt::format("c++ {}, host api {}", found.version, vq::host::kApiVersion), found.options};
}

Artifact Compiler::compile(const KernelSource& source) const {
  const auto start = std::chrono::steady_clock::now();
  ScratchFolder folder(scratch_);
  publish_text(folder.path() / "kernel.cpp", source.text);
  const Found found = find();
  std::vector<std::string> command = {found.program};
  command.insert(command.end(), found.options.begin(), found.options.end());
  // Debug lines would name the private folder: the same text must give the same bytes.
  command.push_back("-ffile-prefix-map=" + folder.path().string() + "=.");
  command.insert(command.end(), {"-o", "kernel.so", "kernel.cpp"});
  const std::optional<int> status = run_compiler(command, folder, "compile.log");
  if (status != 0) {
    folder.keep();
    const std::filesystem::path log = folder.path() / "compile.log";
    const std::string why = first_error(read_text(log));
    throw device_error(
        "host compiler rejects {}: {}{}; whole log in {}, text in kernel.cpp beside it",
        source.entries.at(0).name,
        why.empty() ? fmt::format("exit status {}", status.value_or(127)) : why, about_stack(),
        log.string());
  }
  Artifact artifact;
  artifact.binary = read_library(folder.path() / "kernel.so");
  if (artifact.binary.empty()) {
    throw device_error("host compiler {} makes no library of {}, and no error{}", command[0],
                       source.entries.at(0).name, kRemedy);
  }
  for (const KernelEntry& entry : source.entries) artifact.kernels.push_back({.name = entry.name});
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
  artifact.compile_ms = spent.count();
  return artifact;
}

void Library::Close::operator()(void* handle) const { dlclose(handle); }

namespace {

bool mounted_noexec(const std::filesystem::path& folder) {
  struct statvfs system {};
  return ::statvfs(folder.c_str(), &system) == 0 && (system.f_flag & ST_NOEXEC) != 0;
}

// The library at `path`, for the dynamic loader: a file, or where its file system is mounted noexec
// a link to a file in memory, which is there as long as what comes back.
OwnedFile lay_library(const std::filesystem::path& path, std::span<const std::byte> binary) {
  if (!mounted_noexec(path.parent_path())) {
    publish_file(path, binary);
    return {};
  }
  OwnedFile file(::memfd_create("vqgen-kernel", MFD_CLOEXEC));
  const int error = file.get() < 0 ? errno : write_all(file.get(), binary);
  const std::string memory = fmt::format("/proc/self/fd/{}", file.get());
  if (error != 0 || ::symlink(memory.c_str(), path.c_str()) != 0) {
    throw device_error(
        "cannot load host kernels: {} is mounted noexec, and memory takes no file: {}; set TMPDIR "
        "to a folder that is not",
        path.parent_path().string(), std::strerror(error != 0 ? error : errno));
  }
  return file;
}

}  // namespace

Library::Library(std::span<const std::byte> binary, const KernelSource& source, bool check_races,
                 const std::filesystem::path& scratch)
    : file_(std::make_unique<ScratchFolder>(scratch)) {
  const std::filesystem::path path = file_->path() / "kernel.so";
  const OwnedFile held = lay_library(path, binary);
  handle_.reset(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
  const auto fail = [&](const std::string& what) {
    throw device_error("cannot load host kernel {}: {}; compile it again",
                       source.entries.at(0).name, what);
  };
  if (handle_ == nullptr && held.get() >= 0) {
    throw device_error(
        "cannot load host kernel {}: {} is mounted noexec, and so is memory: {}; set TMPDIR to a "
        "folder that is not",
        source.entries.at(0).name, path.parent_path().string(), dlerror());
  }
  if (handle_ == nullptr) fail(dlerror());
  for (const KernelEntry& wanted : source.entries) {
    const void* symbol = dlsym(handle_.get(), ("vq_entry_" + wanted.name).c_str());
    if (symbol == nullptr) fail("it has no VQ_KERNEL " + wanted.name);
    const auto* entry = static_cast<const vq::host::Entry*>(symbol);
    if (entry->api_version != vq::host::kApiVersion) {
      fail(fmt::format("it speaks host api {}, not {}", entry->api_version, vq::host::kApiVersion));
    }
    if (entry->tracks != check_races) {
      fail(fmt::format("it was compiled {} races",
                       entry->tracks ? "to check" : "without checks of"));
    }
    if (entry->threads != static_cast<int>(wanted.threads)) {
      fail(fmt::format("{} is made for {} threads, its launch shape has {}", wanted.name,
                       entry->threads, wanted.threads));
    }
    if (entry->args_bytes != static_cast<std::uint64_t>(source.args_bytes)) {
      fail(fmt::format("{} takes {} bytes of arguments, its source says {}", wanted.name,
                       entry->args_bytes, source.args_bytes));
    }
    entries_.push_back(entry);
  }
  if (!kSanitized) file_.reset();
}

}  // namespace vqgen::host
