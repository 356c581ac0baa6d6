#include "runtime/backend/cuda/nvrtc_compile.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <sstream>

#include "core/files/digest.h"
#include "core/files/files.h"
#include "core/gpu/gpu_arch.h"
#include "runtime/process/temporary_folder.h"

namespace vqgen {
namespace {

constexpr const char* kNonsense = "the process of NVRTC, vqgen-nvrtc, answered nonsense";

// One that this process has loaded already, as a framework's, is found by its name where the
// loader's path does not have it; the other process would not find it.
std::string path_of(const std::filesystem::path& candidate) {
  if (candidate.has_parent_path()) return candidate.string();
  void* const loaded = ::dlopen(candidate.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (loaded == nullptr) return candidate.string();
  link_map* map = nullptr;
  const bool told = ::dlinfo(loaded, RTLD_DI_LINKMAP, &map) == 0;
  const std::string path = told ? map->l_name : candidate.string();
  ::dlclose(loaded);
  return path;
}

std::optional<OpenedNvrtc> read_opened(const NvrtcMessage& message) {
  if (message.size() != 5 || message[0] != "opened") return std::nullopt;
  std::istringstream text(fmt::format("{} {} {}", message[2], message[3], message[4]));
  const std::vector<int> numbers(std::istream_iterator<int>(text), {});
  const bool negative = std::any_of(numbers.begin(), numbers.end(), [](int n) { return n < 0; });
  if (!text.eof() || numbers.size() < 2 || negative) return std::nullopt;
  return OpenedNvrtc{{message[1], numbers[0], numbers[1], nvrtc_build(message[1])},
                     {numbers.begin() + 2, numbers.end()}};
}

void require_arch(const OpenedNvrtc& nvrtc, const KernelSource& source) {
  const int number = arch_number(source.arch);
  if (std::find(nvrtc.archs.begin(), nvrtc.archs.end(), number) != nvrtc.archs.end()) return;
  throw device_error(
      "{}: NVRTC {}.{} cannot compile for '{}', only for sm_{}; choose another GPU, or an NVRTC "
      "that supports it",
      source.op, nvrtc.major, nvrtc.minor, source.arch, fmt::join(nvrtc.archs, ", sm_"));
}

// Keeps text and log for the reader of the message, and says where.
std::string keep(const KernelSource& source, const std::string& log) {
  std::filesystem::path stem = "vqgen-failed-" + Digest().add(source.text).hex().substr(0, 16);
  try {
    stem = temporary_folder() / stem;
    publish_text(stem.string() + ".cu", source.text);
    publish_text(stem.string() + ".log", log);
  } catch (const Error& error) {
    return fmt::format("text and log could not be kept: {}", error.what());
  }
  return fmt::format("text and log are kept in {0}.cu and {0}.log", stem.string());
}

[[noreturn]] void fail(const KernelSource& source, const std::string& why, const std::string& log) {
  throw device_error("NVRTC on {} for {}: {}; {}", source.op, source.arch, why, keep(source, log));
}

constexpr std::string_view kEntryMark = "Compiling entry function '";

// The log from the line that opens entry `name` to the next entry's; "" if there is none.
std::string_view section_of(std::string_view log, const std::string& name) {
  const std::size_t begin = log.find(std::string(kEntryMark) + name + "'");
  if (begin == log.npos) return {};
  const std::size_t end = log.find(kEntryMark, begin + kEntryMark.size());
  return log.substr(begin, end == log.npos ? end : end - begin);
}

// Sums up the integers right before `unit`; nullopt if there are none.
std::optional<int> sum_before(std::string_view text, std::string_view unit) {
  std::optional<int> sum;
  for (std::size_t at = text.find(unit); at != text.npos; at = text.find(unit, at + unit.size())) {
    std::size_t begin = at;
    while (begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9') --begin;
    int value = 0;
    const auto parsed = std::from_chars(text.data() + begin, text.data() + at, value);
    if (parsed.ec == std::errc{}) sum = sum.value_or(0) + value;
  }
  return sum;
}

}  // namespace

NvrtcProcess::NvrtcProcess(const CudaOptions& options)
    : longest_(options.compile_longest),
      deadline_(std::chrono::steady_clock::now() + options.compile_longest),
      talk_({.command = {find_nvrtc_helper(options.nvrtc_helper), std::to_string(::getpid())}}) {
  NvrtcMessage candidates;
  for (const auto& candidate :
       nvrtc_candidates(options.nvrtc_path, nvrtc_helper_folder(options.nvrtc_helper))) {
    candidates.push_back(path_of(candidate));
  }
  const NvrtcMessage answer = ask(candidates);
  if (answer.size() == 2 && answer[0] == "failed") throw device_error("{}", answer[1]);
  std::optional<OpenedNvrtc> opened = read_opened(answer);
  if (!opened) throw device_error(kNonsense);
  nvrtc_ = *std::move(opened);
}

// The answer, whatever it is worth.
NvrtcMessage NvrtcProcess::ask(const NvrtcMessage& message) {
  // A helper that does not read all has ended; the answer below reports it.
  talk_.send(encode(message), deadline_);
  for (;;) {
    if (std::optional<NvrtcMessage> answer = reader_.take()) return *std::move(answer);
    if (reader_.damaged()) throw device_error(kNonsense);
    std::string bytes;
    const ChildTalk::Got got = talk_.receive(bytes, deadline_);
    if (got == ChildTalk::Got::nothing) {
      throw device_error(
          "the process of NVRTC, vqgen-nvrtc, took more than {} s and was ended; see whether this "
          "machine is overloaded, or take another NVRTC (VQGEN_NVRTC)",
          std::chrono::duration<double>(longest_).count());
    }
    if (got == ChildTalk::Got::end) {
      throw device_error("the process of NVRTC, vqgen-nvrtc, {}", talk_.last_words());
    }
    reader_.add(bytes);
  }
}

NvrtcProcess::Result NvrtcProcess::compile(const std::string& name, const std::string& text,
                                           const std::vector<std::string>& options) {
  NvrtcMessage wanted{name, text};
  wanted.insert(wanted.end(), options.begin(), options.end());
  NvrtcMessage answer = ask(wanted);
  if (answer.size() == 3 && answer[0] == "rejected") {
    return {.log = std::move(answer[1]), .cubin = "", .why = std::move(answer[2])};
  }
  const bool compiled =
      answer.size() == 3 && answer[0] == "compiled" && answer[2].starts_with(ELFMAG);
  if (!compiled) throw device_error(kNonsense);
  return {.log = std::move(answer[1]), .cubin = std::move(answer[2]), .why = ""};
}

std::vector<std::string> nvrtc_options(int major, int minor, const KernelSource& source) {
  // Generic lambdas take no annotation, without which NVRTC has functions for the host.
  std::vector<std::string> options = {"--gpu-architecture=" + source.arch, "-std=c++17",
                                      "-default-device", "-lineinfo", "--ptxas-options=-v"};
  // With a driver, NVRTC 12.9 and later caches compiled texts in ~/.nv; cached answers have an
  // empty log, without registers and spills.
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

std::optional<KernelResources> read_ptxas_log(std::string_view log, const std::string& name) {
  const std::string_view section = section_of(log, name);
  const std::optional<int> registers = sum_before(section, " registers");
  if (!registers) return std::nullopt;
  KernelResources resources;
  resources.name = name;
  resources.registers = *registers;
  resources.static_shared_bytes = sum_before(section, " bytes smem").value_or(0);
  resources.spill_bytes = sum_before(section, " bytes spill stores").value_or(0) +
                          sum_before(section, " bytes spill loads").value_or(0);
  return resources;
}

}  // namespace vqgen
