// What a tuner and its worker process say to each other: JSON, a line each, read strictly on both
// sides.
//
//   to the worker     its setup, once; then a job at a time
//   to the tuner      ready, once; then the reports of each job, and done; failed before it exits
#pragma once

#include <cstdint>
#include <string>

#include "core/gpu/gpu_spec.h"
#include "core/problem/problem.h"
#include "runtime/tuning/measure/supervise.h"

namespace vqgen {

// What a worker measures, and on what.
struct WorkerSetup {
  Problem problem;
  GpuSpec gpu;
  std::string backend = "cuda";   // or host
  std::string codes = "uniform";  // as read_codes() takes it
  std::uint64_t seed = 1;
  unsigned compilers = 0;  // threads; 0 takes one a core
  CodebookCaching codebooks = CodebookCaching::rotated;
};

// A report, or one of the three words about the worker itself.
enum class Word { report, ready, done, failed };
template <>
inline constexpr auto enum_names<Word> = std::array{"report", "ready", "done", "failed"};

struct WorkerWord {
  Word word = Word::report;
  Report report = {};
  std::string why = {};  // of failed
};

// Without the line's end; bytes that are no UTF-8 become replacement characters.
std::string to_line(const WorkerSetup& setup);
std::string to_line(const Job& job);
std::string to_line(const WorkerWord& word);

// Error(bad_input).
WorkerSetup read_setup(const std::string& line);
Job read_job(const std::string& line);
WorkerWord read_word(const std::string& line);

// Lines out of the bytes of a pipe, however these are cut.
class LineBuffer {
 public:
  // No line may be longer.
  explicit LineBuffer(std::size_t most) : most_(most) {}

  void add(std::string_view bytes) { bytes_ += bytes; }

  // The next whole line, without its end.
  std::optional<std::string> take() {
    const std::size_t end = bytes_.find('\n', searched_);
    if (end == std::string::npos) {
      searched_ = bytes_.size();
      return std::nullopt;
    }
    std::string line = bytes_.substr(0, end);
    bytes_.erase(0, end + 1);
    searched_ = 0;
    return line;
  }

  // Whether what is left after take() has no end within the bound.
  bool overflows() const { return bytes_.size() > most_; }

 private:
  std::size_t most_;
  std::string bytes_;
  std::size_t searched_ = 0;  // bytes that hold no line's end
};

}  // namespace vqgen
