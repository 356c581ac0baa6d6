#include "runtime/backend/cuda/nvrtc_compile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

#include "core/files/digest.h"
#include "core/files/files.h"
#include "core/gpu/gpu_arch.h"
#include "runtime/backend/cuda/ptxas_log.h"

namespace vqgen {
namespace {

void require_arch(const OpenedNvrtc& nvrtc, const KernelSource& source) {
  const int number = arch_number(source.arch);
  if (std::find(nvrtc.archs.begin(), nvrtc.archs.end(), number) != nvrtc.archs.end()) return;
  throw Error(ErrorKind::device,
              fmt::format("{}: NVRTC {}.{} cannot compile for '{}', only for sm_{}; choose another "
                          "GPU, or an NVRTC that supports it",
                          source.op, nvrtc.major, nvrtc.minor, source.arch,
                          fmt::join(nvrtc.archs, ", sm_")));
}

// The line that says what went wrong first; the whole of a log without such a line's first line.
std::string first_error(const std::string& log) {
  std::size_t begin = log.npos;
  for (const char* mark : {"error", "fatal"}) begin = std::min(begin, log.find(mark));
  begin = begin == log.npos ? 0 : log.rfind('\n', begin) + 1;
  return log.substr(begin, log.find('\n', begin) - begin);
}

// Keeps text and log for the reader of the message, and says where.
std::string keep(const KernelSource& source, const std::string& log) {
  std::error_code code;
  const auto folder = std::filesystem::temp_directory_path(code);
  if (code) return "there is no temporary folder to keep the log in";
  const auto stem = folder / ("vqgen-failed-" + Digest().add(source.text).hex().substr(0, 16));
  try {
    publish_text(stem.string() + ".cu", source.text);
    publish_text(stem.string() + ".log", log);
  } catch (const Error& error) {
    return fmt::format("text and log could not be kept: {}", error.what());
  }
  return fmt::format("text and log are kept in {0}.cu and {0}.log", stem.string());
}

[[noreturn]] void fail(const KernelSource& source, const std::string& why, const std::string& log) {
  throw Error(ErrorKind::device, fmt::format("NVRTC on {} for {}: {}; {}", source.op, source.arch,
                                             why, keep(source, log)));
}

}  // namespace

std::vector<std::string> nvrtc_options(int major, int minor, const KernelSource& source) {
  std::vector<std::string> options = {"--gpu-architecture=" + source.arch, "-std=c++17",
                                      "-lineinfo", "--ptxas-options=-v"};
  // Where there is a driver, NVRTC 12.9 and later keep compiled texts in ~/.nv; an answer from
  // there comes with an empty log, and registers and spills would be unknown.
  if (major > 12 || (major == 12 && minor >= 9)) options.push_back("--no-cache");
  return options;
}

Artifact nvrtc_compile(NvrtcProcess& process, const KernelSource& source) {
  const OpenedNvrtc& nvrtc = process.nvrtc();
  require_arch(nvrtc, source);
  const auto start = std::chrono::steady_clock::now();
  NvrtcProcess::Result result;
  try {
    result = process.compile(source.op + ".cu", source.text,
                             nvrtc_options(nvrtc.major, nvrtc.minor, source));
  } catch (const Error& error) {
    fail(source, error.what(), "");
  }
  const std::string& log = result.log;
  if (result.cubin.empty()) fail(source, log.empty() ? result.why : first_error(log), log);
  Artifact artifact;
  const auto bytes = std::as_bytes(std::span(result.cubin));
  artifact.binary.assign(bytes.begin(), bytes.end());
  for (const KernelEntry& entry : source.entries) {
    auto resources = read_ptxas_log(log, entry.name);
    if (!resources) fail(source, fmt::format("the log tells nothing of '{}'", entry.name), log);
    artifact.kernels.push_back(*std::move(resources));
  }
  const std::chrono::duration<double, std::milli> spent = std::chrono::steady_clock::now() - start;
  artifact.compile_ms = spent.count();
  return artifact;
}

}  // namespace vqgen
