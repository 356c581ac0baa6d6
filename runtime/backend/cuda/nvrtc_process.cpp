#include "runtime/backend/cuda/nvrtc_process.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

#include <charconv>

#include "runtime/backend/cuda/helper_path.h"
#include "runtime/backend/cuda/nvrtc_file.h"

namespace vqgen {
namespace {

constexpr std::string_view kElf =
    "\x7f"
    "ELF";

[[noreturn]] void fail(const std::string& what) { throw Error(ErrorKind::device, what); }

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

bool read_number(std::string_view& text, int& number) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return code == std::errc{} && number >= 0;
}

std::optional<OpenedNvrtc> read_opened(const NvrtcMessage& message) {
  if (message.size() != 5 || message[0] != "opened") return std::nullopt;
  OpenedNvrtc opened;
  opened.path = message[1];
  std::string_view major = message[2], minor = message[3], archs = message[4];
  const bool numbers = read_number(major, opened.major) && read_number(minor, opened.minor);
  if (!numbers || !major.empty() || !minor.empty()) return std::nullopt;
  while (!archs.empty()) {
    if (archs.front() == ' ') archs.remove_prefix(1);
    if (!read_number(archs, opened.archs.emplace_back())) return std::nullopt;
  }
  opened.build = nvrtc_build(opened.path);
  return opened;
}

ChildSetup setup_of(const NvrtcOptions& options) {
  return {.command = {find_nvrtc_helper(options.helper), std::to_string(::getpid())}};
}

}  // namespace

NvrtcProcess::NvrtcProcess(const NvrtcOptions& options)
    : longest_(options.longest),
      deadline_(std::chrono::steady_clock::now() + options.longest),
      talk_(setup_of(options)) {
  NvrtcMessage candidates;
  for (const auto& candidate :
       nvrtc_candidates(options.path, nvrtc_helper_folder(options.helper))) {
    candidates.push_back(path_of(candidate));
  }
  const NvrtcMessage answer = ask(candidates);
  if (answer.size() == 2 && answer[0] == "failed") fail(answer[1]);
  std::optional<OpenedNvrtc> opened = read_opened(answer);
  if (!opened) fail("the process of NVRTC, vqgen-nvrtc, answered nonsense");
  nvrtc_ = *std::move(opened);
}

// The answer, whatever it is worth.
NvrtcMessage NvrtcProcess::ask(const NvrtcMessage& message) {
  // Where it does not take all of it, it has ended, and says so below.
  talk_.send(encode(message), deadline_);
  for (;;) {
    if (std::optional<NvrtcMessage> answer = reader_.take()) return *std::move(answer);
    if (reader_.damaged()) fail("the process of NVRTC, vqgen-nvrtc, answered nonsense");
    std::string bytes;
    const ChildTalk::Got got = talk_.receive(bytes, deadline_);
    if (got == ChildTalk::Got::nothing) {
      fail(
          fmt::format("the process of NVRTC, vqgen-nvrtc, took more than {} s and was ended; see "
                      "whether this machine is overloaded, or take another NVRTC (VQGEN_NVRTC)",
                      std::chrono::duration<double>(longest_).count()));
    }
    if (got == ChildTalk::Got::end) {
      fail(fmt::format("the process of NVRTC, vqgen-nvrtc, {}", talk_.last_words()));
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
      answer.size() == 3 && answer[0] == "compiled" && answer[2].starts_with(kElf);
  if (!compiled) fail("the process of NVRTC, vqgen-nvrtc, answered nonsense");
  return {.log = std::move(answer[1]), .cubin = std::move(answer[2]), .why = ""};
}

}  // namespace vqgen
