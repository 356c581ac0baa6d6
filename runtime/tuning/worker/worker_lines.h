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
#include "runtime/tuning/measure/workbench.h"

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

}  // namespace vqgen
