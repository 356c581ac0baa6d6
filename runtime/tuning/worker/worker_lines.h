// The protocol of a tuner and its worker process: JSON, one object per line, read strictly on both
// sides.
//
//   to the worker     its setup, once; then one job at a time
//   to the tuner      ready, once; then the reports of each job, and done; failed before it exits
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "core/gpu/gpu_spec.h"
#include "core/problem/problem.h"
#include "runtime/tuning/measure/supervise.h"

namespace vqgen {

// The problem that a worker measures, and on what.
struct WorkerSetup {
  Problem problem;
  GpuSpec gpu;
  std::string backend = "cuda";   // or host
  std::string codes = "uniform";  // as read_codes() takes it
  std::uint64_t seed = 1;
  unsigned compilers = 0;  // compiler threads; 0 takes one per core
  CodebookCaching codebooks = CodebookCaching::rotated;
};

// A report, or one of the three words about the worker itself.
enum class Word { report, ready, done, failed };
template <>
inline constexpr auto enum_names<Word> = std::array{"report", "ready", "done", "failed"};

struct WorkerWord {
  Word word = Word::report;
  Report report = {};
  std::string why = {};  // message of failed
};

// The line without its end; bytes that are not UTF-8 become replacement characters.
std::string to_line(const WorkerSetup& setup);
std::string to_line(const Job& job);
std::string to_line(const WorkerWord& word);

// Throws Error(bad_input).
WorkerSetup read_setup(const std::string& line);
Job read_job(const std::string& line);
WorkerWord read_word(const std::string& line);

// Splits the bytes of a pipe into lines, however they are cut.
class LineBuffer {
 public:
  // The most bytes of a line.
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

  // True if the rest after take() exceeds the bound without a line's end.
  bool overflows() const { return bytes_.size() > most_; }

 private:
  std::size_t most_;
  std::string bytes_;
  std::size_t searched_ = 0;  // bytes known to hold no line's end
};

// The worker's side: a process that does jobs for the tuner that started it, and its workbench.

inline constexpr int kScreenReplays = 3;  // finals decide; a race needs less

// Candidates on a device of this process: Measurer behind the interface of Workbench.
class MeasurerWorkbench final : public Workbench {
 public:
  // `backend` is the one that the setup names, or equivalent. Throws Error(bad_input) for codes
  // that cannot be read, and as Measurer.
  MeasurerWorkbench(Backend& backend, const WorkerSetup& setup);

  void compile(std::span<const Plan> plans, bool serial, const CompileWatch& watch) override;
  Measurement screen(std::size_t candidate) override;
  Measurement seat(std::size_t candidate) override;
  void move_data() override { measurer_.move_data(); }
  double round_us(std::size_t candidate) override;

 private:
  Measurer measurer_;
  // On a host, compiling takes longer than a round, so compiled plans are kept for the finals.
  bool keeps_;
  std::vector<CompiledPlan> candidates_;
  std::map<std::string, CompiledPlan> kept_;  // by plan_name()
};

// Makes the workbench of a setup; throws Error if it cannot.
using MakeWorkbench = std::function<std::unique_ptr<Workbench>(const WorkerSetup& setup)>;

// Takes over standard input and output; other prints go to standard error. Returns the exit code: 0
// when the tuner closes; on an Error it tells the tuner and returns the error's code, since the
// device is not to be trusted. If the tuner goes away, the process ends at once.
int serve_worker(const MakeWorkbench& make);

}  // namespace vqgen
