#include "cli/command.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>

#include "core/files/files.h"
#include "core/gpu/least_arch.h"
#include "core/json/json_text.h"
#include "core/profiles.h"
#include "runtime/backend/host/host_backend.h"
#include "runtime/environment.h"

namespace vqgen::cli {
namespace {

template <class Number>
CLI::Validator within(const char* kind, Number least, Number most) {
  const auto refusal = [=](const std::string& text) -> std::string {
    Number number{};
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, number);
    if (read.ec == std::errc{} && read.ptr == end && number >= least && number <= most) return "";
    return fmt::format("'{}' is no {} from {} to {}", text, kind, least, most);
  };
  return {refusal, fmt::format("{} to {}", least, most)};
}

constexpr std::chrono::seconds kSilence{2};
constexpr std::chrono::milliseconds kBetweenDraws{250};

// Bypasses stdio, whose lock a concurrently forked child would inherit. A terminal that takes no
// more gets no progress.
void write_terminal(const std::string& text) {
  write_all(STDERR_FILENO, std::as_bytes(std::span(text)));
}

// Cuts the line to the terminal's width, in whole characters of UTF-8, so that it does not wrap.
std::string fitted(const std::string& line) {
  std::string text = one_line(line);
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  std::size_t end = std::min<std::size_t>(text.size(), known ? size.ws_col - 1u : 79u);
  while (end < text.size() && end > 0 && (text[end] & 0xc0) == 0x80) --end;
  text.resize(end);
  return text;
}

}  // namespace

std::string replaced(const std::string& text, const std::map<char, std::string>& others) {
  std::string result;
  for (const char c : text) {
    const auto other = others.find(c);
    result += other == others.end() ? std::string(1, c) : other->second;
  }
  return result;
}

std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kNamed = 8;
  const auto shown = std::span(names).first(std::min(kNamed, names.size()));
  std::string text = fmt::format("{}", fmt::join(shown, ", "));
  if (names.size() > kNamed) text += fmt::format(" and {} more", names.size() - kNamed);
  return text;
}

std::string ratio_text(const std::optional<double>& ratio, int digits) {
  return ratio ? fmt::format("{:.{}f}", *ratio, digits) : "-";
}

void print_line(std::FILE* stream, const std::string& text) {
  std::fputs((text + '\n').c_str(), stream);
}

Progress::Progress() : terminal_(::isatty(STDERR_FILENO) != 0) {}

void Progress::begin(std::string step) {
  if (!terminal_) return;
  {
    const std::scoped_lock lock(mutex_);
    begun_ = Clock::now();
    label_ = std::move(step);
    fraction_.reset();
  }
  if (drawer_.joinable()) return clear();
  // Signals are for the thread that works.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  drawer_ = std::jthread([this](const std::stop_token& end) { draw_until(end); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Progress::show(double fraction, std::string label) {
  const std::scoped_lock lock(mutex_);
  fraction_ = std::clamp(fraction, 0.0, 1.0);
  label_ = std::move(label);
}

void Progress::clear() {
  const std::scoped_lock lock(mutex_);
  if (drawn_) write_terminal("\r\033[K");
  drawn_ = false;
}

void Progress::draw_until(const std::stop_token& end) {
  std::unique_lock lock(mutex_);
  std::string shown;
  for (auto next = begun_ + kSilence; !end.stop_requested();) {
    changed_.wait_until(lock, end, next, [] { return false; });
    const auto now = Clock::now();
    next = std::max(now + kBetweenDraws, begun_ + kSilence);
    if (end.stop_requested() || now < begun_ + kSilence) continue;
    std::string text = fitted(line(now));
    if (drawn_ && text == shown) continue;
    write_terminal("\r\033[K" + text);
    drawn_ = true;
    shown = std::move(text);
  }
}

std::string Progress::line(Clock::time_point now) const {
  if (!fraction_) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - begun_).count();
    return fmt::format("{:>3} s  {}", seconds, label_);
  }
  constexpr int kWidth = 30;
  const std::string bar(static_cast<std::size_t>(std::lround(*fraction_ * kWidth)), '#');
  return fmt::format("[{:<{}}] {:3.0f}% {}", bar, kWidth, *fraction_ * 100, label_);
}

bool Output::finish() const {
  progress_.end();
  if (json) print_line(stdout, json_text(document, 2));
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
}

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  return within("whole number", least, most);
}

CLI::Validator decimal(double least, double most) { return within("number", least, most); }

void add_json_flag(CLI::App& command, Output& output) {
  command.add_flag("--json", output.json, "One JSON document on stdout");
}

void add_examples(CLI::App& command, const std::string& first, const std::string& second) {
  command.footer(fmt::format("Examples:\n  {}\n  {}", first, second));
}

std::vector<std::string> examples_of(const CLI::App& command) {
  std::vector<std::string> lines = CLI::detail::split(command.get_footer(), '\n');
  lines.erase(lines.begin());
  for (std::string& line : lines) line.erase(0, line.find_first_not_of(' '));
  return lines;
}

void finish_options(CLI::App& app, Output& output) {
  const std::vector<CLI::App*> below = app.get_subcommands({});
  const bool shown = below.empty() && !app.get_group().empty();
  if (shown && app.get_option_no_throw("--json") == nullptr) {
    add_json_flag(app, output);
  }
  for (CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() == 0) continue;  // a flag
    option->check([](const std::string& text) {
      return text.empty() ? "must not be empty; give a value, or leave it out" : "";
    });
  }
  for (CLI::App* each : below) finish_options(*each, output);
}

void require_place(const std::string& command, const std::string& option,
                   const std::filesystem::path& out, bool replaced) {
  std::error_code ignored;
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: {} {}{}", command, option, out.string(), why));
  };
  if (std::filesystem::is_directory(out, ignored)) refuse(" is a folder; name a file");
  const auto target = std::filesystem::symlink_status(out, ignored);
  if (replaced && std::filesystem::exists(target) && !std::filesystem::is_regular_file(target)) {
    refuse(" is no regular file; name another");
  }
  const std::filesystem::path parent = out.has_parent_path() ? out.parent_path() : ".";
  if (!std::filesystem::exists(parent, ignored)) {
    refuse(fmt::format(": the folder {} is not there; make it (mkdir -p) or choose another",
                       parent.string()));
  }
  if (!std::filesystem::is_directory(parent, ignored) || ::access(parent.c_str(), W_OK) != 0) {
    refuse(fmt::format(": {} is no folder that can be written; choose another", parent.string()));
  }
}

Environment read_environment() {
  const auto text = [](const char* name) { return environment_variable(name).value_or(""); };
  return {.cache = read_cache_environment(),
          .tuned = read_tuned_environment(),
          .cuda = {.nvrtc_path = text("VQGEN_NVRTC"),
                   .nvrtc_helper = text("VQGEN_NVRTC_HELPER"),
                   .dependent_launches = read_dependent_launches()},
          .compiler = text("VQGEN_CXX")};
}

std::unique_ptr<Backend> make_cuda(const Environment& environment) {
  return make_cuda_backend(environment.cuda);
}

std::unique_ptr<Backend> make_host(const Environment& environment, bool check_races) {
  return make_host_backend(
      {.compiler = environment.compiler, .threads = 2, .check_races = check_races});
}

std::unique_ptr<ArtifactCache> make_cache(const Environment& environment, bool explain_misses) {
  CacheOptions options = cache_options(environment.cache);
  options.explain_misses = explain_misses;
  return std::make_unique<ArtifactCache>(std::move(options));
}

std::shared_ptr<const TunedTables> make_tables(const Environment& environment) {
  return find_tables(environment.tuned, Damage::fail);
}

void note_warning(const ArtifactCache& cache, const Output& output) {
  if (const std::string warning = cache.warning(); !warning.empty()) {
    output.note("warning: {}", warning);
  }
}

GpuChoice choose_gpu(const std::string& flag, const Config& config, const Backend& backend) {
  if (!flag.empty() && flag != "auto") return {find_gpu(flag), "named by --gpu"};
  if (flag != "auto" && config.gpu) return {named_gpu(config), "named by the config"};
  if (backend.machine() == Machine::cuda) {
    if (const auto device = backend.device()) {
      const std::string why = unsupported_arch(device->arch);
      if (!why.empty()) throw Error(ErrorKind::infeasible, device->name + ": " + why);
      return {*device, "this machine's device"};
    }
  }
  return {default_gpu(), "the default, since this machine has no device"};
}

}  // namespace vqgen::cli
