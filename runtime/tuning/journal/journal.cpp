#include "runtime/tuning/journal/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>

#include "core/files/files.h"
#include "core/json/leftovers.h"
#include "core/plan/plan_name.h"
#include "core/problem/config.h"
#include "runtime/tuning/search/race.h"

namespace vqgen {
namespace {

constexpr std::uint64_t kMostJournalBytes = std::uint64_t{1} << 30;
constexpr std::string_view kHeaderBegin = R"({"code":)";  // keys are sorted

std::string finals_key(const std::vector<std::string>& plans, int rounds) {
  return fmt::format("{} {}", rounds, fmt::join(plans, " "));
}

std::vector<std::string> names_of(std::span<const Plan> plans) {
  std::vector<std::string> names;
  for (const Plan& plan : plans) names.push_back(plan_name(plan));
  return names;
}

// The header of any tuning's journal; nullopt for any other line.
std::optional<Json> read_header(const std::string& line) {
  try {
    Json json = parse_json(line, "journal");
    if (json.is_object() && json.contains("vqgen_journal")) return json;
  } catch (const Error&) {
  }
  return std::nullopt;
}

[[noreturn]] void fail_file(const std::filesystem::path& path, const char* what) {
  const int code = errno;
  throw FileError(code, fmt::format("{}: {}: {}; choose another place for the journal or make room",
                                    path.string(), what, std::strerror(code)));
}

constexpr int kOpenFlags = O_RDWR | O_APPEND | O_CLOEXEC;

// True if the process that made the file removed it between this process's open and lock.
bool was_removed(int file) {
  struct stat now {};
  if (::fstat(file, &now) != 0 || now.st_nlink > 0) return false;
  ::close(file);
  return true;
}

}  // namespace

Json journal_header(const Problem& problem, const GpuSpec& gpu, const MeasurePolicy& policy,
                    const TuneEnvironment& environment, const std::string& code) {
  return {{"vqgen_journal", 1},        {"problem", to_json(problem)},         {"gpu", to_json(gpu)},
          {"policy", to_json(policy)}, {"environment", to_json(environment)}, {"code", code}};
}

JournaledEvaluator::JournaledEvaluator(Evaluator& inner, const std::filesystem::path& path,
                                       const Json& header, const std::optional<Plan>& incumbent,
                                       bool restart)
    : inner_(inner), path_(path), incumbent_(incumbent) {
  open();
  try {
    read(text_of(header) + "\n", restart);
  } catch (...) {
    close();
    throw;
  }
}

JournaledEvaluator::~JournaledEvaluator() { close(); }

void JournaledEvaluator::open() {
  constexpr int kMostAttempts = 100;  // others may make and remove it between two calls
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    made_ = false;
    file_ = ::open(path_.c_str(), kOpenFlags);
    if (file_ < 0 && errno == ENOENT) make();
    if (file_ < 0 && errno == EEXIST) continue;
    if (file_ < 0) fail_file(path_, "cannot open the journal");
    // The kernel releases the lock with the process, however that ends.
    if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      if (error != EWOULDBLOCK) {
        close();
        throw FileError(error, fmt::format("{}: cannot lock the journal: {}; name one on a file "
                                           "system with locks (flock), such as a local one",
                                           path_.string(), std::strerror(error)));
      }
      if (made_) Leftovers().forget(path_);
      ::close(file_);
      throw Error(
          ErrorKind::bad_input,
          fmt::format("{}: another process writes this journal; wait for it or name another",
                      path_.string()));
    }
    if (!was_removed(file_)) return;
  }
  throw Error(ErrorKind::bad_input,
              fmt::format("{}: is a link to a file that is not there; remove it, or name another",
                          path_.string()));
}

// An interruption removes the file while it is empty.
void JournaledEvaluator::make() {
  Leftovers leftovers;
  file_ = ::open(path_.c_str(), kOpenFlags | O_CREAT | O_EXCL, 0644);
  made_ = file_ >= 0;
  if (made_) leftovers.add(path_);
}

void JournaledEvaluator::close() {
  struct stat now {};
  if (made_ && ::fstat(file_, &now) == 0 && now.st_size == 0) {
    Leftovers leftovers;
    ::unlink(path_.c_str());
    leftovers.forget(path_);
  }
  ::close(file_);
}

void JournaledEvaluator::read(const std::string& header, bool restart) {
  std::string text = read_text(path_, kMostJournalBytes);
  const std::size_t begin = text.find('\n') + 1;  // of whole lines; 0 if a kill cut the header
  const std::optional<Json> found = read_header(text.substr(0, text.find('\n')));
  const bool cut_header = header.starts_with(text) || text.starts_with(kHeaderBegin);
  if (begin == 0 ? !cut_header : !found) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: is no journal of vqgen tune; name another file", path_.string()));
  }
  const std::size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  if (whole > 0 && !restart && *found != parse_json(header, "journal")) {
    throw Error(ErrorKind::bad_input,
                fmt::format("{}: is a journal of another problem, GPU, policy, environment or "
                            "version; begin again with --restart, or name another",
                            path_.string()));
  }
  text.resize(restart ? 0 : whole);
  std::size_t at = begin;
  for (std::size_t number = 2; at < text.size(); ++number) {
    const std::size_t end = text.find('\n', at);
    read_line(text.substr(at, end - at), number);
    at = end + 1;
  }
  size_ = text.size();
  if (text.empty()) first_ = header;
  if (text.size() <= begin) first_ += incumbent_line(incumbent_);
  recorded_ = screened_.size() + finals_.size();
}

void JournaledEvaluator::read_line(const std::string& text, std::size_t number) {
  const std::string source = fmt::format("{}:{}", path_.string(), number);
  try {
    const Json json = parse_json(text, source);
    const JsonCursor cursor(json, source);
    bool added = true;
    if (number == 2) {
      incumbent_ = read_incumbent_line(cursor);
    } else if (is_finals_line(cursor)) {
      FinalsLine line = read_finals_line(cursor);
      const std::string key = finals_key(line.plans, line.rounds);
      added = finals_.emplace(key, std::move(line)).second;
    } else {
      ScreenLine line = read_screen_line(cursor);
      const std::string key = plan_name(line.measurement.plan);
      added = screened_.emplace(key, std::move(line)).second;
    }
    if (!added) cursor.fail("answers what a line before it answers");
  } catch (const Error& error) {
    throw Error(
        ErrorKind::bad_input,
        fmt::format("{}; the journal is damaged: remove that line, or begin again with --restart",
                    error.what()));
  }
}

void JournaledEvaluator::append(const std::string& text) {
  const std::string all = first_ + text;
  const auto size = static_cast<off_t>(size_);
  std::optional<Leftovers> leftovers;
  if (made_ && size_ == 0) leftovers.emplace();
  if (::ftruncate(file_, size) != 0 || write_all(file_, std::as_bytes(std::span(all))) != 0 ||
      ::fsync(file_) != 0) {
    const int code = errno;
    [[maybe_unused]] const int cut = ::ftruncate(file_, size);
    errno = code;
    fail_file(path_, "cannot write the journal");
  }
  if (leftovers) leftovers->forget(path_);
  size_ += all.size();
  first_.clear();
}

std::int64_t JournaledEvaluator::cost_since(double before_s) const {
  return std::llround(std::max(0.0, inner_.spent_s() - before_s) * 1e6);
}

std::vector<Measurement> JournaledEvaluator::screen(std::span<const Plan> plans) {
  const std::vector<std::string> names = names_of(plans);
  std::vector<Plan> unknown;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (!screened_.contains(names[i])) unknown.push_back(plans[i]);
  }
  if (!unknown.empty()) {
    const double before = inner_.spent_s();
    std::vector<Measurement> measured = inner_.screen(unknown);
    const auto each = cost_since(before) / static_cast<std::int64_t>(unknown.size());
    std::string lines;
    for (Measurement& m : measured) {
      refuse_false_times(m);
      const ScreenLine line{std::move(m), each};
      lines += to_line(line);
      screened_.emplace(plan_name(line.measurement.plan), line);
    }
    append(lines);
  }
  std::vector<Measurement> answers;
  for (const std::string& name : names) {
    const ScreenLine& line = screened_.at(name);
    spent_us_ += line.cost_us;
    answers.push_back(line.measurement);
  }
  return answers;
}

std::vector<FinalTimes> JournaledEvaluator::finals(std::span<const Plan> plans, int rounds) {
  const std::vector<std::string> names = names_of(plans);
  const std::string key = finals_key(names, rounds);
  auto found = finals_.find(key);
  if (found == finals_.end()) {
    const double before = inner_.spent_s();
    FinalsLine line{names, rounds, inner_.finals(plans, rounds), 0};
    for (FinalTimes& each : line.times) refuse_false_times(each);
    line.cost_us = cost_since(before);
    append(to_line(line));
    found = finals_.emplace(key, std::move(line)).first;
  }
  spent_us_ += found->second.cost_us;
  return found->second.times;
}

double JournaledEvaluator::spent_s() const { return static_cast<double>(spent_us_) * 1e-6; }

}  // namespace vqgen
